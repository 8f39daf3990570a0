"""The last versions on disk: one safetensors file each, immutable, content-addressed.

A file holds the tensors that are new in its version; tensors whose bytes an older file holds already are read from
there (``state.plan_reuse``), so a frozen base is stored once. The file's metadata carries the announcement. One write
and one rename make a version, and nothing is synced: the page cache outlives ``kill -9`` of any process, after a
power cut the digests show what is missing, and the learner, which keeps its newest version, publishes it again.

The order of life is write, announce, prune; recovery accepts a crash between any two of them.
"""

import base64
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from tidegate.core.errors import CorruptionError, TidegateError, UnavailableError, UnknownVersionError
from tidegate.core.ids import PolicyVersion
from tidegate.runtime.files import LOST_ERRNOS
from tidegate.weight_distribution.announced import manifest_of
from tidegate.weight_distribution.intake import ANNOUNCEMENT_KEY, Intake
from tidegate.weight_distribution.state import Manifest, Region, check_manifest, payload_regions, plan_reuse
from tidegate.weight_distribution.tensor_file import Extent, digest_in, read_file, read_mapped
from tidegate.wire.announcement import Announcement
from tidegate.wire.subjects import CHUNK_BYTES

SUFFIX = ".safetensors"
PARTIAL_SUFFIX = ".partial"


class HeldFile(msgspec.Struct, frozen=True):
    """One file: which contents it holds where. ``size`` in bytes, without its header."""

    path: Path
    extents: dict[bytes, Extent]
    size: int


class TensorPiece(msgspec.Struct, frozen=True):
    """Bytes ``[offset, offset + size)`` of a version's payload lie in file number ``file`` from ``start`` on."""

    offset: int
    size: int
    file: int
    start: int


class StoredVersion(msgspec.Struct, frozen=True):
    """A version that is whole on disk. ``sequence`` orders versions by arrival and numbers the version's own file."""

    sequence: int
    manifest: Manifest
    announcement: bytes
    pieces: tuple[TensorPiece, ...]

    def files(self) -> set[int]:
        """The files it needs, its own included."""
        return {self.sequence, *(piece.file for piece in self.pieces)}


class VersionStore:
    """The kept versions, oldest first. ``prune`` holds them to ``keep_versions`` and frees files without a reader.

    Versions that are held (``hold``) are kept besides these.
    """

    def __init__(
        self, directory: Path, *, keep_versions: int, held: frozenset[PolicyVersion] = frozenset()
    ) -> None:
        """Recover what an earlier process left in ``directory``; ``problems`` lists what could not be kept, and why."""
        self._directory = directory
        self._held = held
        self._keep_versions = keep_versions
        self._versions: dict[PolicyVersion, StoredVersion] = {}
        self._files: dict[int, HeldFile] = {}
        self._num_readers: dict[int, int] = {}
        self._held_in: dict[bytes, int] = {}
        self._next_sequence = 1
        self._num_intakes = 0
        self.problems: list[str] = []
        directory.mkdir(parents=True, exist_ok=True)
        self._recover()

    @property
    def head(self) -> StoredVersion | None:
        """The newest version."""
        return next(reversed(self._versions.values()), None)

    def kept(self) -> dict[PolicyVersion, bytes]:
        """The versions that can be pulled, oldest first, with their digests."""
        return {version: stored.manifest.digest for version, stored in self._versions.items()}

    def disk_bytes(self) -> int:
        """Bytes of tensors on disk."""
        return sum(file.size for file in self._files.values())

    # -- taking a version in ---------------------------------------------------------------------------------------

    def begin(self, manifest: Manifest, announcement: bytes) -> Intake:
        """Start to take a version in.

        Raises:
            RecordError: the manifest is impossible.
        """
        check_manifest(manifest)
        sizes = {number: file.size for number, file in self._files.items()}
        reused = plan_reuse(manifest.tensors, held_in=self._held_in, file_bytes=sizes)
        self._num_intakes += 1
        path = self._directory / f"{self._num_intakes}{PARTIAL_SUFFIX}"
        return Intake(manifest, announcement, path=path, reused=reused)

    def commit(self, intake: Intake) -> StoredVersion:
        """Make a version whole and immutable: from here on it survives a crash.

        Raises:
            CorruptionError: its digests do not match.
            RecordError: its payload is incomplete.
            UnavailableError: a file that it shares bytes with was pruned while it arrived.
        """
        intake.finish()
        if any(number not in self._files for number in intake.reused.values()):
            raise UnavailableError(
                f"Policy {intake.manifest.version} shares bytes with a version that was pruned while it arrived",
                fix="publish it again",
            )
        sequence = self._next_sequence
        self._next_sequence += 1
        path = self._directory / f"{sequence:012d}{SUFFIX}"
        intake.path.replace(path)
        size = sum(extent.size for extent in intake.extents.values())
        self._add_file(sequence, HeldFile(path=path, extents=intake.extents, size=size))
        stored = self._locate(sequence, intake.manifest, intake.announcement)
        self._add_version(stored)
        return stored

    def discard(self, version: PolicyVersion) -> None:
        """Take back a version that was refused when it was to be announced."""
        if version in self._versions:
            self._drop(version)

    def hold(self, versions: frozenset[PolicyVersion]) -> None:
        """Keep these besides the newest, in place of those that were held; the caller bounds their number."""
        self._held = versions

    def prune(self) -> None:
        """Let go of the oldest versions beyond ``keep_versions``; the newest are kept besides those held."""
        newest = list(self._versions)[-self._keep_versions :]
        for version in set(self._versions) - set(newest) - self._held:
            self._drop(version)

    # -- reading ---------------------------------------------------------------------------------------------------

    def get(self, version: PolicyVersion) -> StoredVersion:
        """A kept version.

        Raises:
            UnknownVersionError: it is not, or no longer, here.
        """
        stored = self._versions.get(version)
        if stored is None:
            raise UnknownVersionError(
                f"Policy {version} is not kept here",
                why=f"the newest is {self.head.manifest.version if self.head else 'none yet'}",
                fix="follow POLICY to a newer version",
            )
        return stored

    def payload(self, version: PolicyVersion) -> bytes:
        """All bytes of a version, joined: for those small enough to be copied.

        Raises:
            UnknownVersionError: it is not here.
        """
        return b"".join(
            bytes(view) for view in self.read(version, names=(), offset=0, chunk_bytes=CHUNK_BYTES)
        )

    def read(
        self, version: PolicyVersion, *, names: Sequence[str], offset: int, chunk_bytes: int
    ) -> Iterator[memoryview]:
        """The bytes of the named tensors in chunks; each is valid until the next. See ``payload_regions``.

        Raises:
            UnknownVersionError: the version is not here, or was pruned while it was read.
            RecordError: a tensor is unknown, or the offset is past the end.
        """
        stored = self.get(version)
        regions = payload_regions(stored.manifest, names=names, offset=offset)
        parts = [part for region in regions for part in _parts(stored.pieces, region)]
        paths = {number: self._files[number].path for number, _ in parts}
        return _read_parts([(paths[number], extent) for number, extent in parts], chunk_bytes=chunk_bytes)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _add_file(self, number: int, file: HeldFile) -> None:
        self._files[number] = file
        for digest in file.extents:
            self._held_in[digest] = number

    def _locate(self, sequence: int, manifest: Manifest, announcement: bytes) -> StoredVersion:
        """Find every tensor, in its own file or in the newest older one that holds its bytes."""
        pieces: list[TensorPiece] = []
        for tensor in manifest.tensors:
            number = self._held_in.get(tensor.digest)
            if number is None:
                raise CorruptionError(f"Tensor {tensor.name!r} of {manifest.version} is in no file")
            start = self._files[number].extents[tensor.digest].start
            last = pieces[-1] if pieces else None
            if last is not None and last.file == number and last.start + last.size == start:
                pieces[-1] = TensorPiece(last.offset, last.size + tensor.size, number, last.start)
            else:
                pieces.append(TensorPiece(tensor.offset, tensor.size, number, start))
        return StoredVersion(sequence, manifest, announcement, tuple(pieces))

    def _add_version(self, stored: StoredVersion) -> None:
        self._versions[stored.manifest.version] = stored
        for number in stored.files():
            self._num_readers[number] = self._num_readers.get(number, 0) + 1

    def _drop(self, version: PolicyVersion) -> None:
        stored = self._versions.pop(version)
        for number in stored.files():
            self._num_readers[number] -= 1
            if self._num_readers[number] == 0:
                del self._num_readers[number]
                self._remove_file(number)

    def _remove_file(self, number: int) -> None:
        file = self._files.pop(number)
        for digest in file.extents:
            if self._held_in.get(digest) == number:
                del self._held_in[digest]
        file.path.unlink(missing_ok=True)

    def _recover(self) -> None:
        """Read every header, then keep the newest whole versions and drop the rest.

        A file can outlive its own version, for the sake of tensors that newer ones share with it; such a version need
        not be whole any more, so versions are put together from the newest backwards until enough are found.
        """
        for partial in self._directory.glob(f"*{PARTIAL_SUFFIX}"):
            partial.unlink()
        located: list[tuple[PolicyVersion, StoredVersion | CorruptionError, str]] = []
        for path in sorted(self._directory.glob(f"*{SUFFIX}")):
            try:
                sequence, manifest, announcement = self._recover_file(path)
            except (TidegateError, OSError) as error:
                _check_lost(error)
                self.problems.append(f"{path.name}: {error}")
                if path.stem.isdecimal():
                    with suppress(OSError):  # also of a disk that is read-only by now
                        path.unlink()
                continue
            # Before newer files are known: a version reads what was there when it was written, and is whole although
            # a newer file is not.
            try:
                stored = self._locate(sequence, manifest, announcement)
            except CorruptionError as error:
                located.append((manifest.version, error, path.name))
            else:
                located.append((manifest.version, stored, path.name))
        found: list[StoredVersion] = []
        for version, stored, name in reversed(located):
            if len(found) >= self._keep_versions and version not in self._held:
                continue
            try:
                if isinstance(stored, CorruptionError):
                    raise stored
                if not found:
                    self._check_bytes(stored)
            except (CorruptionError, OSError) as error:
                _check_lost(error)
                self.problems.append(f"{name}: {error}")
            else:
                found.append(stored)
        for stored in reversed(found):
            self._add_version(stored)
        for number in [number for number in self._files if number not in self._num_readers]:
            self._remove_file(number)
        self._next_sequence = max([0, *self._files]) + 1

    def _recover_file(self, path: Path) -> tuple[int, Manifest, bytes]:
        try:
            sequence = int(path.stem)
            header = read_file(path)
            announcement = base64.b64decode(header.metadata[ANNOUNCEMENT_KEY], validate=True)
            manifest = manifest_of(Announcement.from_bytes(announcement))
        except (KeyError, ValueError) as error:
            raise CorruptionError("It is no version of this service", why=repr(error)) from error
        check_manifest(manifest)
        extents = {
            tensor.digest: header.extents[tensor.name]
            for tensor in manifest.tensors
            if tensor.name in header.extents
        }
        self._add_file(sequence, HeldFile(path=path, extents=extents, size=header.size))
        return sequence, manifest, announcement

    def _check_bytes(self, stored: StoredVersion) -> None:
        """Whether the newest version's bytes are unchanged; a reader of an older one checks it anyway."""
        for tensor in stored.manifest.tensors:
            # A tensor lies in one file, and an empty one in none.
            held = next(_parts(stored.pieces, Region(tensor.offset, tensor.offset + tensor.size)), None)
            number, extent = held or (stored.sequence, Extent(0, 0))
            path = self._files[number].path
            if digest_in(path, extent) != tensor.digest:
                raise CorruptionError(f"Tensor {tensor.name!r} in {path.name} does not match its digest")


def _check_lost(error: Exception) -> None:
    """Raise it again where it says nothing of the file: too few descriptors, or permissions."""
    if isinstance(error, OSError) and error.errno not in LOST_ERRNOS:
        raise error


def _parts(pieces: Sequence[TensorPiece], region: Region) -> Iterator[tuple[int, Extent]]:
    for piece in pieces:
        start, stop = max(region.start, piece.offset), min(region.stop, piece.offset + piece.size)
        if start < stop:
            yield piece.file, Extent(start=piece.start + start - piece.offset, size=stop - start)


def _read_parts(parts: Sequence[tuple[Path, Extent]], *, chunk_bytes: int) -> Iterator[memoryview]:
    for path, extent in parts:
        try:
            yield from read_mapped(path, extent, chunk_bytes=chunk_bytes)
        except FileNotFoundError as error:
            raise UnknownVersionError(
                "The version was pruned while it was pulled", fix="follow POLICY to a newer version"
            ) from error
