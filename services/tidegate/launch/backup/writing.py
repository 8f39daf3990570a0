"""Writes backups of one run, one after the other, and deletes those beyond the number that is kept.

Consumes a snapshot; produces objects, then the manifest, which makes the backup one; then deletes old manifests, and
objects that no manifest names. A kill between any two of these leaves a complete backup in force, and garbage that the
next one uses or deletes. One process writes the backups of a run: numbers are taken by creating a manifest that is not
there, so that a second one, such as of a machine that was taken for dead, is refused.
"""

import asyncio

import msgspec

from tidegate.core.errors import ConflictError, CorruptionError, TidegateError
from tidegate.launch.backup.manifest import (
    FORMAT,
    MANIFEST_BYTES_MAX,
    MANIFESTS,
    OBJECTS,
    BackupFile,
    BackupManifest,
    decode_manifest,
    digest_of_part,
    encode_manifest,
    manifest_name,
    number_of,
    object_name,
)
from tidegate.launch.backup.source import BackupSource, FileParts
from tidegate.runtime.object_storage.place import ObjectPlace

# Parts on their way at once: a store that answers late is not waited for one by one, and memory holds so many.
UPLOADS_MAX = 4


class WrittenBackup(msgspec.Struct, frozen=True):
    """What a backup took: ``num_uploaded`` and ``bytes_uploaded`` were not there before.

    ``problem``: why older ones were not deleted; empty if they were.
    """

    manifest: BackupManifest
    num_uploaded: int
    bytes_uploaded: int
    problem: str = ""


class BackupWriter:
    """The writer of one run's place; see ``open_writer``."""

    def __init__(
        self,
        place: ObjectPlace,
        *,
        keep: int,
        manifests: dict[int, BackupManifest],
        damaged: set[int],
        sizes: dict[str, int],
    ) -> None:
        """What the place holds: intact ``manifests`` by number, numbers of ``damaged`` ones, ``sizes`` by object."""
        self._place = place
        self._keep = keep
        self._manifests = manifests
        self._damaged = damaged
        self._sizes = sizes
        self._num_uploaded = self._bytes_uploaded = 0

    async def write(self, snapshot: BackupSource) -> WrittenBackup:
        """Make a backup.

        Raises:
            ConflictError: another process wrote one meanwhile; this writer must not go on.
            TidegateError: the store refused, or did not answer in time. What was uploaded is used by the next one.
        """
        self._num_uploaded = self._bytes_uploaded = 0
        files = [await self._upload(file) async for file in snapshot.files()]
        manifest = BackupManifest(
            format=FORMAT,
            number=max((0, *self._manifests, *self._damaged)) + 1,
            run_id=snapshot.run_id,
            made_at_s=snapshot.made_at_s,
            version=str(snapshot.version),
            counts=snapshot.counts,
            files=tuple(files),
            left_out=snapshot.left_out,
        )
        try:
            await self._place.create(manifest_name(manifest.number), encode_manifest(manifest))
        except ConflictError as error:
            raise ConflictError(
                f"{self._place.url} has a backup number {manifest.number} that this process did not write",
                why="the same run was started on another machine, or its backup was made by a second process",
                fix="stop one of the two; the other one goes on from the newest backup",
            ) from error
        self._manifests[manifest.number] = manifest
        problem = ""
        try:
            await self._delete_old()
        except TidegateError as error:  # the backup is there, and the next one deletes
            problem = str(error)
        return WrittenBackup(manifest, self._num_uploaded, self._bytes_uploaded, problem)

    async def _upload(self, file: FileParts) -> BackupFile:
        digests: list[str] = []
        sending: set[asyncio.Task[None]] = set()
        try:
            async for data in file.parts:
                digest = digest_of_part(data)
                digests.append(digest)
                name = object_name(digest)
                if self._sizes.get(name) == len(data):
                    continue
                self._sizes[name] = len(data)  # the same part twice in a file is sent once
                if len(sending) == UPLOADS_MAX:
                    sending = await _some_done(sending)
                sending.add(asyncio.create_task(self._send(name, data)))
            while sending:
                sending = await _some_done(sending)
        finally:
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)
        return BackupFile(file.path, file.size, tuple(digests))

    async def _send(self, name: str, data: bytes) -> None:
        try:
            await self._place.put(name, data)
        except BaseException:
            self._sizes.pop(name, None)
            raise
        self._num_uploaded += 1
        self._bytes_uploaded += len(data)

    async def _delete_old(self) -> None:
        """Delete manifests beyond those kept, the oldest first, then what no manifest names."""
        kept = sorted(self._manifests)[-self._keep :]
        for number in sorted({*self._manifests, *self._damaged}):
            if number < kept[0]:
                await self._place.delete(manifest_name(number))
                self._manifests.pop(number, None)
                self._damaged.discard(number)
        used = {name for manifest in self._manifests.values() for name in manifest.objects()}
        unused = sorted(self._sizes.keys() - used)
        for name in unused:
            await self._place.delete(name)
            del self._sizes[name]


async def open_writer(place: ObjectPlace, *, run_id: str, keep: int) -> BackupWriter:
    """Look at what the place holds, and write after its newest backup.

    Raises:
        ConflictError: the place holds backups of another run.
        StaleFolderError: another version of this program wrote there.
        TidegateError: the store refused, or did not answer in time.
    """
    sizes = {each.name: each.size for each in await place.objects(OBJECTS)}
    manifests: dict[int, BackupManifest] = {}
    damaged: set[int] = set()
    for each in await place.objects(MANIFESTS):
        number = number_of(each.name)
        if number is None:
            continue
        try:
            manifest = decode_manifest(
                await place.get(each.name, size_max=MANIFEST_BYTES_MAX), name=each.name
            )
        except CorruptionError:
            damaged.add(number)  # no backup, and its number is taken
            continue
        if manifest.run_id != run_id:
            raise ConflictError(
                f"{place.url} holds backups of run {manifest.run_id}",
                why=f"this is run {run_id}, and one place has one run",
                fix="name another place",
            )
        manifests[number] = manifest
    return BackupWriter(place, keep=keep, manifests=manifests, damaged=damaged, sizes=sizes)


async def _some_done(sending: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    """Wait until at least one is done; returns the others.

    Raises:
        TidegateError: as the call that failed.
    """
    done, rest = await asyncio.wait(sending, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    return rest
