import math
import os

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from tidegate.catalogue import actor, learner
from tidegate.core.errors import RecordError
from tidegate.runtime.stats_board import StatsBoard
from tidegate.wire.stats import STATISTICS_MAX, VALUE_MAX, ServiceStats, decode_stats, encode_stats

SNAPSHOTS = st.builds(
    ServiceStats,
    service=st.text(max_size=8),
    instance=st.text(max_size=8),
    state=st.text(max_size=8),
    at_s=st.floats(-1e11, 1e11),
    started_at_s=st.floats(-1e11, 1e11),
    values=st.dictionaries(st.text(max_size=8), st.floats(-VALUE_MAX, VALUE_MAX), max_size=4),
    labels=st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=4),
)


@given(stats=SNAPSHOTS)
def test_snapshot_comes_back_as_it_was_published(stats: ServiceStats) -> None:
    assert decode_stats(encode_stats(stats)) == stats


@given(stats=SNAPSHOTS, noise=st.binary(max_size=60), data=st.data())
def test_any_bytes_give_a_snapshot_or_a_record_error(
    stats: ServiceStats, noise: bytes, data: st.DataObject
) -> None:
    mutated = bytearray(encode_stats(stats))
    mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    for candidate in (noise, bytes(mutated)):
        try:
            decode_stats(candidate)
        except RecordError:
            continue


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1e300])
def test_a_value_that_no_arithmetic_survives_is_refused(value: float) -> None:
    stats = ServiceStats("task_queue", "task_queue", "ready", 1.0, 0.0, {"running_trajectories": value})
    with pytest.raises(RecordError, match="running_trajectories"):
        decode_stats(encode_stats(stats))


def test_board_of_a_diverging_learner_is_reported_at_the_bounds_and_not_refused_whole() -> None:
    board = StatsBoard(service="learner", instance="learner", started_at_s=0.0)
    board.set(learner.VERSION_STEP, 7)
    board.set(learner.diagnostic("loss"), 1e17)
    board.set(learner.diagnostic("entropy"), -math.inf)
    board.set(learner.diagnostic("gradient_norm"), math.nan)
    reported = decode_stats(encode_stats(board.snapshot(at_s=0.0))).values
    assert reported == {
        learner.VERSION_STEP: 7.0,
        learner.diagnostic("loss"): VALUE_MAX,
        learner.diagnostic("entropy"): -VALUE_MAX,
    }


def test_text_that_is_no_utf_8_is_reported_with_a_question_mark_in_its_place() -> None:
    """As the error of an environment that names a file by ``os.fsdecode``."""
    board = StatsBoard(service="actor", instance="actor-0", started_at_s=0.0)
    board.label(actor.ENVIRONMENT_FAULT, os.fsdecode(b"no file fa\xe7ade"))
    board.label(actor.TASK_REFUSAL, str(RecordError("It failed", why=os.fsdecode(b"\xe7"))))
    assert decode_stats(encode_stats(board.snapshot(at_s=0.0))).labels == {
        actor.ENVIRONMENT_FAULT: "no file fa?ade",
        actor.TASK_REFUSAL: "It failed. ?.",
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"service": "s" * 200},
        {"instance": "i" * 200},
        {"state": "?" * 200},
        {"at_s": math.nan},
        {"started_at_s": -1e300},
        {"values": {f"v{index}": 0.0 for index in range(STATISTICS_MAX + 1)}},
        {"labels": {f"l{index}": "" for index in range(STATISTICS_MAX + 1)}},
    ],
)
def test_report_that_no_service_makes_is_refused(changes: dict[str, object]) -> None:
    stats = msgspec.structs.replace(ServiceStats("actor", "actor-0", "ready", 1.0, 0.0), **changes)
    with pytest.raises(RecordError):
        decode_stats(encode_stats(stats))
