"""Files are replaced at once."""

import os
import stat
from pathlib import Path

import pytest

from tidegate.runtime.files import replace_file


def test_file_is_replaced_and_nothing_unfinished_stays(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    replace_file(path, b"long before")
    replace_file(path, b"after")
    assert path.read_bytes() == b"after"
    assert [entry.name for entry in tmp_path.iterdir()] == ["kept.json"]


def test_reader_that_has_the_file_open_goes_on_with_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    replace_file(path, b"before")
    with path.open("rb") as file:
        replace_file(path, b"after")
        assert file.read() == b"before"


def test_file_has_the_permissions_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "secret.json"
    replace_file(path, b"token", mode=0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_was_there_stays_when_the_new_one_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    replace_file(path, b"before")
    os.mkdir(tmp_path / "kept.json.new")
    with pytest.raises(OSError, match=r"kept\.json\.new"):
        replace_file(path, b"after")
    assert path.read_bytes() == b"before"


def test_durable_file_is_on_disk_before_its_name_and_its_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record"
    synced: list[tuple[str, bool]] = []

    def fsync(descriptor: int) -> None:
        synced.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")).name, path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    replace_file(path, b"once", durable=True)
    assert synced == [("record.new", False), (tmp_path.name, True)]
    replace_file(path, b"twice")
    assert len(synced) == 2
