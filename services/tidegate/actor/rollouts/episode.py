"""A partial rollout of tokens: an episode is one sample, the policy's turns and the replies between them.

Both live in the event loop: engines append to the caller's continuation, and a reader between two awaits sees all
tokens so far. A drain, a cut or a checkpoint of progress therefore loses nothing.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from tidegate.actor.engines.port import Rollouts, Sample
from tidegate.actor.engines.token_port import Continuation
from tidegate.actor.rollouts.deadlines import RolloutStatus
from tidegate.core.ids import PolicyVersion
from tidegate.core.records import Array, Task, ToolCall
from tidegate.wire.clients.environment import EnvironmentStep
from tidegate.wire.progress import Progress, SampleProgress

Decode = Callable[[Sequence[int]], str]
# Characters of a verifier's log that are kept; every checkpoint contains all of it.
LOG_CHARACTERS_MAX = 16 * 1024


class Episode:
    """One sample. Bounded by its task's cap on new tokens, by its turns, and by the model's context.

    ``opening``: the first observation where it is not the task's prompt; ``prompt``: the same as tokens.
    ``reply``: the environment's last observation. ``reward`` to ``log``: of its steps so far. ``finish_reason``: empty
    until it is done.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.opening = ""
        self.prompt: list[int] = []
        self.reply = ""
        self.reward: float | None = None
        self.components: dict[str, float] = {}
        self.tool_calls: tuple[ToolCall, ...] = ()
        self.log = ""
        self.finish_reason = ""
        self._written = Continuation()
        self._replies: list[tuple[int, int]] = []
        self._writing = Continuation()

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def context(self) -> tuple[int, ...]:
        """What the policy reads before its next token."""
        return (*self.prompt, *self._written.tokens)

    @property
    def num_tokens(self) -> int:
        """Tokens of turns and replies, without the prompt."""
        return len(self._written.tokens) + len(self._writing.tokens)

    @property
    def num_chosen(self) -> int:
        """Tokens that the policy chose."""
        return self.num_tokens - sum(stop - start for start, stop in self._replies)

    @property
    def num_turns(self) -> int:
        """Started turns, at least the first."""
        return len(self._replies) + 1

    @property
    def turn(self) -> list[int]:
        """Tokens of the current turn."""
        start = self._replies[-1][1] if self._replies else 0
        return self._written.tokens[start:]

    @property
    def oldest(self) -> PolicyVersion | None:
        """The version of the first token."""
        spans = self._written.spans() or self._writing.spans()
        return spans[0].version if spans else None

    def turns(self, decode: Decode) -> list[str]:
        """The texts of the answered turns, with which an environment replays this episode."""
        starts = [0, *(stop for _, stop in self._replies)]
        return [
            decode(self._written.tokens[start:stop])
            for start, (stop, _) in zip(starts, self._replies, strict=False)
        ]

    # -- writing ---------------------------------------------------------------------------------------------------

    def begin_write(self) -> Continuation:
        """Start a continuation for an engine; ``end_write`` adds it to the episode."""
        self._writing = Continuation()
        return self._writing

    def end_write(self) -> None:
        """Add the engine's tokens to the episode; the engine appends no more."""
        _append(self._written, self._writing)
        self._writing = Continuation()

    def record_step(self, step: EnvironmentStep) -> None:
        """Record the environment's answer to the current turn."""
        self.reward = (self.reward or 0.0) + step.reward
        self.components = {
            name: self.components.get(name, 0.0) + step.components.get(name, 0.0)
            for name in self.components | step.components
        }
        self.tool_calls += step.tool_calls
        self.log = "\n".join(filter(None, (self.log, step.log)))[:LOG_CHARACTERS_MAX]

    def record_reply(self, text: str, tokens: Sequence[int]) -> None:
        """Add a reply before the policy's next turn; its tokens carry the version of the token before them."""
        start = len(self._written.tokens)
        assert start > 0, "a reply answers a turn"
        self._written.append(tokens, [0.0] * len(tokens), self._written.spans()[-1].version)
        self._replies.append((start, start + len(tokens)))
        self.reply = text

    # -- results ---------------------------------------------------------------------------------------------------

    def sample(self, decode: Decode) -> Sample:
        """The finished sample."""
        tokens, logprobs = self._written.arrays()
        tensors: dict[str, Array] = {
            "prompt_tokens": np.array(self.prompt, dtype=np.int32),
            "tokens": tokens,
            "behavior_logprobs": logprobs,
        }
        if any(stop > start for start, stop in self._replies):
            chosen = np.ones(len(tokens), dtype=np.bool_)
            for start, stop in self._replies:
                chosen[start:stop] = False
            tensors["chosen"] = chosen
        return Sample(
            tensors=tensors,
            spans=self._written.spans(),
            num_steps=self.num_chosen,
            completion=self._text(decode),
            finish_reason=self.finish_reason,
            reward=self.reward,
            components=self.components,
            log=self.log,
            tool_calls=self.tool_calls,
        )

    def _text(self, decode: Decode) -> str:
        """Turns and replies as text, one after the other."""
        edges = [0, *(edge for reply in self._replies for edge in reply), len(self._written.tokens)]
        return "".join(
            decode(self._written.tokens[start:stop]) for start, stop in pairwise(edges) if stop > start
        )

    def progress(self) -> SampleProgress:
        """The progress message of this episode."""
        written = Continuation()
        _append(written, self._written)
        _append(written, self._writing)
        tokens, logprobs = written.arrays()
        return SampleProgress(
            index=self.index,
            tokens=tokens,
            logprobs=logprobs,
            spans=written.spans(),
            replies=tuple(self._replies),
            opening=self.opening,
            reply=self.reply,
            reward=self.reward,
            components=self.components,
            tool_calls=self.tool_calls,
            log=self.log,
            finish_reason=self.finish_reason,
        )

    @classmethod
    def resumed(cls, progress: SampleProgress) -> "Episode":
        """The episode from another actor's progress message."""
        episode = cls(progress.index)
        tokens: list[int] = progress.tokens.tolist()
        logprobs: list[float] = progress.logprobs.tolist()
        for span in progress.spans:
            episode._written.append(
                tokens[span.start : span.stop], logprobs[span.start : span.stop], span.version
            )
        episode._replies = list(progress.replies)
        episode.opening = progress.opening
        episode.reply = progress.reply
        episode.reward = progress.reward
        episode.components = progress.components
        episode.tool_calls = progress.tool_calls
        episode.log = progress.log
        episode.finish_reason = progress.finish_reason
        return episode


def _append(written: Continuation, more: Continuation) -> None:
    for span in more.spans():
        written.append(
            more.tokens[span.start : span.stop], more.logprobs[span.start : span.stop], span.version
        )


class Group:
    """The samples of one task, generated concurrently. ``started_at_s``: of the first, seconds since the epoch."""

    def __init__(self, task: Task, episodes: Sequence[Episode], *, started_at_s: float) -> None:
        """``task``: with its cap applied. ``episodes``: one per sample, in order."""
        self.task = task
        self.episodes = list(episodes)
        self.started_at_s = started_at_s

    @property
    def num_tokens(self) -> int:
        """Tokens of all samples together."""
        return sum(episode.num_tokens for episode in self.episodes)

    @property
    def num_chosen(self) -> int:
        """Tokens of all samples that the policy chose."""
        return sum(episode.num_chosen for episode in self.episodes)

    @property
    def num_started(self) -> int:
        """Samples with at least one token."""
        return sum(episode.num_tokens > 0 for episode in self.episodes)

    @property
    def length(self) -> int:
        """Tokens that the policy chose, of the longest sample."""
        return max(episode.num_chosen for episode in self.episodes)

    def revision(self) -> tuple[int, int]:
        """Changes with every token, and with every sample that ends."""
        return self.num_tokens, sum(bool(episode.finish_reason) for episode in self.episodes)

    def status(self) -> RolloutStatus | None:
        """The task's status; its oldest version is that of the first token of any sample."""
        versions = [episode.oldest for episode in self.episodes]
        oldest = min((version for version in versions if version is not None), key=_step, default=None)
        if oldest is None:
            return None
        return RolloutStatus(self.task.task_id, oldest, self.started_at_s, self.length)

    def rollouts(self, decode: Decode, *, num_samples: int, finished_at_s: float) -> Rollouts:
        """The first ``num_samples``, which are done."""
        return Rollouts(
            task=msgspec.structs.replace(self.task, num_samples=num_samples),
            samples=tuple([episode.sample(decode) for episode in self.episodes[:num_samples]]),
            started_at_s=self.started_at_s,
            finished_at_s=finished_at_s,
        )

    def progress(self, *, now_s: float) -> Progress:
        """The progress message of all samples."""
        task = self.task
        return Progress(
            run_id=task.run_id,
            task_id=task.task_id,
            attempt=task.attempt,
            num_samples=task.num_samples,
            started_at_s=self.started_at_s,
            max_new_tokens=task.sampler.max_new_tokens,
            samples=tuple([episode.progress() for episode in self.episodes if episode.num_tokens]),
            written_at_s=now_s,
        )


def _step(version: PolicyVersion) -> int:
    return version.step
