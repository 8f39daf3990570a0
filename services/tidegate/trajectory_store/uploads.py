"""Payloads too large for a message: uploaded first, referred to afterwards, and gone once the ledger has them.

Files are named by their digest, so an upload that is repeated is the same file. Bounded in bytes; space is freed when
the message that refers to an upload is accepted, or when none did within its lifetime. Of a lifetime only time counts
in which messages are read: while the store is full, or its machine is suspended, the message waits in the stream.
"""

import contextlib
import os
import re
from collections.abc import Generator
from pathlib import Path

from tidegate.core.errors import (
    BackpressureError,
    CorruptionError,
    NotFoundError,
    RecordError,
    UnavailableError,
)
from tidegate.runtime.files import LOST_ERRNOS, sync_folder
from tidegate.wire.digest import DIGEST_BYTES, Digest, digest_of
from tidegate.wire.reference import PayloadReference

# One frame; a group whose tensors exceed this must be split by its environment.
UPLOAD_BYTES_MAX = 64 * 1024 * 1024
# Between two looks at most so many seconds of a lifetime count: in more the store stood still, or a clock jumped.
COUNTED_S_MAX = 180.0
_PART = ".part"
_NAME = re.compile(rf"^[0-9a-f]{{{2 * DIGEST_BYTES}}}$")


@contextlib.contextmanager
def _disk_errors() -> Generator[None]:
    """The sender of an upload repeats it until the disk has space."""
    try:
        yield
    except OSError as error:
        raise UnavailableError(
            "The upload cannot be written", why=str(error), fix="free space on the disk of the run"
        ) from error


class Upload:
    """One upload in progress. Ends with ``finish`` or ``abandon``."""

    def __init__(self, area: "UploadArea", reference: PayloadReference, *, number: int, path: Path) -> None:
        """Use ``UploadArea.begin``."""
        self._area = area
        self._reference = reference
        self._number = number
        self._path = path
        self._file = path.open("wb")
        self._num_bytes = 0
        self._hash = Digest()

    def write(self, chunk: bytes | memoryview) -> None:
        """Append a chunk.

        Raises:
            RecordError: more bytes came than the reference promises.
            UnavailableError: the disk is full.
        """
        self._num_bytes += len(chunk)
        if self._num_bytes > self._reference.size:
            raise RecordError(
                f"The upload {self._reference.payload_id!r} is longer than the {self._reference.size} bytes it promised"
            )
        with _disk_errors():
            self._file.write(chunk)
        self._hash.update(chunk)

    def finish(self) -> None:
        """Verify and keep it.

        Raises:
            CorruptionError: the bytes do not match the reference.
            UnavailableError: the disk is full.
        """
        if self._num_bytes != self._reference.size or self._hash.digest() != self._reference.digest:
            raise CorruptionError(
                f"The upload {self._reference.payload_id!r} does not match its digest",
                why=f"{self._num_bytes} of {self._reference.size} bytes came",
                fix="upload it again",
            )
        with _disk_errors():
            self._file.flush()
            if self._area.durable:
                os.fsync(self._file.fileno())
            self._file.close()
            self._area.keep(self._path, self._reference, number=self._number)

    def abandon(self) -> None:
        """Free its reserved space; fine after ``finish``."""
        self._area.release(self._number)
        with contextlib.suppress(OSError):  # closing writes what is buffered, which a full disk refuses again
            self._file.close()
        self._path.unlink(missing_ok=True)


class UploadArea:
    """The folder of uploads that no message has referred to yet."""

    def __init__(self, folder: Path, *, bytes_max: int, ttl_s: float, durable: bool, now_s: float) -> None:
        """Find what an earlier process kept; its unfinished uploads are gone."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._bytes_max = bytes_max
        self._ttl_s = ttl_s
        self.durable = durable
        # Bytes, and the seconds of its lifetime that passed.
        self._kept: dict[bytes, tuple[int, float]] = {}
        self._looked_at_s = now_s
        self._reserved: dict[int, int] = {}
        self._num_started = 0
        for path in folder.iterdir():
            if path.suffix == _PART:
                path.unlink()
            elif _NAME.match(path.name):
                self._kept[bytes.fromhex(path.name)] = (path.stat().st_size, 0.0)

    @property
    def num_bytes(self) -> int:
        """Bytes kept and promised."""
        return sum(size for size, _ in self._kept.values()) + sum(self._reserved.values())

    def begin(self, reference: PayloadReference) -> Upload | None:
        """Start an upload; None when these very bytes are here already, which then are kept for a whole lifetime more.

        Raises:
            RecordError: the reference is malformed or promises too much.
            BackpressureError: the area is full; it empties as messages are accepted.
            UnavailableError: the disk is full.
        """
        if len(reference.digest) != DIGEST_BYTES or not 0 < reference.size <= UPLOAD_BYTES_MAX:
            raise RecordError(
                f"The upload {reference.payload_id!r} promises {reference.size} bytes",
                why=f"between 1 and {UPLOAD_BYTES_MAX} bytes with a digest of {DIGEST_BYTES} are taken",
                fix="send fewer samples a group, or shorter ones",
            )
        if reference.digest in self._kept:
            self._kept[reference.digest] = (reference.size, 0.0)
            return None
        if self.num_bytes + reference.size > self._bytes_max:
            raise BackpressureError(
                f"There is no space for the upload {reference.payload_id!r} of {reference.size} bytes",
                why=f"{self.num_bytes} of {self._bytes_max} bytes wait for their message",
                fix="try again; raise `uploads_bytes_max` if this lasts",
            )
        self._num_started += 1
        path = self._folder / f"{self._num_started}{_PART}"
        with _disk_errors():
            upload = Upload(self, reference, number=self._num_started, path=path)
        self._reserved[self._num_started] = reference.size
        return upload

    def keep(self, path: Path, reference: PayloadReference, *, number: int) -> None:
        """An upload is whole: name it by its digest."""
        path.replace(self._path(reference.digest))
        if self.durable:
            sync_folder(self._folder)
        self.release(number)
        self._kept[reference.digest] = (reference.size, 0.0)

    def release(self, number: int) -> None:
        """An upload ended: its reserved space is free."""
        self._reserved.pop(number, None)

    def read(self, reference: PayloadReference) -> bytes:
        """The bytes a message refers to.

        Raises:
            NotFoundError: they were never uploaded, or no message referred to them in time.
            CorruptionError: the file changed on disk, or the disk lost it.
            OSError: it cannot be read at the moment.
        """
        if reference.digest not in self._kept:
            raise NotFoundError(
                f"The payload {reference.payload_id!r} is not here",
                why="it was never uploaded, or it expired before its message was read",
            )
        try:
            data = self._path(reference.digest).read_bytes()
        except FileNotFoundError as error:
            # Its message would be read again and again, and with it all those that are read at once.
            del self._kept[reference.digest]
            raise NotFoundError(
                f"The payload {reference.payload_id!r} is gone", why="its file was deleted"
            ) from error
        except OSError as error:
            if error.errno not in LOST_ERRNOS:
                raise
            raise CorruptionError(
                f"The payload {reference.payload_id!r} cannot be read", why=str(error)
            ) from error
        if digest_of(data) != reference.digest:
            raise CorruptionError(f"The payload {reference.payload_id!r} changed on disk")
        return data

    def remove(self, digest: bytes) -> None:
        """Remove one that the ledger has, or that no message needs."""
        if self._kept.pop(digest, None) is not None:
            self._path(digest).unlink(missing_ok=True)

    def expire(self, *, now_s: float, is_reading: bool) -> int:
        """Remove what no message referred to within its lifetime; returns how many.

        ``is_reading``: whether messages were read since the last look.
        """
        counted_s = min(max(now_s - self._looked_at_s, 0.0), COUNTED_S_MAX) if is_reading else 0.0
        self._looked_at_s = now_s
        self._kept = {digest: (size, age_s + counted_s) for digest, (size, age_s) in self._kept.items()}
        old = [digest for digest, (_, age_s) in self._kept.items() if age_s > self._ttl_s]
        for digest in old:
            self.remove(digest)
        return len(old)

    def _path(self, digest: bytes) -> Path:
        return self._folder / digest.hex()
