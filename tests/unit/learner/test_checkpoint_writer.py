"""Checkpoints on request."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.service_harness import make_context
from tests.support.settings import make_settings
from tests.unit.learner.test_checkpoint import checkpoint
from tests.unit.learner.trajectories import version
from tidegate.core.errors import ConflictError, TidegateError, UnauthenticatedError, UnavailableError
from tidegate.core.ids import PolicyVersion
from tidegate.learner.checkpoint import CheckpointFolder
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
    await writer.begin(checkpoint(version(7)))
    await writer.wait()
    return writer


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
