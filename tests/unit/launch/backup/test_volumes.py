"""Volumes of pods from one backup: filled once, whatever is killed, and never over a run that worked."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.unit.launch.backup.folders import advance, back_up, place_at
from tidegate.cli.accounting import read_accounting
from tidegate.core.errors import ConfigError, StaleFolderError
from tidegate.launch.backup import volumes
from tidegate.launch.backup.volumes import MARK, ON_VOLUMES, RestoreMark, fill, is_filled, manifest_of
from tidegate.launch.run_folder import read_record
from tidegate.runtime.object_storage.place import ObjectPlace
from tidegate.task_queue import journal_file


class Killed(BaseException):
    """The container ends here."""


def wanted(place: ObjectPlace, number: int = 1) -> RestoreMark:
    return RestoreMark(place.url, number)


def fill_all(place: ObjectPlace, volumes_at: Path, *, run_id: str, number: int = 1) -> None:
    async def each() -> None:
        for service in ON_VOLUMES:
            volume = volumes_at / service
            volume.mkdir(parents=True, exist_ok=True)
            if not is_filled(volume, wanted(place, number)):
                manifest = await manifest_of(place, number, run_id=run_id)
                await fill(place, volume, manifest, service=service, say=lambda _line: None)

    asyncio.run(each())


def run_of(volumes_at: Path, again: Path) -> Path:
    """The folders of all volumes as one run folder."""
    for service in ON_VOLUMES:
        for part in (volumes_at / service).iterdir():
            if part.is_dir():
                part.rename(again / part.name)
    return again


def test_volumes_together_are_the_run_of_the_backup_and_tasks_are_published_again(
    folder: Path, tmp_path: Path
) -> None:
    back_up(folder, tmp_path / "bucket")
    advance(folder, seq=13, step=3)
    back_up(folder, tmp_path / "bucket")
    place, record = place_at(tmp_path / "bucket"), read_record(folder)
    fill_all(place, tmp_path / "volumes", run_id=record.run_id, number=1)
    again = tmp_path / "again"
    again.mkdir()
    (again / "run.json").write_bytes((folder / "run.json").read_bytes())
    audit = read_accounting(run_of(tmp_path / "volumes", again)).audit
    assert (audit.balanced, audit.admitted) == (True, 12)
    with journal_file.reading(again / "task_queue" / journal_file.FILE_NAME) as journal:
        assert journal.execute(
            "SELECT count(*) FROM tasks WHERE published AND spec IS NOT NULL"
        ).fetchone() == (0,)


def test_volume_that_is_filled_stays_as_its_service_leaves_it(folder: Path, tmp_path: Path) -> None:
    back_up(folder, tmp_path / "bucket")
    place, volume = place_at(tmp_path / "bucket"), tmp_path / "volumes" / "learner"
    fill_all(place, tmp_path / "volumes", run_id=read_record(folder).run_id)
    (volume / "learner" / "steps.jsonl").write_text("more")
    fill_all(place, tmp_path / "volumes", run_id=read_record(folder).run_id)
    assert (volume / "learner" / "steps.jsonl").read_text() == "more"
    with pytest.raises(StaleFolderError, match=r"filled from backup 1 of .*backup 2 of .* is wanted"):
        is_filled(volume, wanted(place, 2))


def test_container_that_is_killed_while_it_fills_begins_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up(folder, tmp_path / "bucket")
    place, really = place_at(tmp_path / "bucket"), volumes.fetch
    for killed_at in range(4):
        fetched: list[str] = []

        async def fetch(
            place: Any, file: Any, into: Path, fetched: list[str] = fetched, at: int = killed_at
        ) -> None:
            if len(fetched) == at:
                (into / file.path).parent.mkdir(parents=True, exist_ok=True)
                (into / file.path).write_bytes(b"half")
                raise Killed
            await really(place, file, into)
            fetched.append(file.path)

        at = tmp_path / f"volumes-{killed_at}"
        monkeypatch.setattr(volumes, "fetch", fetch)
        with pytest.raises(Killed):
            fill_all(place, at, run_id=read_record(folder).run_id)
        monkeypatch.setattr(volumes, "fetch", really)
        fill_all(place, at, run_id=read_record(folder).run_id)
        assert b"half" not in {path.read_bytes() for path in at.rglob("*") if path.is_file()}


def test_volume_of_a_run_that_worked_is_not_filled(folder: Path, tmp_path: Path) -> None:
    back_up(folder, tmp_path / "bucket")
    place = place_at(tmp_path / "bucket")
    for name in ("learner", MARK):
        volume = tmp_path / f"of-{name}"
        volume.mkdir()
        (volume / "lost+found").mkdir()
        assert not is_filled(volume, wanted(place))
        (volume / name).write_text("x")
        with pytest.raises(StaleFolderError, match=r"The volume is not empty: it has learner|cannot be read"):
            is_filled(volume, wanted(place))


def test_backup_of_another_run_and_one_that_is_not_there_are_refused(folder: Path, tmp_path: Path) -> None:
    back_up(folder, tmp_path / "bucket")
    place = place_at(tmp_path / "bucket")
    with pytest.raises(ConfigError, match="set runId to"):
        asyncio.run(manifest_of(place, 1, run_id="another"))
    with pytest.raises(ConfigError, match=r"has no backup number 7\. it has 1"):
        asyncio.run(manifest_of(place, 7, run_id=read_record(folder).run_id))
