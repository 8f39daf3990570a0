"""The recorder: inputs and outputs of the engine in an episode, as chains of turns.

A turn's context is its parent's context and output, token by token, and the tokens given between them. The policy's
output is never tokenised again, so the record equals what the engine saw (I5). Turns form a forest: a call that extends
no conversation opens a tree, two calls that extend the same one make a branch. A path from a root to a leaf is a chain;
of several chains, each turn is trained in the first that has it, and is context in the others.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from tidegate.core.conversations import CONVERSATIONS, conversations_array
from tidegate.core.ids import PolicyVersion
from tidegate.core.records import Array, VersionSpan


class RecordedTurn(msgspec.Struct, frozen=True, eq=False):
    """One call that was answered.

    ``given``: tokens between the parent's last and the first of ``tokens``; of a root, its whole prompt. ``spans``
    are over ``tokens``, which are never empty. ``num_chosen``: tokens that the policy wrote from the root to here.
    """

    parent: "RecordedTurn | None"
    given: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    spans: tuple[VersionSpan, ...]
    finish_reason: str
    num_chosen: int

    def path(self) -> list["RecordedTurn"]:
        """From the root to here."""
        turns: list[RecordedTurn] = []
        turn: RecordedTurn | None = self
        while turn is not None:
            turns.append(turn)
            turn = turn.parent
        return turns[::-1]

    def context(self) -> list[int]:
        """Everything up to and with this turn's tokens: what the next one's context begins with."""
        return [token for turn in self.path() for part in (turn.given, turn.tokens) for token in part]


class Chain(msgspec.Struct, frozen=True, eq=False):
    """A conversation as a trajectory's tensors: P tokens of prompt, T behind it.

    ``chosen_T``: True where the policy chose; the others were given between its turns, have logprob 0 and carry the
    version of the token before them.
    """

    prompt_tokens_P: Array
    tokens_T: Array
    behavior_logprobs_T: Array
    chosen_T: Array
    spans: tuple[VersionSpan, ...]

    @property
    def num_chosen(self) -> int:
        """Tokens of the policy."""
        return int(self.chosen_T.sum())


class Recorder:
    """The turns of one episode, and which conversation each of them ends. Bounded by the calls of an episode."""

    def __init__(self) -> None:
        self._turns: list[RecordedTurn] = []
        self._parents: set[int] = set()
        # Conversations of messages by digest, raw prompts by text.
        self._ends: dict[bytes | str, RecordedTurn] = {}

    @property
    def num_turns(self) -> int:
        """Calls that were answered."""
        return len(self._turns)

    def extended_by(self, digests: Sequence[bytes]) -> tuple[RecordedTurn | None, int]:
        """The longest recorded conversation that a call extends, and how many of its messages that covers.

        ``digests``: the call's conversation after each message. Of two equal conversations the one recorded last is
        extended.
        """
        for count in range(len(digests), 0, -1):
            turn = self._ends.get(digests[count - 1])
            if turn is not None:
                return turn, count
        return None, 0

    def extended_by_text(self, prompt: str) -> tuple[RecordedTurn | None, int]:
        """The same for a raw prompt: the longest recorded text that it begins with, and that text's length."""
        texts = [end for end in self._ends if isinstance(end, str) and prompt.startswith(end)]
        known = max(texts, key=len, default="")
        return self._ends.get(known), len(known)

    def add(
        self,
        parent: RecordedTurn | None,
        *,
        ends: Sequence[bytes | str],
        given: Sequence[int],
        tokens: Sequence[int],
        logprobs: Sequence[float],
        spans: Sequence[VersionSpan],
        finish_reason: str,
    ) -> RecordedTurn:
        """Record an answered call; ``ends``: the digest or texts of the conversation with its reply."""
        assert tokens, "an answered call has tokens"
        assert len(tokens) == len(logprobs), "each token has its logprob"
        turn = RecordedTurn(
            parent=parent,
            given=tuple(given),
            tokens=tuple(tokens),
            logprobs=tuple(logprobs),
            spans=tuple(spans),
            finish_reason=finish_reason,
            num_chosen=len(tokens) + (0 if parent is None else parent.num_chosen),
        )
        self._turns.append(turn)
        if parent is not None:
            self._parents.add(id(parent))
        self._ends |= dict.fromkeys(ends, turn)
        return turn

    def leaves(self) -> list[RecordedTurn]:
        """The last turn of each chain, in the order they were answered."""
        return [turn for turn in self._turns if id(turn) not in self._parents]

    def longest(self) -> RecordedTurn | None:
        """The leaf of the chain with most tokens of the policy, the first of equals; None without a turn."""
        return next(iter(self.longest_leaves(1)), None)

    def longest_leaves(self, most: int) -> list[RecordedTurn]:
        """The leaves of at most so many chains, those with most tokens of the policy, the longest first."""
        return sorted(self.leaves(), key=lambda turn: -turn.num_chosen)[:most]


def chains_to(leaves: Sequence[RecordedTurn]) -> list[Chain]:
    """The chains that end with these turns, each turn in the first of them that has it."""
    chains: list[Chain] = []
    known: set[int] = set()
    for leaf in leaves:
        own = [turn for turn in leaf.path() if id(turn) not in known]
        known.update(map(id, own))
        chains.append(_chain(own))
    return chains


def tensors_of(chains: Sequence[Chain]) -> dict[str, Array]:
    """The tensors of one trajectory of these chains, one after the other (see ``core.conversations``)."""
    tensors = {
        "prompt_tokens": np.concatenate([chain.prompt_tokens_P for chain in chains]),
        "tokens": np.concatenate([chain.tokens_T for chain in chains]),
        "behavior_logprobs": np.concatenate([chain.behavior_logprobs_T for chain in chains]),
    }
    chosen_T = np.concatenate([chain.chosen_T for chain in chains])
    if not chosen_T.all():
        tensors["chosen"] = chosen_T
    if len(chains) > 1:
        lengths = [(len(chain.prompt_tokens_P), len(chain.tokens_T)) for chain in chains]
        tensors[CONVERSATIONS] = conversations_array(lengths)
    return tensors


def spans_of(chains: Sequence[Chain]) -> tuple[VersionSpan, ...]:
    """The versions of the same trajectory's tokens."""
    marks: list[tuple[int, PolicyVersion]] = []
    start = 0
    for chain in chains:
        for span in chain.spans:
            _mark(marks, start + span.start, span.version)
        start += len(chain.tokens_T)
    return _spans(marks, num_tokens=start)


def _chain(turns: Sequence[RecordedTurn]) -> Chain:
    """Turns of one path, from the first on that is trained in it."""
    first = turns[0]
    before = [] if first.parent is None else first.parent.context()
    tokens: list[int] = []
    logprobs: list[float] = []
    chosen: list[bool] = []
    marks: list[tuple[int, PolicyVersion]] = []
    for turn in turns:
        if turn is not first:
            tokens += turn.given
            logprobs += [0.0] * len(turn.given)
            chosen += [False] * len(turn.given)
        for span in turn.spans:
            _mark(marks, len(tokens) + span.start, span.version)
        tokens += turn.tokens
        logprobs += turn.logprobs
        chosen += [True] * len(turn.tokens)
    return Chain(
        prompt_tokens_P=np.array([*before, *first.given], dtype=np.int32),
        tokens_T=np.array(tokens, dtype=np.int32),
        behavior_logprobs_T=np.array(logprobs, dtype=np.float32),
        chosen_T=np.array(chosen, dtype=np.bool_),
        spans=_spans(marks, num_tokens=len(tokens)),
    )


def _mark(marks: list[tuple[int, PolicyVersion]], start: int, version: PolicyVersion) -> None:
    if not marks or marks[-1][1] != version:
        marks.append((start, version))


def _spans(marks: Sequence[tuple[int, PolicyVersion]], *, num_tokens: int) -> tuple[VersionSpan, ...]:
    stops = [start for start, _ in marks[1:]] + [num_tokens]
    return tuple(
        VersionSpan(version, start, stop) for (start, version), stop in zip(marks, stops, strict=True)
    )
