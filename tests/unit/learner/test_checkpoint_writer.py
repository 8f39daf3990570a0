"""Checkpoints on request."""

import asyncio
import dataclasses
import math
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.service_harness import make_context
from tests.support.settings import make_settings
from tests.unit.learner.test_checkpoint import checkpoint
from tests.unit.learner.trajectories import version
from tidegate.core.errors import ConflictError, TidegateError, UnauthenticatedError, UnavailableError
from tidegate.core.ids import PolicyVersion
from tidegate.learner.checkpoint import Checkpoint, CheckpointFolder
from tidegate.learner.checkpoint_writer import CheckpointWriter, grace_problem


def open_writer(folder: Path) -> CheckpointWriter:
    """One that writes nothing: no step of a learner comes."""
    unused = cast(Any, None)
    return CheckpointWriter(unused, CheckpointFolder(folder, keep=1), unused)


class RefusingStore:
    """A store that answers every report of a checkpoint with an error."""

    def __init__(self, error: TidegateError) -> None:
        self._error = error

    async def mark_checkpointed(self, _version: PolicyVersion) -> None:
        raise self._error


async def write_one(folder: Path, error: TidegateError) -> CheckpointWriter:
    """A writer after one checkpoint, whose report the store refused with ``error``."""
    context = make_context("learner", make_settings(folder, broker_url=""), bus=cast(Any, None))
    store = cast(Any, RefusingStore(error))
    writer = CheckpointWriter(context, CheckpointFolder(folder / "checkpoints", keep=1), store)
    await writer.begin(checkpoint(version(7)), copied_in_s=0.0, early=False)
    await writer.wait()
    return writer


class Stopwatch:
    """A clock whose time passes while a checkpoint is written."""

    def __init__(self) -> None:
        self.s = 100.0

    def monotonic_s(self) -> float:
        return self.s

    def now_s(self) -> float:
        return self.s


class TimedFolder(CheckpointFolder):
    """Writes take as long as the test says; ``early``: how each was written."""

    def __init__(self, directory: Path, clock: Stopwatch) -> None:
        super().__init__(directory, keep=2)
        self._clock = clock
        self.takes_s = 0.0
        self.early: list[bool] = []

    def write(self, checkpoint: Checkpoint, *, early: bool = False) -> Path:
        self._clock.s += self.takes_s
        self.early.append(early)
        return super().write(checkpoint, early=early)


async def test_next_early_checkpoint_is_affordable_when_the_newest_cost_one_percent_of_the_time(
    tmp_path: Path,
) -> None:
    clock = Stopwatch()
    context = make_context("learner", make_settings(tmp_path, broker_url=""), bus=cast(Any, None))
    context = dataclasses.replace(context, clock=clock)
    folder = TimedFolder(tmp_path / "checkpoints", clock)
    store = cast(Any, RefusingStore(UnavailableError("away")))
    writer = CheckpointWriter(context, folder, store)
    assert writer.affordable_at_s == math.inf, "none before the first"
    await writer.begin(checkpoint(version(1)), copied_in_s=0.0, early=False)
    assert writer.affordable_at_s == math.inf, "none while one is written"
    await writer.wait()
    assert writer.affordable_at_s == 105.0
    folder.takes_s = 2.0
    await writer.begin(checkpoint(version(2)), copied_in_s=0.5, early=True)
    await writer.wait()
    assert writer.affordable_at_s == pytest.approx(100.0 + 250.0)
    assert folder.early == [False, True]


async def test_report_that_a_later_one_repeats_ends_no_training(tmp_path: Path) -> None:
    writer = await write_one(tmp_path, UnauthenticatedError("The credential was rotated"))
    assert writer.newest == version(7)
    with pytest.raises(ConflictError):
        await write_one(tmp_path / "other", ConflictError("Another learner took over"))


async def test_request_that_waits_when_training_ends_is_refused(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    request = asyncio.create_task(writer.request())
    await asyncio.sleep(0)
    assert writer.requested
    writer.close()
    with pytest.raises(UnavailableError, match="stopped before"):
        await request


async def test_request_after_training_ended_is_refused_at_once(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    writer.close()
    with pytest.raises(UnavailableError, match="stopped before"):
        await asyncio.wait_for(writer.request(), timeout=60.0)


def test_checkpoint_that_does_not_fit_into_a_stop_names_the_setting_and_its_value() -> None:
    assert grace_problem(0.5, drain_timeout_s=10.0) == ""
    problem = grace_problem(83.2, drain_timeout_s=10.0)
    assert "a checkpoint takes 83.2 s and a stop leaves 10 s" in problem
    assert "Set drain_timeout_s to 167" in problem
