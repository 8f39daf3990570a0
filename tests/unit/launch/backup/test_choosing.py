"""The backups of a place by name, and one of them restored by its number."""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from tests.unit.launch.backup.folders import advance, back_up, head_of, objects, place_at, restored
from tidegate.cli.app import run as tidegate
from tidegate.core.errors import CorruptionError, NotFoundError
from tidegate.launch.backup.listing import list_backups
from tidegate.launch.backup.manifest import manifest_name
from tidegate.runtime.object_storage.place import OBJECT_BYTES_MAX, ObjectPlace, StoredObject


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


@pytest.mark.parametrize(
    "options", [["DIR", "--json"], ["--list", "--number", "2"], ["--list", "DIR"]], ids=" ".join
)
def test_options_that_would_change_nothing_are_refused(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [option.replace("DIR", str(tmp_path / "made")) for option in options]
    assert tidegate(["restore", (tmp_path / "nowhere").as_uri(), *given]) == 2
    assert "--list" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


class BusyPlace(ObjectPlace):
    """Between the calls of a listing, a run makes a backup and deletes one."""

    changes: list[Callable[[], None]]

    async def objects(self, folder: str) -> list[StoredObject]:
        found = await super().objects(folder)
        self._change()
        return found

    async def get(self, name: str, *, size_max: int = OBJECT_BYTES_MAX) -> bytes:
        data = await super().get(name, size_max=size_max)
        self._change()
        return data

    def _change(self) -> None:
        if self.changes:
            self.changes.pop(0)()


@pytest.mark.parametrize("calls_before", [0, 1, 2, 3])
def test_list_is_right_while_a_run_makes_a_backup_and_deletes_one(
    folder: Path, tmp_path: Path, calls_before: int
) -> None:
    bucket = tmp_path / "bucket"
    back_up(folder, bucket)
    advance(folder, seq=13, step=3)
    back_up(folder, bucket)
    place = place_at(bucket, BusyPlace)

    def change() -> None:
        advance(folder, seq=15, step=4)
        # A loop of its own: the listing's own one waits for this call.
        thread = Thread(target=back_up, args=(folder, bucket), kwargs={"keep": 2})
        thread.start()
        thread.join()

    place.changes = [lambda: None] * calls_before + [change]
    found = asyncio.run(list_backups(place))
    assert not place.changes
    assert {each.problem for each in found} == {""}
    assert {2} <= {each.number for each in found} <= {1, 2, 3}
