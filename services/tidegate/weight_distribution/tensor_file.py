"""One safetensors file: header in front, raw tensors behind, so that it is mapped and never parsed.

We write and read the header ourselves, because a version may leave tensors to older files, and because bytes arrive
in chunks that need not fit memory. Any safetensors reader opens what is written here.
"""

import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from tidegate.core.errors import CorruptionError
from tidegate.models.safetensors_header import FROM_SAFETENSORS, TensorLayout, encode_header, read_header
from tidegate.weight_distribution.state import Tensor
from tidegate.wire.digest import Digest

# Pages behind the reader are released in steps of this: a mapped gigabyte must not count as our memory.
RELEASE_BYTES = 8 << 20


class Extent(msgspec.Struct, frozen=True):
    """Where a tensor's bytes lie in its file."""

    start: int
    size: int


class TensorFile(msgspec.Struct, frozen=True):
    """A readable file and its header. ``size`` in bytes, without the header."""

    path: Path
    metadata: dict[str, str]
    extents: dict[str, Extent]
    size: int


def lay_out(tensors: Sequence[Tensor], metadata: dict[str, str]) -> tuple[bytes, dict[str, Extent]]:
    """The header for these tensors in this order, and where each will lie in the file."""
    layouts = [TensorLayout(each.name, each.dtype, each.shape, each.size) for each in tensors]
    header = encode_header(layouts, metadata)
    extents: dict[str, Extent] = {}
    start = len(header)
    for tensor in tensors:
        extents[tensor.name] = Extent(start=start, size=tensor.size)
        start += tensor.size
    return header, extents


def read_file(path: Path) -> TensorFile:
    """Read a file's header and check that the file has the length that it defines.

    Raises:
        CorruptionError: the file is truncated or is no safetensors file.
    """
    header = read_header(path)
    extents: dict[str, Extent] = {}
    for name, entry in header.entries.items():
        begin, stop = entry.data_offsets
        if entry.dtype not in FROM_SAFETENSORS or not 0 <= begin <= stop:
            raise CorruptionError(f"{path.name} describes tensor {name!r} impossibly")
        extents[name] = Extent(start=header.start + begin, size=stop - begin)
    size = path.stat().st_size
    if header.file_bytes() != size:
        raise CorruptionError(f"{path.name} has {size} bytes, its header describes {header.file_bytes()}")
    return TensorFile(path=path, metadata=header.metadata, extents=extents, size=size - header.start)


def digest_in(path: Path, extent: Extent) -> bytes:
    """The digest of the bytes of one extent.

    They are read and not mapped: what the disk has lost is an error here, and would end a process that maps it.

    Raises:
        OSError: they cannot be read.
    """
    digest, left = Digest(), extent.size
    with path.open("rb") as file:
        file.seek(extent.start)
        while left and (part := file.read(min(left, RELEASE_BYTES))):
            digest.update(part)
            left -= len(part)
    return digest.digest()


def read_mapped(path: Path, extent: Extent, *, chunk_bytes: int) -> Iterator[memoryview]:
    """The bytes of one extent in chunks, straight from the page cache.

    Each view is valid until the next one is requested. The file may be unlinked meanwhile.
    """
    if extent.size == 0:
        return
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    whole = memoryview(mapping)
    stop = extent.start + extent.size
    released = extent.start // RELEASE_BYTES * RELEASE_BYTES
    for start in range(extent.start, stop, chunk_bytes):
        yield whole[start : min(stop, start + chunk_bytes)]
        if start - released >= RELEASE_BYTES:
            mapping.madvise(mmap.MADV_DONTNEED, released, RELEASE_BYTES)
            released += RELEASE_BYTES
