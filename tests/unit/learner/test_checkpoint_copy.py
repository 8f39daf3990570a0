from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.unit.learner.test_checkpoint import RUN, checkpoint, open_folder
from tests.unit.learner.trajectories import version
from tidegate.core.errors import CorruptionError, RecordError, UnavailableError
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.learner.checkpoint import PARTIAL_PREFIX, checkpoints_in
from tidegate.learner.checkpoint_copy import CheckpointCopy
from tidegate.wire.snapshots import FileHeader


class Sender:
    """Sends files, as a learner does; ``breaks_after``: that many of them, its connection ends."""

    def __init__(self, files: list[tuple[str, bytes]], *, breaks_after: int = 99) -> None:
        self.known: list[PolicyVersion | None] = []
        self.num_closed = 0
        self._files = files
        self._left: list[tuple[str, bytes]] = []
        self._breaks_after = breaks_after

    def read_checkpoint(self, *, known: PolicyVersion | None) -> "Sender":
        self.known.append(known)
        self._left = list(self._files)
        return self

    async def next_file(self) -> FileHeader | None:
        if len(self._files) - len(self._left) == self._breaks_after:
            raise UnavailableError("it was killed")
        return FileHeader(self._left[0][0], len(self._left[0][1])) if self._left else None

    async def bytes_of(self, _file: FileHeader) -> AsyncIterator[bytes]:
        _, data = self._left.pop(0)
        yield data[:10]
        yield data[10:]

    def close(self) -> None:
        self.num_closed += 1


def files_of(path: Path) -> list[tuple[str, bytes]]:
    return [(f"learner/checkpoints/{path.name}/{each.name}", each.read_bytes()) for each in path.iterdir()]


def names_in(folder: Path) -> list[str]:
    return sorted(each.relative_to(folder).as_posix() for each in folder.rglob("*"))


def copy_into(directory: Path, sender: Sender) -> CheckpointCopy:
    return CheckpointCopy(directory, cast("Any", sender))


@pytest.fixture
def sent(tmp_path: Path) -> list[tuple[str, bytes]]:
    folder = open_folder(tmp_path / "working")
    for step in (1, 2, 3):
        folder.write(checkpoint(version(step)))
    return files_of(folder.paths()[-1])


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The folder of one that worked once, and whose branch was abandoned since."""
    folder = open_folder(tmp_path / "own")
    for step in (7, 8, 9, 10):
        folder.write(checkpoint(version(step)))
    return tmp_path / "own"


async def test_copy_takes_the_place_of_all_that_was_there(own: Path, sent: list[tuple[str, bytes]]) -> None:
    sender = Sender(sent)
    copy = copy_into(own, sender)
    assert copy.newest() == version(10)
    assert await copy.refresh() == version(3)
    assert sender.known == [version(10)]
    assert sender.num_closed == 1
    assert list(checkpoints_in(own).values()) == [version(3)] == [copy.newest()]
    found = open_folder(own).newest(run=RUN, policy_kind="mlp")
    assert found is not None
    assert found.checkpoint.policy["w"].tobytes() == checkpoint(version(3)).policy["w"].tobytes()
    assert await copy.refresh() == version(3), "the same one again does no harm"


async def test_nothing_is_copied_where_the_sender_has_nothing_newer(own: Path) -> None:
    copy = copy_into(own, Sender([]))
    assert await copy.refresh() is None
    assert copy.newest() == version(10)


@pytest.mark.parametrize("num_files", range(4))
async def test_sender_that_ends_leaves_what_was_there(
    own: Path, sent: list[tuple[str, bytes]], num_files: int
) -> None:
    copy = copy_into(own, Sender(sent, breaks_after=num_files))
    with pytest.raises(UnavailableError):
        await copy.refresh()
    assert copy.newest() == version(10)
    copy = copy_into(own, Sender(sent))
    assert await copy.refresh() == version(3)
    assert not [name for name in names_in(own) if PARTIAL_PREFIX in name]


@pytest.mark.parametrize("index", range(4))
async def test_damaged_and_missing_files_are_not_taken(
    own: Path, sent: list[tuple[str, bytes]], index: int
) -> None:
    name, data = sent[index]
    damaged = [*sent[:index], (name, data[:-1] + bytes([data[-1] ^ 1])), *sent[index + 1 :]]
    missing = [*sent[:index], *sent[index + 1 :]]
    for files in (damaged, missing):
        copy = copy_into(own, Sender(files))
        with pytest.raises(CorruptionError):
            await copy.refresh()
        assert copy.newest() == version(10)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "manifest.json",
        "learner/checkpoints/00000009.main.1/../../../x",
        "learner/checkpoints/00000009.main.1/other.bin",
        "learner/checkpoints/latest/manifest.json",
        "learner/checkpoints/.partial-00000009.main.1/manifest.json",
        "",
    ],
)
async def test_paths_that_are_of_no_checkpoint_are_refused(own: Path, path: str) -> None:
    before = names_in(own)
    with pytest.raises(RecordError, match="no file of the checkpoint"):
        await copy_into(own, Sender([(path, b"x" * 20)])).refresh()
    assert names_in(own) == before


async def test_files_of_two_checkpoints_are_refused(own: Path, sent: list[tuple[str, bytes]]) -> None:
    name = f"learner/checkpoints/00000009.{LineageName('main')}.9/manifest.json"
    with pytest.raises(RecordError):
        await copy_into(own, Sender([*sent[:2], (name, sent[2][1])])).refresh()
