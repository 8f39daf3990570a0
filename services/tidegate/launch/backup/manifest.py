"""What a backup consists of: a manifest with the objects of each file, by digest. It is written last.

An object is a part of a file under the SHA-256 of its bytes, so that what two backups share is stored once, and what a
reader gets is compared with its name. A backup is there once its manifest is: an upload that was killed leaves objects
that no manifest names, and the backup before it in force.
"""

import hashlib
import re
from pathlib import PurePosixPath
from typing import Annotated

import msgspec

from tidegate.core.errors import CorruptionError, StaleFolderError
from tidegate.runtime.object_storage.place import OBJECT_BYTES_MAX

FORMAT = 1
OBJECTS = "objects"
MANIFESTS = "manifests"
# The list of a run with 200 GB in its folder takes 2 MB.
MANIFEST_BYTES_MAX = 64 << 20
_NAME = re.compile(rf"{MANIFESTS}/([0-9]{{8}})\.json")

Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, msgspec.Meta(ge=0)]


class BackupFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file by its path in the run folder, its bytes, and the digests of its parts in their order."""

    path: str
    size: Count
    parts: tuple[Digest, ...]


class BackupCounts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Trajectories of the ledger and the journal in the backup.

    ``trained``: among them ``beyond_checkpoint``, by updates that its checkpoint does not hold. ``waiting`` arrived and
    were not trained. ``in_flight`` were admitted and had not arrived.
    """

    admitted: Count
    trained: Count
    beyond_checkpoint: Count
    waiting: Count
    in_flight: Count


class BackupManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One backup. ``version``: of its checkpoint. ``left_out``: what the run needs and the backup does not have."""

    format: int
    number: Count
    run_id: str
    made_at_s: float
    version: str
    counts: BackupCounts
    files: tuple[BackupFile, ...]
    left_out: tuple[str, ...] = ()

    def objects(self) -> set[str]:
        """The names of all its objects."""
        return {object_name(digest) for file in self.files for digest in file.parts}

    def num_bytes(self) -> int:
        """Bytes of all its files."""
        return sum(file.size for file in self.files)


class _Signed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A manifest as it is stored: with the digest of its own bytes."""

    sha256: Digest
    manifest: msgspec.Raw


class _ManifestFormat(msgspec.Struct, frozen=True):
    format: int


def object_name(digest: str) -> str:
    """The object with these bytes."""
    return f"{OBJECTS}/{digest[:2]}/{digest}"


def manifest_name(number: int) -> str:
    """The object with the manifest of a backup."""
    return f"{MANIFESTS}/{number:08d}.json"


def number_of(name: str) -> int | None:
    """The number of the backup whose manifest an object is; None of another object."""
    found = _NAME.fullmatch(name)
    return None if found is None else int(found[1])


def digest_of_part(data: bytes) -> str:
    """The digest under which a part is stored."""
    return hashlib.sha256(data).hexdigest()


def encode_manifest(manifest: BackupManifest) -> bytes:
    """The bytes of its object."""
    raw = msgspec.json.encode(manifest)
    return msgspec.json.encode(_Signed(digest_of_part(raw), msgspec.Raw(raw)))


def decode_manifest(data: bytes, *, name: str) -> BackupManifest:
    """The manifest in an object, of which nothing is believed before it is checked.

    Raises:
        CorruptionError: it is damaged, or names a file that is not below a run folder.
        StaleFolderError: another version of this program wrote it.
    """
    try:
        signed = msgspec.json.decode(data, type=_Signed)
        raw = bytes(signed.manifest)
        if digest_of_part(raw) != signed.sha256:
            raise CorruptionError(f"{name} is damaged", why="its digest does not match")
        found = msgspec.json.decode(raw, type=_ManifestFormat).format
        if found != FORMAT:
            raise StaleFolderError(
                f"{name} has format {found}, and this version reads {FORMAT}",
                fix="use the version that wrote it",
            )
        manifest = msgspec.json.decode(raw, type=BackupManifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError(f"{name} is damaged", why=str(error)) from error
    paths = [file.path for file in manifest.files]
    wrong = [file.path for file in manifest.files if not _is_sound(file)]
    if wrong or len(set(paths)) != len(paths):
        raise CorruptionError(f"{name} names files that no backup has", why=", ".join(wrong[:3]))
    return manifest


def _is_sound(file: BackupFile) -> bool:
    path = PurePosixPath(file.path)
    inside = bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in file.path
    return inside and len(file.parts) == -(-file.size // OBJECT_BYTES_MAX)
