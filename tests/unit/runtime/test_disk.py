import errno
import os
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

from tidegate.runtime.disk import FREE_BYTES_MIN, FREE_FILES_MIN, disk_problem, is_read_only

BLOCK_BYTES = 4096


def disk(*, free_bytes: int, files: int = 1000, free_files: int = 1000) -> os.statvfs_result:
    blocks = free_bytes // BLOCK_BYTES
    return os.statvfs_result(
        (BLOCK_BYTES, BLOCK_BYTES, 1 << 20, blocks, blocks, files, free_files, free_files, 0, 255)
    )


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (disk(free_bytes=FREE_BYTES_MIN), ""),
        (disk(free_bytes=FREE_BYTES_MIN - BLOCK_BYTES), "disk full: 4.2 MB left"),
        (disk(free_bytes=0), "disk full: 0.0 MB left"),
        (disk(free_bytes=1 << 30, free_files=FREE_FILES_MIN - 1), "disk full: 15 files left"),
        (disk(free_bytes=1 << 30, files=0, free_files=0), ""),
    ],
)
def test_disk_without_space_or_files_is_a_problem(
    found: os.statvfs_result, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def statvfs(_path: object) -> os.statvfs_result:
        return found

    monkeypatch.setattr(os, "statvfs", statvfs)
    problem = disk_problem(tmp_path)
    assert problem.startswith(words)
    assert bool(problem) == bool(words)
    assert not is_read_only(tmp_path)


def test_disk_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    assert "No such file" in disk_problem(tmp_path / "gone")
    assert not is_read_only(tmp_path / "gone")


@pytest.mark.parametrize(
    ("number", "read_only"), [(errno.EROFS, True), (errno.ENOSPC, False), (errno.EMFILE, False)]
)
def test_disk_that_refuses_every_file_is_read_only(
    number: int, read_only: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(**_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert is_read_only(tmp_path) == read_only
    assert disk_problem(tmp_path).startswith("disk read-only: ") == read_only
