"""The recorder reproduces the engine's inputs and outputs in any order of an episode's calls."""

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.actor.gateway.fakes import version
from tidegate.actor.engines.token_port import Continuation
from tidegate.actor.gateway.chains import (
    RecordedTurn,
    Recorder,
    chains_to,
    spans_of,
    tensors_of,
)
from tidegate.core.conversations import CONVERSATIONS, conversations_of
from tidegate.core.ids import PolicyVersion
from tidegate.core.records import VersionSpan


@dataclass
class Seen:
    """One call as an engine knows it."""

    turn: RecordedTurn
    parent: "Seen | None"
    context: list[int]
    written: Continuation

    def chosen_before(self) -> list[tuple[int, int, PolicyVersion, float]]:
        """Position, token, version and logprob of everything the policy wrote up to here."""
        before = [] if self.parent is None else self.parent.chosen_before()
        versions = [span.version for span in self.written.spans() for _ in range(span.start, span.stop)]
        return before + [
            (len(self.context) + index, token, versions[index], self.written.logprobs[index])
            for index, token in enumerate(self.written.tokens)
        ]


@st.composite
def calls(draw: st.DrawFn) -> list[tuple[int, list[int], list[tuple[int, int]]]]:
    """Any forest: which earlier call each one extends (-1 for none), what it was given, (token, version) it wrote."""
    count = draw(st.integers(1, 8))
    forest: list[tuple[int, list[int], list[tuple[int, int]]]] = []
    step = 0
    for index in range(count):
        parent = draw(st.integers(-1, index - 1))
        given_tokens = draw(st.lists(st.integers(0, 99), min_size=1, max_size=4))
        written: list[tuple[int, int]] = []
        for token in draw(st.lists(st.integers(0, 99), min_size=1, max_size=5)):
            step += draw(st.integers(0, 1))
            written.append((token, step))
        forest.append((parent, given_tokens, written))
    return forest


def record(forest: list[tuple[int, list[int], list[tuple[int, int]]]]) -> tuple[Recorder, list[Seen]]:
    recorder, seen = Recorder(), list[Seen]()
    for index, (parent_index, given_tokens, pairs) in enumerate(forest):
        parent = seen[parent_index] if parent_index >= 0 else None
        before = [] if parent is None else [*parent.context, *parent.written.tokens]
        written = Continuation()
        for token, step in pairs:
            written.append([token], [-float(token + 1)], version(step))
        turn = recorder.add(
            None if parent is None else parent.turn,
            ends=[bytes([index])],
            given=given_tokens,
            tokens=written.tokens,
            logprobs=written.logprobs,
            spans=written.spans(),
            finish_reason="stop",
        )
        seen.append(Seen(turn, parent, [*before, *given_tokens], written))
    return recorder, seen


@given(calls())
def test_any_interleaving_of_calls_gives_back_each_chain_token_by_token(
    forest: list[tuple[int, list[int], list[tuple[int, int]]]],
) -> None:
    recorder, seen = record(forest)
    by_turn = {id(call.turn): call for call in seen}
    parents = {id(call.parent.turn) for call in seen if call.parent is not None}
    leaves = recorder.leaves()
    assert {id(leaf) for leaf in leaves} == {id(call.turn) for call in seen} - parents
    for leaf in leaves:
        call, chain = by_turn[id(leaf)], chains_to([leaf])[0]
        everything = [*chain.prompt_tokens_P.tolist(), *chain.tokens_T.tolist()]
        assert everything == [*call.context, *call.written.tokens], "as the engine was given and wrote"
        offset = len(chain.prompt_tokens_P)
        chosen = call.chosen_before()
        assert [int(index) + offset for index in np.flatnonzero(chain.chosen_T)] == [
            item[0] for item in chosen
        ]
        for position, token, wrote, logprob in chosen:
            index = position - offset
            assert chain.tokens_T[index] == token
            assert chain.behavior_logprobs_T[index] == np.float32(logprob)
            [span] = [span for span in chain.spans if span.start <= index < span.stop]
            assert span.version == wrote
        assert (chain.behavior_logprobs_T[~chain.chosen_T] == 0.0).all()
        assert chain.chosen_T[0], "a trajectory begins with the policy's first token"
        assert [span.start for span in chain.spans[1:]] == [span.stop for span in chain.spans[:-1]]
        assert (chain.spans[0].start, chain.spans[-1].stop) == (0, len(chain.tokens_T))


@given(calls())
def test_longest_chain_is_the_one_with_most_tokens_of_the_policy(
    forest: list[tuple[int, list[int], list[tuple[int, int]]]],
) -> None:
    recorder, _ = record(forest)
    longest = recorder.longest()
    assert longest is not None
    assert chains_to([longest])[0].num_chosen == max(
        chains_to([leaf])[0].num_chosen for leaf in recorder.leaves()
    )


@given(calls(), st.integers(1, 9))
def test_trajectory_of_several_chains_trains_each_choice_once_behind_what_the_engine_saw(
    forest: list[tuple[int, list[int], list[tuple[int, int]]]], most: int
) -> None:
    recorder, seen = record(forest)
    leaves = recorder.longest_leaves(most)
    assert leaves[0] is recorder.longest()
    assert len(leaves) == min(most, len(recorder.leaves()))
    chains = chains_to(leaves)
    tensors, spans = tensors_of(chains), spans_of(chains)
    tokens = tensors["tokens"]
    chosen = tensors.get("chosen", np.ones(len(tokens), dtype=np.bool_))
    found: list[tuple[tuple[int, ...], int, PolicyVersion, float]] = []
    for part in conversations_of(tensors):
        context = tensors["prompt_tokens"][part.prompt].tolist()
        for index in range(part.tokens.start, part.tokens.stop):
            if chosen[index]:
                [span] = [span for span in spans if span.start <= index < span.stop]
                logprob = float(tensors["behavior_logprobs"][index])
                found.append((tuple(context), int(tokens[index]), span.version, logprob))
            context.append(int(tokens[index]))
    paths = {id(turn) for leaf in leaves for turn in leaf.path()}
    expected: list[tuple[tuple[int, ...], int, PolicyVersion, float]] = []
    for call in seen:
        if id(call.turn) not in paths:
            continue
        versions = [span.version for span in call.written.spans() for _ in range(span.start, span.stop)]
        for index, token in enumerate(call.written.tokens):
            context = (*call.context, *call.written.tokens[:index])
            expected.append((context, token, versions[index], float(call.written.logprobs[index])))
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert [span.start for span in spans[1:]] == [span.stop for span in spans[:-1]]
    assert (spans[0].start, spans[-1].stop) == (0, len(tokens))


def test_one_chain_needs_no_division_into_conversations() -> None:
    recorder, _ = record([(-1, [1], [(10, 0)]), (0, [2], [(11, 0)])])
    assert CONVERSATIONS not in tensors_of(chains_to(recorder.longest_leaves(4)))


def test_reply_tokens_carry_the_version_of_the_token_before_them() -> None:
    recorder, _ = record([(-1, [1], [(10, 0), (11, 1)]), (0, [2, 3], [(12, 1), (13, 2)])])
    [leaf] = recorder.leaves()
    chain = chains_to([leaf])[0]
    assert chain.tokens_T.tolist() == [10, 11, 2, 3, 12, 13]
    assert chain.chosen_T.tolist() == [True, True, False, False, True, True]
    assert chain.spans == (
        VersionSpan(version(0), 0, 1),
        VersionSpan(version(1), 1, 5),
        VersionSpan(version(2), 5, 6),
    )


def test_call_extends_the_longest_conversation_it_begins_with() -> None:
    recorder, seen = record([(-1, [1], [(10, 0)]), (0, [2], [(11, 0)])])
    assert recorder.extended_by([b"x", bytes([0]), b"y", bytes([1]), b"z"]) == (seen[1].turn, 4)
    assert recorder.extended_by([b"x", bytes([0]), b"y"]) == (seen[0].turn, 2)
    assert recorder.extended_by([b"x", b"y"]) == (None, 0)


def test_recorder_of_an_episode_without_calls_has_no_chain() -> None:
    assert Recorder().longest() is None
