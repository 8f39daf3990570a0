"""Gaps between the log-probabilities of learner and actors: the largest, beside loops over tokens."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from tests.unit.learner.trajectories import group, version
from tidegate.algorithms.grpo_settings import GrpoSettings
from tidegate.core.records import Trajectory
from tidegate.learner.optim.language_model import LanguageModelTrainer
from tidegate.learner.optim.several_updates import SeveralUpdates
from tidegate.learner.optim.token_gaps import LargestGaps, TokenGaps, shifted, token_gaps_of
from tidegate.models.char_lm import CharLm, CharLmSpec
from tidegate.models.completion_batch import completion_logprobs

SPEC = CharLmSpec(d_model=16, num_layers=1, num_heads=2, context_length=12)


def trainer(count: int = 2, *, minibatches: int = 1, updates_per_version: int = 1) -> LanguageModelTrainer:
    return LanguageModelTrainer(
        CharLm(SPEC, generator=torch.Generator().manual_seed(0)),
        GrpoSettings(minibatches=minibatches, warmup_versions=0, drop_zero_signal=True),
        seed=0,
        device=torch.device("cpu"),
        num_token_gaps=count,
        updates_per_version=updates_per_version,
    )


def batch() -> list[Trajectory]:
    return [
        *group("flat", "4+4=", [("8", 1.0), ("8", 1.0)], at=version(0)),
        *group("a", "1+2=", [("3", 1.0), ("12", 0.0), ("4", 0.0)], at=version(0)),
        *group("b", "2+2=", [("4", 1.0), ("22", 0.0), ("5", 1.0)], at=version(0)),
    ]


@pytest.mark.parametrize("minibatches", [1, 2])
def test_gaps_are_those_of_the_version_that_the_update_starts_from(minibatches: int) -> None:
    made = trainer(minibatches=minibatches)
    trajectories = batch()
    prepared = made.prepare(trajectories)
    with torch.no_grad():
        learner_BT = completion_logprobs(made.model, prepared.completions).numpy()
    gaps: dict[int, list[float]] = {}
    for row, trajectory in enumerate(trajectories):
        actor_T = trajectory.tensors["behavior_logprobs"]
        gaps[row] = [float(learner_BT[row, at] - actor_T[at]) for at in range(len(actor_T))]
    made.update(prepared, number=1)
    found = made.token_gaps()
    # The first group has no signal; a second minibatch is computed after a step.
    groups = ((2, 3, 4), (5, 6, 7))
    candidates = (
        [sum(groups, ())] if minibatches == 1 else [each for each in groups if found[0].sample in each]
    )
    furthest = sorted(candidates[0], key=lambda row: -max(map(abs, gaps[row])))[:2]
    assert [each.sample for each in found] == furthest
    for each in found:
        np.testing.assert_allclose(each.gaps_T, gaps[each.sample], atol=5e-3)


def test_positions_are_those_of_the_whole_batch_where_a_version_has_several_updates() -> None:
    made = SeveralUpdates(trainer(count=1, updates_per_version=2), count=2)
    trajectories = batch()[2:]
    made.update(made.prepare(trajectories), number=1)
    assert next(each.sample for each in token_gaps_of(made)) < 3
    assert len(token_gaps_of(made)) == 1, "the second update starts from no version"


def test_positions_of_a_part_are_moved_to_where_it_begins() -> None:
    gaps = TokenGaps(2, np.zeros(3, np.float16))
    assert [each.sample for each in shifted([gaps], by=5)] == [7]


def test_update_without_signal_or_setting_has_none() -> None:
    made = trainer()
    made.update(made.prepare(batch()), number=1)
    made.update(made.prepare(batch()[:2]), number=2)
    assert made.token_gaps() == []
    quiet = trainer(count=0)
    quiet.update(quiet.prepare(batch()), number=1)
    assert token_gaps_of(quiet) == []


@given(
    seed=st.integers(0, 2**31), shape=st.tuples(st.integers(1, 6), st.integers(1, 5)), count=st.integers(1, 4)
)
def test_largest_gaps_equal_a_loop(seed: int, shape: tuple[int, int], count: int) -> None:
    rng = np.random.default_rng(seed)
    gaps_BT = rng.normal(size=shape).astype(np.float32)
    mask_BT = rng.random(shape) < 0.7
    collected = LargestGaps(count)
    half = shape[0] // 2
    for part in (slice(0, half), slice(half, shape[0])):
        collected.add(
            torch.tensor(gaps_BT[part]), torch.tensor(mask_BT[part]), torch.arange(shape[0])[part] + 10
        )
    largest = [
        max((abs(gaps_BT[row, at]) for at in range(shape[1]) if mask_BT[row, at]), default=0.0)
        for row in range(shape[0])
    ]
    found = collected.found()
    assert [largest[each.sample - 10] for each in found] == sorted(largest, reverse=True)[:count]
    for each in found:
        row = each.sample - 10
        kept = np.flatnonzero(mask_BT[row])
        assert len(each.gaps_T) == (kept[-1] + 1 if len(kept) else 0)
        for at, gap in enumerate(each.gaps_T):
            assert np.isnan(gap) if not mask_BT[row, at] else gap == np.float16(gaps_BT[row, at])
