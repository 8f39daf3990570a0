"""A run folder from the newest complete backup of a place, on a machine that has nothing else of the run.

Files are written beside the folder and compared part by part with the manifest; the folder is there once it is whole.
A backup of which something is missing or damaged is passed over for the one before it, and said, unless it was asked
for by its number.
"""

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from tidegate.core.errors import ConfigError, CorruptionError, NotFoundError
from tidegate.core.ids import parse_version
from tidegate.launch.backup.manifest import (
    MANIFEST_BYTES_MAX,
    MANIFESTS,
    BackupFile,
    BackupManifest,
    decode_manifest,
    digest_of_part,
    manifest_name,
    number_of,
    object_name,
)
from tidegate.launch.backup.snapshot import JOURNAL, LEDGER
from tidegate.runtime.files import sync_folder
from tidegate.runtime.object_storage.place import ObjectPlace
from tidegate.task_queue.journal_file import publish_again
from tidegate.trajectory_store import schema
from tidegate.trajectory_store.snapshot import trained_beyond

# Parts on their way at once, in memory.
DOWNLOADS_MAX = 4

UsedT = TypeVar("UsedT")


class RestoredBackup(msgspec.Struct, frozen=True):
    """``passed_over``: newer backups that are not whole, and why. ``updates_lost``: made after its checkpoint."""

    manifest: BackupManifest
    passed_over: tuple[str, ...]
    updates_lost: int


async def find_run(place: ObjectPlace, open_below: Callable[[str], ObjectPlace]) -> ObjectPlace:
    """The place itself, if a run's backups are in it, or the one run below it.

    Raises:
        NotFoundError: there is none.
        ConfigError: there are several.
        TidegateError: the store refused, or did not answer in time.
    """
    if await numbers_in(place):
        return place
    found = [name for name in await place.folders() if await numbers_in(open_below(name))]
    if not found:
        raise NotFoundError(
            f"{place.url} holds no backup", fix="name the place of `backup.to`, or the run's folder in it"
        )
    if len(found) > 1:
        raise ConfigError(
            f"{place.url} holds backups of {len(found)} runs",
            fix=f"add one of these to the address: {', '.join(found)}",
        )
    return open_below(found[0])


async def numbers_in(place: ObjectPlace) -> list[int]:
    """The numbers of the backups of a place, oldest first, whole or not."""
    numbers = (number_of(each.name) for each in await place.objects(MANIFESTS))
    return sorted(number for number in numbers if number is not None)


async def restore(
    place: ObjectPlace, folder: Path, *, say: Callable[[str], None], number: int | None = None
) -> RestoredBackup:
    """Fill ``folder``, which must be empty or not there. ``number``: of the backup, by default the newest whole one.

    Raises:
        ConfigError: it is not empty, or its disk is too small.
        NotFoundError: there is no backup, or none of this number.
        CorruptionError: no backup is whole, or not the one of this number.
        TidegateError: the store refused, or did not answer in time.
    """
    unfinished = _place_beside(folder)

    async def fetch_all(each: int) -> tuple[BackupManifest, int]:
        shutil.rmtree(unfinished, ignore_errors=True)
        manifest = await read_manifest(place, each)
        check_space(manifest.num_bytes(), unfinished.parent)
        say(f"backup {each}: {len(manifest.files)} files, {manifest.num_bytes() / 1e6:,.1f} MB")
        for file in manifest.files:
            await fetch(place, file, unfinished)
        publish_again(unfinished / JOURNAL)
        with schema.reading(unfinished / LEDGER) as ledger:
            _, updates_lost = trained_beyond(ledger, parse_version(manifest.version))
        return manifest, updates_lost

    try:
        candidates = _candidates(await numbers_in(place), number, url=place.url)
        found, passed_over = await first_whole(candidates, fetch_all, say=say)
        if found is not None:
            unfinished.chmod(0o700)
            unfinished.replace(folder)
            sync_folder(unfinished.parent)
            return RestoredBackup(found[0], tuple(passed_over), found[1])
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    if not passed_over:
        raise NotFoundError(f"{place.url} holds no backup")
    if number is not None:
        raise CorruptionError(
            f"Backup {number} in {place.url} is not whole",
            why=passed_over[0],
            fix="restore another one: `tidegate restore PLACE --list` names them",
        )
    raise none_whole(place, passed_over)


async def first_whole(
    numbers: Sequence[int], use: Callable[[int], Awaitable[UsedT]], *, say: Callable[[str], None]
) -> tuple[UsedT | None, list[str]]:
    """What ``use`` made of the first backup of which nothing is missing or damaged, and why others were passed over.

    None where none of them is whole, or there is none.
    """
    passed_over: list[str] = []
    for number in numbers:
        try:
            return await use(number), passed_over
        except (CorruptionError, NotFoundError) as error:
            passed_over.append(f"backup {number}: {error}")
            say(f"backup {number} is passed over: {error}")
    return None, passed_over


def none_whole(place: ObjectPlace, passed_over: Sequence[str]) -> CorruptionError:
    """Why nothing is restored from a place with backups."""
    return CorruptionError(
        f"No backup in {place.url} is whole",
        why="; ".join(passed_over),
        fix="restore an older version of its objects",
    )


def _candidates(numbers: list[int], number: int | None, *, url: str) -> list[int]:
    """The backups to try, in order."""
    if number is None:
        return numbers[::-1]
    if number not in numbers:
        known = ", ".join(map(str, numbers)) or "none"
        raise NotFoundError(f"{url} has no backup number {number}", why=f"it has {known}")
    return [number]


def _place_beside(folder: Path) -> Path:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is not empty", fix="name a folder that does not exist")
    whole = folder.absolute()
    whole.parent.mkdir(parents=True, exist_ok=True)
    return whole.with_name(f".{whole.name}.restoring")


async def read_manifest(place: ObjectPlace, number: int) -> BackupManifest:
    """What a backup consists of.

    Raises:
        NotFoundError: there is no such backup.
        CorruptionError, StaleFolderError: its manifest is damaged, or of another version of this program.
        TidegateError: the store refused, or did not answer in time.
    """
    name = manifest_name(number)
    return decode_manifest(await place.get(name, size_max=MANIFEST_BYTES_MAX), name=name)


def check_space(needed: int, parent: Path) -> None:
    """Refuse a disk with fewer free bytes.

    Raises:
        ConfigError: it is too small.
    """
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise ConfigError(
            f"The disk of {parent} is too small",
            why=f"the backup has {needed / 1e6:,.0f} MB, and {free / 1e6:,.0f} MB are free",
            fix="free space, or name a folder on another disk",
        )


async def fetch(place: ObjectPlace, file: BackupFile, folder: Path) -> None:
    """Write a file of a backup below a folder, and sync it.

    Raises:
        CorruptionError, NotFoundError: a part of it is damaged, or missing.
        TidegateError: the store refused, or did not answer in time.
    """
    path = folder / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    size = 0
    with path.open("wb") as written:
        for start in range(0, len(file.parts), DOWNLOADS_MAX):
            digests = file.parts[start : start + DOWNLOADS_MAX]
            for data in await asyncio.gather(*(_part(place, digest) for digest in digests)):
                written.write(data)
                size += len(data)
        if size != file.size:
            raise CorruptionError(f"{file.path} has {size:,} bytes", why=f"it had {file.size:,}")
        written.flush()
        os.fsync(written.fileno())


async def _part(place: ObjectPlace, digest: str) -> bytes:
    data = await place.get(object_name(digest))
    if digest_of_part(data) != digest:
        raise CorruptionError(
            f"{place.url}/{object_name(digest)} is damaged", why="its digest does not match"
        )
    return data
