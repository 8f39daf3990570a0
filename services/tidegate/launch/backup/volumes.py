"""A volume of a pod from a backup, before its service starts: each service's own files, all from one backup.

A volume is filled once. ``.restored.json`` says from what, and whether it is whole: a pod that starts again leaves its
volume alone, and one that was killed while it filled begins again, because no service has seen what was there.

Task queue and trajectory store fill theirs only while no task of the run was ever published in this broker, and the
task queue does it once the store serves (``cli.backup.volume_command``). So the two are of one backup, and neither is
filled from it later, when the run went on and only one of the volumes was lost. Messages of a broker from before, of
tasks that the backup does not know, reach neither. The learner's checkpoint and the best version may be older than the
rest: that is a restore as after a crash. So a learner's volume that was lost alone is filled from the newest backup.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from tidegate.core.errors import ConfigError, NotFoundError, StaleFolderError
from tidegate.launch.backup.manifest import BackupManifest
from tidegate.launch.backup.restoring import (
    check_space,
    fetch,
    first_whole,
    none_whole,
    numbers_in,
    read_manifest,
)
from tidegate.launch.backup.snapshot import JOURNAL
from tidegate.runtime.files import replace_file, sync_folder
from tidegate.runtime.object_storage.place import ObjectPlace
from tidegate.task_queue.journal_file import publish_again

MARK = ".restored.json"
# Made with a file system, and no file of a run.
OF_THE_DISK = frozenset({"lost+found"})
# By service: what of a run folder is on its volume.
ON_VOLUMES = {
    "task_queue": ("task_queue/", "data/"),
    "trajectory_store": ("trajectory_store/",),
    "learner": ("learner/",),
    "weight_distribution": ("weight_distribution/",),
    "admission": ("admission/",),
}


class RestoreMark(msgspec.Struct, frozen=True):
    """What a volume is filled from; ``whole`` once every file is there."""

    place: str
    number: int
    whole: bool = False


def is_filled(data_dir: Path, wanted: RestoreMark) -> bool:
    """Whether the volume is already filled from the backup that is wanted, whatever the service did since.

    Raises:
        StaleFolderError: it holds files that are not of a restore, or is filled from another backup.
    """
    mark = _read_mark(data_dir)
    if mark is None:
        found = sorted(path.name for path in data_dir.iterdir() if path.name not in OF_THE_DISK)
        if found:
            raise StaleFolderError(
                f"The volume is not empty: it has {', '.join(found[:3])}",
                why="a backup is restored into new volumes, and what is on this one is of a run that worked",
                fix="leave `restore` out to go on with it, or delete the claims of the release to restore",
            )
        return False
    if (mark.place, mark.number) != (wanted.place, wanted.number):
        raise StaleFolderError(
            f"The volume is filled from backup {mark.number} of {mark.place}",
            why=f"backup {wanted.number} of {wanted.place} is wanted, and the run has gone on since",
            fix="leave `restore` out to go on, or delete the claims of the release to restore the other one",
        )
    return mark.whole


def is_lost(data_dir: Path) -> bool:
    """Whether a volume has nothing of a run: it is new, or a container that filled it was killed."""
    mark = _read_mark(data_dir)
    if mark is not None:
        return not mark.whole
    return all(path.name in OF_THE_DISK for path in data_dir.iterdir())


async def fill_from_newest(
    place: ObjectPlace, data_dir: Path, *, service: str, run_id: str, say: Callable[[str], None]
) -> bool:
    """Fill a lost volume from the newest backup that is whole; whether there is a backup at all.

    Raises:
        CorruptionError: there are backups, and of each something is missing or damaged.
        ConfigError: they are of another run, or the volume is too small.
        TidegateError: the store refused, or did not answer in time.
    """

    async def fill_from(number: int) -> BackupManifest:
        manifest = await read_manifest(place, number)
        _check_run(manifest, place, run_id=run_id)
        await fill(place, data_dir, manifest, service=service, say=say)
        return manifest

    found, passed_over = await first_whole((await numbers_in(place))[::-1], fill_from, say=say)
    if found is None and passed_over:
        raise none_whole(place, passed_over)
    return found is not None


async def manifest_of(place: ObjectPlace, number: int, *, run_id: str) -> BackupManifest:
    """The backup that is restored, of this run.

    Raises:
        ConfigError: there is no such backup, or it is of another run.
        CorruptionError, StaleFolderError: it is damaged, or another version of this program wrote it.
        TidegateError: the store refused, or did not answer in time.
    """
    try:
        manifest = await read_manifest(place, number)
    except NotFoundError as error:
        known = ", ".join(map(str, await numbers_in(place))) or "none"
        raise ConfigError(
            f"{place.url} has no backup number {number}",
            why=f"it has {known}",
            fix="set restore.number to one of them",
        ) from error
    _check_run(manifest, place, run_id=run_id)
    return manifest


def _check_run(manifest: BackupManifest, place: ObjectPlace, *, run_id: str) -> None:
    if manifest.run_id != run_id:
        raise ConfigError(
            f"{place.url} has backups of the run {manifest.run_id}",
            why=f"this release's run id is {run_id}, and journal and ledger belong to one run",
            fix=f"set runId to {manifest.run_id}",
        )


async def fill(
    place: ObjectPlace, data_dir: Path, manifest: BackupManifest, *, service: str, say: Callable[[str], None]
) -> None:
    """Write the files of a service to its volume, which ``is_filled`` has looked at.

    Raises:
        ConfigError: the volume is too small.
        CorruptionError: a part of the backup is missing or damaged.
        TidegateError: the store refused, or did not answer in time.
    """
    mark = RestoreMark(place.url, manifest.number)
    files = [file for file in manifest.files if file.path.startswith(ON_VOLUMES[service])]
    _clear(data_dir)
    check_space(sum(file.size for file in files), data_dir)
    _write_mark(data_dir, mark)
    for file in files:
        await fetch(place, file, data_dir)
    if service == "task_queue":
        publish_again(data_dir / JOURNAL)
    _sync_folders(data_dir)
    _write_mark(data_dir, msgspec.structs.replace(mark, whole=True))
    say(
        f"{service}: {len(files)} files, {sum(file.size for file in files) / 1e6:,.1f} MB of backup {manifest.number}"
    )


def _clear(data_dir: Path) -> None:
    """Remove what a container that was killed has left."""
    for left in data_dir.iterdir():
        if left.name not in OF_THE_DISK and left.name != MARK:
            shutil.rmtree(left) if left.is_dir() else left.unlink()


def _sync_folders(data_dir: Path) -> None:
    for path in (data_dir, *(each for each in data_dir.rglob("*") if each.is_dir())):
        sync_folder(path)


def _read_mark(data_dir: Path) -> RestoreMark | None:
    try:
        return msgspec.json.decode((data_dir / MARK).read_bytes(), type=RestoreMark)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise StaleFolderError(
            f"{MARK} of the volume cannot be read", why=str(error), fix="delete the claim of the volume"
        ) from error


def _write_mark(data_dir: Path, mark: RestoreMark) -> None:
    replace_file(data_dir / MARK, msgspec.json.encode(mark) + b"\n", durable=True)
