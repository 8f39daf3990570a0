"""Which steps are answered together and when, and which messages are refused."""

import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.inference.support import checked, make_policy, random_observations, random_step
from tidegate.core.ids import RunId
from tidegate.inference.state import (
    ActNow,
    Idle,
    RefusedError,
    WaitForOthers,
    WaitingStep,
    check_opening,
    decide,
)
from tidegate.runtime.config import PolicyConfig
from tidegate.wire.vector_step import ActStep, StepTensor

RUN = RunId("test-run")
seconds = st.floats(0.0, 10.0)


def test_nothing_waits() -> None:
    assert decide([], answered_at_s=[9.9], now_s=10.0, rows_max=64, wait_s=1.0) == Idle()


def test_steps_are_answered_at_once_when_no_other_stream_is_expected() -> None:
    waiting = [WaitingStep(16, 10.0), WaitingStep(16, 10.0)]
    assert decide(waiting, answered_at_s=[], now_s=10.0, rows_max=64, wait_s=1.0) == ActNow(2)
    long_ago = [0.0, 8.9]
    assert decide(waiting, answered_at_s=long_ago, now_s=10.0, rows_max=64, wait_s=1.0) == ActNow(2)


def test_a_batch_waits_for_a_stream_that_was_just_answered_but_no_longer_than_its_oldest_step_may() -> None:
    waiting = [WaitingStep(16, 10.0)]
    expected = decide(waiting, answered_at_s=[9.5, 9.2], now_s=10.1, rows_max=64, wait_s=1.0)
    assert expected == WaitForOthers(10.5)
    oldest = decide(waiting, answered_at_s=[10.4], now_s=10.5, rows_max=64, wait_s=1.0)
    assert oldest == WaitForOthers(11.0)
    assert decide(waiting, answered_at_s=[10.4], now_s=11.0, rows_max=64, wait_s=1.0) == ActNow(1)


def test_a_full_batch_never_waits_and_leaves_the_newest_steps() -> None:
    waiting = [WaitingStep(16, 10.0)] * 5
    assert decide(waiting, answered_at_s=[10.0], now_s=10.0, rows_max=48, wait_s=1.0) == ActNow(3)
    assert decide(waiting, answered_at_s=[10.0], now_s=10.0, rows_max=50, wait_s=1.0) == ActNow(3)


def test_a_step_with_more_environments_than_a_batch_is_answered_alone() -> None:
    waiting = [WaitingStep(100, 10.0), WaitingStep(1, 10.0)]
    assert decide(waiting, answered_at_s=[10.0], now_s=10.0, rows_max=10, wait_s=1.0) == ActNow(1)


@given(
    rows=st.lists(st.integers(1, 40), max_size=8),
    since_s=st.lists(seconds, min_size=8, max_size=8),
    answered_at_s=st.lists(seconds, max_size=4),
    rows_max=st.integers(1, 100),
    wait_s=st.floats(0.0, 2.0),
    now_s=seconds,
)
def test_every_step_is_answered_within_its_wait_and_no_batch_is_too_large(
    rows: list[int],
    since_s: list[float],
    answered_at_s: list[float],
    rows_max: int,
    wait_s: float,
    now_s: float,
) -> None:
    arrived = sorted(min(each, now_s) for each in since_s[: len(rows)])
    waiting = [WaitingStep(count, at_s) for count, at_s in zip(rows, arrived, strict=True)]
    answered = [min(each, now_s) for each in answered_at_s]
    match decide(waiting, answered_at_s=answered, now_s=now_s, rows_max=rows_max, wait_s=wait_s):
        case Idle():
            assert not waiting
        case ActNow(count=count):
            assert 1 <= count <= len(waiting)
            assert count == 1 or sum(step.num_rows for step in waiting[:count]) <= rows_max
        case WaitForOthers(until_s=until_s):
            assert now_s < until_s <= waiting[0].since_s + wait_s
            assert sum(step.num_rows for step in waiting) < rows_max
            later = decide(waiting, answered_at_s=answered, now_s=until_s, rows_max=rows_max, wait_s=wait_s)
            assert later == ActNow(len(waiting))


def test_opening_of_this_run_and_policy_is_accepted_and_every_other_one_refused() -> None:
    _, layout = make_policy()
    opening = layout.opening(run_id=RUN, instance="actor-0")
    check_opening(opening, layout, run=RUN)
    other = StepTensor("observations", "float32", (5,))
    for wrong, what in (
        ({"run_id": "other"}, "run 'other'"),
        ({"instance": ""}, "no instance"),
        ({"num_envs": 4}, "num_envs is 3"),
        ({"observations": (other,)}, r"float32\[5\].*float32\[4\]"),
        ({"outputs_size": 2}, r"outputs \[2\].*outputs \[0\]"),
        ({"memory_size": 2}, r"memory \[2\].*memory \[0\]"),
    ):
        with pytest.raises(RefusedError, match=what) as refused:
            check_opening(msgspec.structs.replace(opening, **wrong), layout, run=RUN)
        assert refused.value.reason == "opening"


def test_truncated_and_padded_steps_are_refused() -> None:
    _, layout = make_policy(PolicyConfig(kind="mlp", hidden=(8,), memory="gru", memory_units=2))
    step = random_step(layout, np.random.default_rng(0))
    checked(layout, step)
    for field, change in itertools.product(("observations", "memory"), (b"", b"12345678")):
        whole: bytes = getattr(step, field)
        for wrong in (whole[: len(whole) // 2], whole[:-1], whole + change + b"x"):
            with pytest.raises(RefusedError, match="bytes") as refused:
                checked(layout, msgspec.structs.replace(step, **{field: wrong}))
            assert refused.value.reason == "size"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_with_their_environment(value: float) -> None:
    _, layout = make_policy()
    observations = random_observations(layout, np.random.default_rng(0))
    observations["observations"][1, 2] = value
    with pytest.raises(
        RefusedError, match="actor-0 has values that are not finite, first in environment 1"
    ) as refused:
        checked(layout, ActStep(1, 2, layout.join(observations), b""))
    assert refused.value.reason == "not_finite"


def test_steps_are_counted_from_one() -> None:
    _, layout = make_policy()
    with pytest.raises(RefusedError, match="number 0"):
        checked(layout, random_step(layout, np.random.default_rng(0), number=0))
