"""Reads versions from the folder of weight distribution without changing it, also while the service writes there."""

import base64
from pathlib import Path

import msgspec

from tidegate.core.errors import CorruptionError, TidegateError, UnknownVersionError
from tidegate.core.ids import PolicyVersion
from tidegate.core.records import PolicySnapshot
from tidegate.weight_distribution.intake import ANNOUNCEMENT_KEY
from tidegate.weight_distribution.tensor_file import Extent, TensorFile, read_file
from tidegate.weight_distribution.versions import SUFFIX
from tidegate.wire.announcement import Announcement
from tidegate.wire.digest import digest_of
from tidegate.wire.policy_payload import tensor_of


class _Located(msgspec.Struct, frozen=True):
    path: Path
    extent: Extent


class VersionsOnDisk:
    """The versions whose files were in ``directory`` when this was made. Files that cannot be read are left out."""

    def __init__(self, directory: Path) -> None:
        self._announcements: dict[PolicyVersion, Announcement] = {}
        self._own_files: dict[PolicyVersion, Path] = {}
        self._contents: dict[bytes, _Located] = {}
        for path in sorted(directory.glob(f"*{SUFFIX}")):
            try:
                self._add(read_file(path))
            except (TidegateError, OSError, KeyError, ValueError):
                continue  # no version, damaged, or pruned meanwhile

    def _add(self, file: TensorFile) -> None:
        announcement = Announcement.from_bytes(
            base64.b64decode(file.metadata[ANNOUNCEMENT_KEY], validate=True)
        )
        self._announcements[announcement.version] = announcement
        self._own_files[announcement.version] = file.path
        for entry in announcement.message.tensors:
            if entry.name in file.extents:
                self._contents[entry.digest] = _Located(file.path, file.extents[entry.name])

    def versions(self) -> list[PolicyVersion]:
        """The versions that are whole, oldest first: a file may outlive its own for tensors that newer ones share."""
        return [
            version
            for version, announcement in self._announcements.items()
            if all(entry.digest in self._contents for entry in announcement.message.tensors)
        ]

    def files_of(self, version: PolicyVersion) -> list[Path]:
        """The files that hold a version: its own, and those with tensors that it shares; none where it is not whole."""
        if version not in self.versions():
            return []
        entries = self._announcements[version].message.tensors
        shared = {self._contents[entry.digest].path for entry in entries}
        return sorted({self._own_files[version], *shared})

    def read(self, version: PolicyVersion) -> PolicySnapshot:
        """A version, every tensor checked against its digest.

        Raises:
            UnknownVersionError: it is not there, or was pruned meanwhile.
            CorruptionError: a tensor does not match its digest.
        """
        if version not in self.versions():
            raise UnknownVersionError(f"Policy {version} is not kept")
        announcement = self._announcements[version]
        tensors = {
            entry.name: tensor_of(entry, memoryview(self._bytes(entry.digest, name=entry.name)))
            for entry in announcement.message.tensors
        }
        return announcement.snapshot(tensors)

    def _bytes(self, digest: bytes, *, name: str) -> bytes:
        located = self._contents[digest]
        try:
            with located.path.open("rb") as file:
                file.seek(located.extent.start)
                data = file.read(located.extent.size)
        except FileNotFoundError as error:
            raise UnknownVersionError(
                "The version was pruned while it was read", fix="take a newer one"
            ) from error
        if digest_of(data) != digest:
            raise CorruptionError(f"Tensor {name!r} in {located.path.name} does not match its digest")
        return data
