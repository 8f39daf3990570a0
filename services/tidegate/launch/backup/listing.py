"""The backups of a place with what each of them holds, and whether all of its parts are there."""

import msgspec

from tidegate.core.errors import CorruptionError, NotFoundError, StaleFolderError
from tidegate.launch.backup.manifest import OBJECTS, BackupManifest
from tidegate.launch.backup.restoring import numbers_in, read_manifest
from tidegate.runtime.object_storage.place import ObjectPlace


class ListedBackup(msgspec.Struct, frozen=True):
    """One backup. ``manifest``: None where it cannot be read; ``problem``: why it cannot be restored, empty if it can.

    Parts are looked for by name; only a restore reads them, and compares their bytes with their digests.
    """

    number: int
    manifest: BackupManifest | None
    problem: str = ""


async def list_backups(place: ObjectPlace) -> list[ListedBackup]:
    """The backups of a run's place, the newest first; those that a run deletes meanwhile are left out.

    Raises:
        TidegateError: the store refused, or did not answer in time.
    """
    found: list[ListedBackup] = []
    for number in reversed(await numbers_in(place)):
        try:
            found.append(ListedBackup(number, await read_manifest(place, number)))
        except NotFoundError:
            continue
        except (CorruptionError, StaleFolderError) as error:
            found.append(ListedBackup(number, None, str(error)))
    # After the manifests, which are written once their parts are there, and deleted before them.
    stored = {each.name for each in await place.objects(OBJECTS)}
    left = set(await numbers_in(place))
    return [_with_parts(each, stored) for each in found if each.number in left]


def _with_parts(backup: ListedBackup, stored: set[str]) -> ListedBackup:
    """The backup, with how many of its parts are missing."""
    if backup.manifest is None:
        return backup
    parts = backup.manifest.objects()
    missing = len(parts - stored)
    problem = f"{missing:,} of its {len(parts):,} parts are missing" if missing else ""
    return msgspec.structs.replace(backup, problem=problem)
