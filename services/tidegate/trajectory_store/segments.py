"""Payloads beside the ledger: append-only segment files, read back by place, deleted whole.

A frame is on disk before the ledger names it, so a crash in between leaves bytes that nothing refers to, at the end of
a file that is never appended to again: every start opens a new segment. What is read back from disk is held
against its digest, because a power cut may keep the ledger's page and lose the payload's.
"""

import os
import re
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from tidegate.core.errors import CorruptionError, RecordError, UnavailableError
from tidegate.runtime.files import LOST_ERRNOS, sync_folder
from tidegate.trajectory_store.state import Location
from tidegate.wire.frame import verify_frame

SEGMENTS_FOLDER = "segments"
_NAME = re.compile(r"^(\d{8})\.frames$")
# Buffers that one writev call takes; POSIX promises at least 16, Linux takes 1024.
_BUFFERS_MAX = 512
# Descriptors of readers; a run may keep far more segments than its process may open files.
READERS_MAX = 64


def segment_path(folder: Path, segment: int) -> Path:
    """The file of a segment."""
    return folder / f"{segment:08d}.frames"


def segments_in(folder: Path) -> set[int]:
    """The segments of a folder, empty ones and the one that is written included."""
    return {int(match[1]) for name in os.listdir(folder) if (match := _NAME.match(name))}


class FrameCache:
    """The most recent frames, so that a batch that is leased at once needs no disk. Bounded: the oldest are evicted."""

    def __init__(self, *, max_bytes: int) -> None:
        """Empty; 0 bytes switch it off."""
        self._max_bytes = max_bytes
        self._frames: OrderedDict[Location, bytes] = OrderedDict()
        self._num_bytes = 0

    def put(self, location: Location, frame: bytes) -> None:
        """Keep a frame that was just written."""
        self._frames[location] = frame
        self._num_bytes += location.size
        while self._num_bytes > self._max_bytes:
            oldest, _ = self._frames.popitem(last=False)
            self._num_bytes -= oldest.size

    def get(self, location: Location) -> bytes | None:
        """The frame, if it is still here."""
        return self._frames.get(location)

    def discard(self, location: Location) -> None:
        """This frame will not be read again."""
        if self._frames.pop(location, None) is not None:
            self._num_bytes -= location.size


class Segments:
    """The segment files of one store."""

    def __init__(
        self,
        folder: Path,
        *,
        segment_bytes: int,
        cache_bytes: int,
        durability: str = "process",
        newest_known: int = 0,
    ) -> None:
        """Find the existing segments and open a new one, beyond the ``newest_known`` to the ledger.

        A power cut may take a file that the ledger refers to; its number is not given to another one.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._flush = durability == "power_loss"
        self._cache = FrameCache(max_bytes=cache_bytes)
        self._sizes = {
            segment: segment_path(folder, segment).stat().st_size for segment in segments_in(folder)
        }
        # Readers' descriptors by segment: closed with the segment, or for another one.
        self._readers: dict[int, int] = {}
        self._active = max((*self._sizes, newest_known))
        self._writer = -1
        self._begin()

    def _path(self, segment: int) -> Path:
        return segment_path(self._folder, segment)

    def _begin(self) -> None:
        """Write the next frames to a new segment; while the disk refuses one, the present segment stays."""
        following = self._active + 1
        writer = os.open(
            self._path(following), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644
        )
        if self._writer >= 0:
            os.close(self._writer)
        self._active, self._writer = following, writer
        self._sizes[self._active] = 0
        if self._flush:
            sync_folder(self._folder)

    @property
    def active(self) -> int:
        """The segment that is being written."""
        return self._active

    @property
    def sizes(self) -> dict[int, int]:
        """Bytes of each segment on disk, oldest first."""
        return dict(sorted(self._sizes.items()))

    def append(self, frames: Sequence[bytes]) -> list[Location]:
        """Write frames one after the other and return where they lie; durable as configured when it returns.

        Raises:
            OSError: the disk is full or broken. What was written is never referred to.
        """
        if self._sizes[self._active] >= self._segment_bytes:
            self._begin()
        locations: list[Location] = []
        # The file's own size: an append that failed half-way left bytes behind.
        offset = os.fstat(self._writer).st_size
        for frame in frames:
            locations.append(Location(self._active, offset, len(frame)))
            offset += len(frame)
        for start in range(0, len(frames), _BUFFERS_MAX):
            _write_all(self._writer, frames[start : start + _BUFFERS_MAX])
        if self._flush:
            os.fsync(self._writer)
        self._sizes[self._active] = offset
        for location, frame in zip(locations, frames, strict=True):
            self._cache.put(location, frame)
        return locations

    def read(self, location: Location) -> bytes:
        """One frame.

        Raises:
            CorruptionError: it is gone, cut short, or changed since it was written.
            UnavailableError: it may be there, and cannot be read at the moment.
        """
        cached = self._cache.get(location)
        if cached is not None:
            return cached
        try:
            frame = os.pread(self._reader(location.segment), location.size, location.offset)
            verify_frame(frame)
        except (OSError, RecordError) as error:
            if isinstance(error, OSError) and error.errno not in LOST_ERRNOS:
                raise UnavailableError(
                    f"Segment {location.segment} cannot be read",
                    why=str(error),
                    fix="free descriptors and memory on this machine; nothing was lost",
                ) from error
            raise CorruptionError(
                f"The payload at byte {location.offset} of segment {location.segment} is not what was written",
                why=str(error),
                fix="nothing: its trajectories are dropped; `durability: power_loss` prevents this for a power cut",
            ) from error
        return frame

    def _reader(self, segment: int) -> int:
        if segment not in self._readers:
            if len(self._readers) >= READERS_MAX:
                os.close(self._readers.pop(next(iter(self._readers))))
            self._readers[segment] = os.open(self._path(segment), os.O_RDONLY | os.O_CLOEXEC)
        return self._readers[segment]

    def forget(self, location: Location) -> None:
        """Evict a frame that will not be leased again."""
        self._cache.discard(location)

    def holds(self, location: Location) -> bool:
        """Whether the frame's bytes are still on disk, judged by the file's size."""
        return location.offset + location.size <= self._sizes.get(location.segment, -1)

    def delete(self, segment: int) -> None:
        """Remove a segment that is not needed; never the active one."""
        assert segment != self._active
        reader = self._readers.pop(segment, None)
        if reader is not None:
            os.close(reader)
        self._path(segment).unlink(missing_ok=True)
        self._sizes.pop(segment, None)

    def close(self) -> None:
        """Close every file."""
        os.close(self._writer)
        for reader in self._readers.values():
            os.close(reader)
        self._readers.clear()


def _write_all(descriptor: int, frames: Sequence[bytes]) -> None:
    written = os.writev(descriptor, frames)
    total = sum(len(frame) for frame in frames)
    if written < total:
        # A short write is rare (a signal, a nearly full disk): the rest goes out as one buffer, or raises.
        rest = memoryview(b"".join(frames))[written:]
        while rest:
            rest = rest[os.write(descriptor, rest) :]
