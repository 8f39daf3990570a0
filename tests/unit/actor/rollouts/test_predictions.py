"""Lengths that an actor learns from its rollouts, and the caps that follow."""

import msgspec
import numpy as np
import pytest

from tests.unit.actor.support import evaluation_task, group_task, segment_task, version
from tidegate.actor.engines.port import Rollouts, Sample
from tidegate.actor.rollouts.predictions import Predictions
from tidegate.core.lengths import UNKNOWN
from tidegate.core.records import Sampler, Task, VersionSpan
from tidegate.runtime.config import LongTailConfig

CAPPED = LongTailConfig(cap_quantile=0.95, overlong_weight=0.0)
LONG = Sampler(max_new_tokens=64)


def wrote(lengths: list[int], *, task: Task | None = None, length_max: int = 64) -> Rollouts:
    samples = tuple(
        Sample(
            tensors={"tokens": np.zeros(length, np.int32)},
            spans=(VersionSpan(version(0), 0, length),),
            num_steps=length,
            finish_reason="length" if length == length_max else "stop",
        )
        for length in lengths
    )
    return Rollouts(task or group_task(sampler=LONG), samples, started_at_s=10.0, finished_at_s=12.0)


def test_cap_is_the_quantile_of_the_bin_once_it_is_known() -> None:
    predictions = Predictions(CAPPED)
    task = group_task(sampler=LONG)
    assert predictions.capped(task) == task
    for _ in range(20):
        predictions.record_lengths(wrote([3, 4, 5, 6, 7, 8, 9, 10, 11, 12]))
    capped = predictions.capped(task)
    assert 11 <= capped.sampler.max_new_tokens <= 13
    assert capped == msgspec.structs.replace(task, sampler=capped.sampler)
    short = group_task(sampler=Sampler(max_new_tokens=4))
    assert predictions.capped(short) == short


def test_penalty_begins_where_the_quantile_ends() -> None:
    predictions = Predictions(LongTailConfig(cap_quantile=0.95, overlong_share=0.2))
    for _ in range(20):
        predictions.record_lengths(wrote([3, 4, 5, 6, 7, 8, 9, 10, 11, 12]))
    assert 14 <= predictions.capped(group_task(sampler=LONG)).sampler.max_new_tokens <= 16


def test_cap_is_lifted_when_more_of_them_meet_it_than_it_allows() -> None:
    predictions = Predictions(CAPPED)
    for _ in range(20):
        predictions.record_lengths(wrote([3, 4, 5, 6, 7, 8, 9, 10, 10, 10], length_max=10))
    assert predictions.capped(group_task(sampler=LONG)).sampler.max_new_tokens == 64


@pytest.mark.parametrize("task", [segment_task(), evaluation_task()])
def test_only_groups_are_capped(task: Task) -> None:
    predictions = Predictions(CAPPED)
    for _ in range(20):
        predictions.record_lengths(wrote([1] * 10))
    assert predictions.capped(task) == task


def test_without_a_setting_nothing_is_counted_or_capped() -> None:
    predictions = Predictions(LongTailConfig())
    task = group_task(sampler=LONG)
    for _ in range(20):
        predictions.record_lengths(wrote([1] * 10))
        predictions.record_duration(wrote([1] * 10))
    assert predictions.capped(task) == task
    assert predictions.seconds(task) == UNKNOWN
    assert predictions.expected_tokens(task) == 64.0


def test_cut_tasks_count_as_longer_than_when_cut() -> None:
    predictions = Predictions(LongTailConfig(policy="cut"))
    task = group_task(sampler=LONG)
    for _ in range(40):
        predictions.record_duration(wrote([1], task=task))
        predictions.record_cut(task, elapsed_s=1.0, length=5)
    # Half of them were cut at one second; all others took two.
    assert predictions.seconds(task).survival(1.5) == pytest.approx(1.0)
    assert predictions.seconds(task).survival(2.5) == pytest.approx(0.0, abs=0.01)


def test_expected_length_is_that_of_the_bin() -> None:
    predictions = Predictions(LongTailConfig(group_by_length=True))
    hard = msgspec.structs.replace(group_task(sampler=LONG), curriculum_bin="hard")
    for _ in range(40):
        predictions.record_lengths(wrote([40], task=hard))
        predictions.record_lengths(wrote([4]))
    assert predictions.expected_tokens(hard) == pytest.approx(40.0, rel=0.2)
    assert predictions.expected_tokens(group_task(sampler=LONG)) == pytest.approx(4.0, rel=0.2)
