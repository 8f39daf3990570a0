"""Frames of images in LZ4 blocks: append-only files beside the rings, deleted when the last page in them is evicted.

A block holds ``FRAMES_PER_BLOCK`` neighbouring frames, so that reading a transition decompresses one or two of them.
Eight is the middle between both costs: of eight Atari games under random play (84 x 84) blocks are 14 to 65 times
smaller than their frames (one frame alone: 4 to 29, blocks of 64: 20 to 75), and one is decompressed in 3 to 9 us (one
of 64: 33 to 100). Blocks are stored and sent as they are: only the learner decompresses them.
"""

import mmap
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import lz4.block
import msgspec
import numpy as np
from numpy.typing import NDArray

from tidegate.core.errors import CorruptionError
from tidegate.core.records import Array

FRAMES_PER_BLOCK = 8
_NAME = re.compile(r"^(\d{8})\.blocks$")
_COUNT = np.dtype("<u4")


class BlockPlace(msgspec.Struct, frozen=True):
    """Bytes ``[offset, offset + size)`` of a file."""

    file: int
    offset: int
    size: int


class FrameBlocks(msgspec.Struct, frozen=True, eq=False):
    """The blocks of one image tensor of one page: ``stops`` has their ends in the file, after its first byte."""

    file: int
    num_frames: int
    stops: NDArray[np.int64]


def encode_blocks(images: Sequence[Array]) -> bytes:
    """The frames of a page's image tensors (K, ...), in order: counts, sizes and data of each."""
    parts: list[bytes] = []
    for frames in images:
        contiguous = np.ascontiguousarray(frames)
        blocks: list[bytes] = [
            lz4.block.compress(contiguous[start : start + FRAMES_PER_BLOCK].data, store_size=False)
            for start in range(0, len(contiguous), FRAMES_PER_BLOCK)
        ]
        parts.append(np.array([len(contiguous), *map(len, blocks)], _COUNT).tobytes())
        parts += blocks
    return b"".join(parts)


def parse_blocks(data: memoryview, place: BlockPlace, *, num_images: int) -> tuple[FrameBlocks, ...]:
    """The blocks that ``encode_blocks`` wrote at ``place``.

    Raises:
        CorruptionError: the bytes are not what was written.
    """
    found: list[FrameBlocks] = []
    position = 0
    for _ in range(num_images):
        if position + _COUNT.itemsize > len(data):
            raise _malformed(place)
        num_frames = int(np.frombuffer(data, _COUNT, 1, position)[0])
        num_blocks = -(-num_frames // FRAMES_PER_BLOCK)
        position += _COUNT.itemsize
        if position + num_blocks * _COUNT.itemsize > len(data):
            raise _malformed(place)
        sizes = np.frombuffer(data, _COUNT, num_blocks, position).astype(np.int64)
        position += num_blocks * _COUNT.itemsize
        stops = place.offset + position + np.concatenate(([0], np.cumsum(sizes)))
        found.append(FrameBlocks(file=place.file, num_frames=num_frames, stops=stops))
        position += int(sizes.sum())
    if position != len(data):
        raise _malformed(place)
    return tuple(found)


def _malformed(place: BlockPlace) -> CorruptionError:
    return CorruptionError(
        f"The frames at byte {place.offset} of block file {place.file} are not what was written"
    )


class BlockFiles:
    """The block files of one buffer: written by ``pwrite``, so that a full disk is an error, and read through maps."""

    def __init__(self, folder: Path, *, file_bytes: int) -> None:
        """``file_bytes``: size at which a file is closed and the next one opened."""
        self._folder = folder
        self._file_bytes = file_bytes
        self._maps: dict[int, memoryview] = {}
        self._lives: Counter[int] = Counter()
        folder.mkdir(parents=True, exist_ok=True)
        numbers = [int(match[1]) for entry in folder.iterdir() if (match := _NAME.match(entry.name))]
        self._on_disk = set(numbers)
        self._active = max(numbers, default=0)
        self._writer = -1
        self._offset = self._size = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of all files on disk."""
        return sum(512 * self._path(number).stat().st_blocks for number in self._on_disk)

    def append(self, data: bytes, *, flush: bool) -> BlockPlace:
        """Write one page's blocks; durable against a power cut when ``flush`` is set.

        Raises:
            OSError: the disk is full or broken; nothing refers to what was written.
        """
        if self._writer < 0 or self._offset + len(data) > self._size:
            self._begin(len(data))
        place = BlockPlace(self._active, self._offset, len(data))
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self._writer, rest, self._offset + len(data) - len(rest))
            rest = rest[written:]
        if flush:
            os.fsync(self._writer)
        self._offset += len(data)
        self._lives[self._active] += 1
        return place

    def keep(self, place: BlockPlace) -> None:
        """A page of an earlier process lies there."""
        self._lives[place.file] += 1

    def read(self, file: int, start: int, stop: int) -> memoryview:
        """Bytes of a file, valid until its last page is evicted.

        Raises:
            CorruptionError: the file ends before them.
        """
        view = self._maps.get(file)
        if view is None:
            view = self._map(file)
        if stop > len(view):
            raise CorruptionError(f"Block file {file} ends at byte {len(view)}, before byte {stop}")
        return view[start:stop]

    def release(self, place: BlockPlace) -> None:
        """A page is evicted; its file goes with the last one in it."""
        self._lives[place.file] -= 1
        if self._lives[place.file] == 0 and place.file != self._active:
            self._delete(place.file)

    def delete_unused(self) -> None:
        """Remove files that no page is in, after an earlier process left them."""
        for number in sorted(self._on_disk):
            if not self._lives[number] and number != self._active:
                self._delete(number)

    def close(self) -> None:
        """Close the file that is written; maps go with their last reader."""
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1
        self._maps.clear()

    def _delete(self, number: int) -> None:
        self._maps.pop(number, None)
        self._lives.pop(number, None)
        self._on_disk.discard(number)
        self._path(number).unlink(missing_ok=True)

    def _begin(self, needed: int) -> None:
        """A new file, sparse at its full size, so that one memory map serves it while it fills."""
        size = max(needed, self._file_bytes)
        path = self._path(self._active + 1)
        writer = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(writer, size)
        except OSError:
            os.close(writer)
            path.unlink(missing_ok=True)
            raise
        if self._writer >= 0:
            os.close(self._writer)
        closed, self._active = self._active, self._active + 1
        self._on_disk.add(self._active)
        self._writer, self._offset, self._size = writer, 0, size
        if closed in self._on_disk and not self._lives[closed]:
            self._delete(closed)

    def _map(self, file: int) -> memoryview:
        try:
            with self._path(file).open("rb") as handle:
                size = os.fstat(handle.fileno()).st_size
                view = (
                    memoryview(mmap.mmap(handle.fileno(), size, prot=mmap.PROT_READ))
                    if size
                    else memoryview(b"")
                )
        except FileNotFoundError as error:
            raise CorruptionError(f"Block file {file} is gone") from error
        self._maps[file] = view
        return view

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:08d}.blocks"
