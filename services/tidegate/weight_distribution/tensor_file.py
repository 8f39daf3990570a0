"""One safetensors file: header in front, raw tensors behind, so that it is mapped and never parsed.

We write and read the header ourselves, because a version may leave tensors to older files, and because bytes arrive
in chunks that need not fit memory. Any safetensors reader opens what is written here.
"""

import mmap
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from tidegate.core.errors import CorruptionError
from tidegate.weight_distribution.state import Tensor

_LENGTH = struct.Struct("<Q")
HEADER_ALIGNMENT_BYTES = 8
# The format's own limit.
HEADER_BYTES_MAX = 100_000_000
_TO_SAFETENSORS = {
    "f2": "F16", "f4": "F32", "f8": "F64", "i1": "I8", "i2": "I16", "i4": "I32", "i8": "I64",
    "u1": "U8", "u2": "U16", "u4": "U32", "u8": "U64", "b1": "BOOL",
}  # fmt: skip
_FROM_SAFETENSORS = {name: dtype for dtype, name in _TO_SAFETENSORS.items()}
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


def encode_header(tensors: Sequence[Tensor], metadata: dict[str, str]) -> tuple[bytes, dict[str, Extent]]:
    """The header for these tensors in this order, and where each will lie in the file."""
    entries: dict[str, object] = {"__metadata__": metadata}
    offset = 0
    for tensor in tensors:
        entries[tensor.name] = {
            "dtype": _TO_SAFETENSORS[tensor.dtype],
            "shape": tensor.shape,
            "data_offsets": (offset, offset + tensor.size),
        }
        offset += tensor.size
    text = msgspec.json.encode(entries)
    text += b" " * (-len(text) % HEADER_ALIGNMENT_BYTES)
    start = _LENGTH.size + len(text)
    extents: dict[str, Extent] = {}
    for tensor in tensors:
        extents[tensor.name] = Extent(start=start, size=tensor.size)
        start += tensor.size
    return _LENGTH.pack(len(text)) + text, extents


class _HeaderEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def read_header(path: Path) -> TensorFile:
    """Read a file's header and check that the file has the length that it defines.

    Raises:
        CorruptionError: the file is truncated or is no safetensors file.
    """
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
            if length > min(size, HEADER_BYTES_MAX):
                raise CorruptionError(f"{path.name} claims a header of {length} bytes and has {size}")
            entries = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
        metadata = msgspec.json.decode(entries.pop("__metadata__", msgspec.Raw(b"{}")), type=dict[str, str])
        headers = {name: msgspec.json.decode(raw, type=_HeaderEntry) for name, raw in entries.items()}
    except (struct.error, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptionError(f"{path.name} is no safetensors file", why=str(error)) from error
    start = _LENGTH.size + length
    extents: dict[str, Extent] = {}
    end = 0
    for name, entry in headers.items():
        begin, stop = entry.data_offsets
        if entry.dtype not in _FROM_SAFETENSORS or not 0 <= begin <= stop:
            raise CorruptionError(f"{path.name} describes tensor {name!r} impossibly")
        extents[name] = Extent(start=start + begin, size=stop - begin)
        end = max(end, stop)
    if start + end != size:
        raise CorruptionError(f"{path.name} has {size} bytes, its header describes {start + end}")
    return TensorFile(path=path, metadata=metadata, extents=extents, size=end)


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
