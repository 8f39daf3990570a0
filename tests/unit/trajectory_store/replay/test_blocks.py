"""Files of image blocks on a disk that is full for a while."""

import errno
import os
from pathlib import Path

import pytest

from tidegate.trajectory_store.replay.blocks import BlockFiles, BlockPlace

DATA = b"x" * 100


def read(files: BlockFiles, place: BlockPlace) -> bytes:
    return bytes(files.read(place.file, place.offset, place.offset + place.size))


@pytest.mark.parametrize("call", ["open", "ftruncate"])
def test_file_that_cannot_be_opened_is_tried_again_at_the_next_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    files = BlockFiles(tmp_path, file_bytes=150)
    first = files.append(DATA, flush=False)

    def refuse(*_args: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, call, refuse)
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                files.append(DATA, flush=False)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["00000001.blocks"]
    small = files.append(b"rest of the file", flush=False)
    assert small.file == first.file
    second = files.append(DATA, flush=False)
    assert second.file == first.file + 1
    assert read(files, first) == read(files, second) == DATA
    assert read(files, small) == b"rest of the file"
    files.close()
