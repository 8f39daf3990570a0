"""The lags of a disturbed time are read from the lines that the learner writes."""

from pathlib import Path

import msgspec
import pytest

from benchmarks.disturbances import lags_of
from benchmarks.steps_file import StepsFile
from tests.unit.learner.test_steps_log import LINE
from tidegate.core.errors import TidegateError
from tidegate.learner.steps_log import STEPS_FILE, StepLine, StepsLog


def line(step: int, by_lag: dict[int, int]) -> StepLine:
    return msgspec.structs.replace(LINE, step=step, by_lag=by_lag)


def test_each_trained_trajectory_counts_with_its_lag(tmp_path: Path) -> None:
    log = StepsLog(tmp_path / STEPS_FILE, bytes_max=1_000_000)
    log.append(line(1, {2: 1, 0: 2}))
    log.append(line(2, {1: 3}))
    log.close()
    assert lags_of(StepsFile(tmp_path / STEPS_FILE).read()) == [0, 0, 1, 1, 1, 2]


def test_time_without_a_lag_is_no_figure() -> None:
    with pytest.raises(TidegateError, match="lags"):
        lags_of([])
