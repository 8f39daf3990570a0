"""Rollbacks: where they may go, what is durable, and what each caller is answered."""

import asyncio
import errno
from pathlib import Path

import pytest

from tests.unit.learner.test_checkpoint import checkpoint, open_folder, spoil
from tests.unit.learner.trajectories import ROOT, version
from tidegate.core.errors import (
    BackpressureError,
    ConflictError,
    CorruptionError,
    NotFoundError,
    UnavailableError,
)
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.core.staleness import Lineage, LineageTree
from tidegate.learner.checkpoint import CheckpointFolder
from tidegate.learner.rollback import (
    REQUESTS_MAX,
    ROLLBACK_FILE,
    Rollback,
    RollbackFile,
    RollbackRequests,
    find_target,
)
from tidegate.runtime.clock import SystemClock

FORK = LineageName("1-bbbb")
TREE = LineageTree().add_all((Lineage(ROOT), Lineage(FORK, parent=ROOT, fork_step=4)))
HEAD = version(7, FORK)
KEPT = [version(2), version(4), version(6, FORK)]


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    made = open_folder(tmp_path / "checkpoints")
    for held in KEPT:
        made.write(checkpoint(held))
    return made


@pytest.fixture
def file(tmp_path: Path) -> RollbackFile:
    return RollbackFile(tmp_path / ROLLBACK_FILE)


@pytest.fixture
def requests(folder: CheckpointFolder, file: RollbackFile) -> RollbackRequests:
    return RollbackRequests(folder, file, SystemClock())


def ask(requests: RollbackRequests, wanted: PolicyVersion) -> asyncio.Task[Rollback]:
    return asyncio.create_task(requests.request(wanted, reason="collapsed", by="ana"))


@pytest.mark.parametrize("wanted", KEPT)
def test_version_of_a_kept_checkpoint_is_the_target(wanted: PolicyVersion) -> None:
    assert find_target(wanted, KEPT, TREE) == wanted


@pytest.mark.parametrize("step", [2, 4])
def test_version_that_a_restore_renamed_is_found_under_the_name_of_its_checkpoint(step: int) -> None:
    assert find_target(version(step, FORK), KEPT, TREE) == version(step)


@pytest.mark.parametrize(
    "wanted", [version(3), version(5, FORK), version(6), version(4, LineageName("9-none"))]
)
def test_version_without_a_checkpoint_is_refused_and_those_with_one_are_named(wanted: PolicyVersion) -> None:
    with pytest.raises(NotFoundError, match=r"0-\w+@2, 0-\w+@4, 1-bbbb@6.*optimiser.*keep_checkpoints"):
        find_target(wanted, KEPT, TREE)


def test_file_holds_the_rollback_until_it_is_removed(file: RollbackFile) -> None:
    assert file.read() is None
    given = Rollback(head=HEAD, target=version(4), reason="collapsed", by="ana", at_s=3.0)
    file.write(given)
    assert file.read() == given
    file.remove()
    assert file.read() is None
    file.remove()


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b'{"head": 1}'])
def test_damaged_file_is_named(tmp_path: Path, file: RollbackFile, data: bytes) -> None:
    (tmp_path / ROLLBACK_FILE).write_bytes(data)
    with pytest.raises(CorruptionError, match=r"rollback\.json cannot be read"):
        file.read()


async def test_request_is_answered_once_the_rollback_is_durable(
    requests: RollbackRequests, file: RollbackFile
) -> None:
    asked = ask(requests, version(4, FORK))
    await asyncio.sleep(0)
    assert requests.waiting
    assert file.read() is None
    assert await requests.decide(HEAD, TREE)
    assert not requests.waiting
    accepted = await asked
    assert (accepted.head, accepted.target) == (HEAD, version(4))
    assert (accepted.reason, accepted.by) == ("collapsed", "ana")
    assert file.read() == accepted


async def test_refused_request_leaves_no_trace_and_the_loop_goes_on(
    requests: RollbackRequests, file: RollbackFile
) -> None:
    asked = ask(requests, version(3))
    await asyncio.sleep(0)
    assert not await requests.decide(HEAD, TREE)
    with pytest.raises(NotFoundError, match="No kept checkpoint holds version"):
        await asked
    assert file.read() is None


async def test_damaged_checkpoint_is_no_target(
    requests: RollbackRequests, file: RollbackFile, folder: CheckpointFolder
) -> None:
    spoil(folder.paths()[1] / "trainer.safetensors")
    asked = ask(requests, version(4))
    await asyncio.sleep(0)
    assert not await requests.decide(HEAD, TREE)
    with pytest.raises(CorruptionError, match=r"trainer\.safetensors"):
        await asked
    assert file.read() is None


async def test_full_disk_refuses_the_rollback(
    requests: RollbackRequests, file: RollbackFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(rollback: Rollback) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(file, "write", refuse)
    asked = ask(requests, version(4))
    await asyncio.sleep(0)
    assert not await requests.decide(HEAD, TREE)
    with pytest.raises(UnavailableError, match="No space left"):
        await asked


async def test_one_of_several_requests_is_accepted(requests: RollbackRequests, file: RollbackFile) -> None:
    left, refused, first, second = (
        ask(requests, each) for each in (version(6, FORK), version(3), version(2), version(4))
    )
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.sleep(0)
    assert await requests.decide(HEAD, TREE)
    with pytest.raises(NotFoundError):
        await refused
    accepted = await first
    assert accepted.target == version(2)
    with pytest.raises(ConflictError, match="was accepted at the same moment"):
        await second
    assert file.read() == accepted


async def test_requests_are_bounded(requests: RollbackRequests) -> None:
    asked = [ask(requests, version(4)) for _ in range(REQUESTS_MAX)]
    await asyncio.sleep(0)
    with pytest.raises(BackpressureError):
        await requests.request(version(4), reason="", by="")
    requests.close()
    for each in asked:
        with pytest.raises(UnavailableError, match="stopped before"):
            await each


async def test_request_after_training_ended_is_refused_at_once(requests: RollbackRequests) -> None:
    requests.close()
    with pytest.raises(UnavailableError, match="stopped before"):
        await asyncio.wait_for(requests.request(version(4), reason="", by=""), timeout=60.0)
