"""The backups of a place with what each of them holds, and whether all of its parts are there."""

import msgspec

from tidegate.core.errors import CorruptionError, StaleFolderError
from tidegate.launch.backup.manifest import OBJECTS, BackupManifest
from tidegate.launch.backup.restoring import numbers_in, read_manifest
from tidegate.runtime.object_storage.place import ObjectPlace


class ListedBackup(msgspec.Struct, frozen=True):
    """One backup. ``manifest``: None where it cannot be read; ``problem``: why it cannot be restored, empty if it can.

    Parts are looked for by name and size; only a restore compares their bytes with their digests.
    """

    number: int
    manifest: BackupManifest | None
    problem: str = ""


async def list_backups(place: ObjectPlace) -> list[ListedBackup]:
    """The backups of a run's place, the newest first.

    Raises:
        TidegateError: the store refused, or did not answer in time.
    """
    found: list[ListedBackup] = []
    stored = {each.name for each in await place.objects(OBJECTS)}
    for number in reversed(await numbers_in(place)):
        try:
            manifest = await read_manifest(place, number)
        except (CorruptionError, StaleFolderError) as error:
            found.append(ListedBackup(number, None, str(error)))
            continue
        parts = manifest.objects()
        missing = len(parts - stored)
        problem = f"{missing:,} of its {len(parts):,} parts are missing" if missing else ""
        found.append(ListedBackup(number, manifest, problem))
    return found
