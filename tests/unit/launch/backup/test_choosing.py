"""The backups of a place by name, and one of them restored by its number."""

import json
import re
from pathlib import Path

import pytest

from tests.unit.launch.backup.folders import advance, back_up, head_of, objects, restored
from tidegate.cli.app import run as tidegate
from tidegate.core.errors import CorruptionError, NotFoundError
from tidegate.launch.backup.manifest import manifest_name


def test_backup_is_restored_by_its_number_and_no_other_in_its_place(folder: Path, tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    back_up(folder, bucket)
    head, before = head_of(folder), objects(bucket)
    advance(folder, seq=13, step=3)
    back_up(folder, bucket)
    found = restored(bucket, tmp_path / "again", number=1)
    assert (found.manifest.number, found.passed_over) == (1, ())
    assert head_of(tmp_path / "again") == head
    with pytest.raises(NotFoundError, match=r"no backup number 7.*it has 1, 2"):
        restored(bucket, tmp_path / "seventh", number=7)
    (bucket / min(objects(bucket) - before)).unlink()
    with pytest.raises(CorruptionError, match=r"Backup 2 .* is not whole"):
        restored(bucket, tmp_path / "second", number=2)
    assert not (tmp_path / "second").exists()


def test_list_names_each_backup_and_what_is_missing_of_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = tmp_path / "bucket"
    back_up(folder, bucket)
    before = objects(bucket)
    advance(folder, seq=13, step=3)
    back_up(folder, bucket)
    of_second = min(objects(bucket) - before)
    advance(folder, seq=15, step=4)
    back_up(folder, bucket)
    (bucket / of_second).unlink()
    (bucket / manifest_name(3)).write_bytes(b"{}")
    assert tidegate(["restore", bucket.as_uri(), "--list", "--json"]) == 0
    third, second, first = map(json.loads, capsys.readouterr().out.splitlines())
    assert (third["number"], third["version"], second["number"], first["number"]) == (3, "", 2, 1)
    assert "damaged" in third["problem"]
    assert (first["version"], first["trained"], first["problem"]) == ("0-aaaa@3", 6, "")
    assert (second["version"], second["trained"]) == ("0-aaaa@4", 8)
    assert re.fullmatch("1 of its [0-9]+ parts are missing", second["problem"])
    assert tidegate(["restore", bucket.as_uri(), "--list"]) == 0
    assert "0-aaaa@4" in capsys.readouterr().out
    assert tidegate(["restore", bucket.as_uri()]) == 2
    assert "no folder" in capsys.readouterr().err
