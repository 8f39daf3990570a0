"""The header of a safetensors file: which tensors it holds and where. Reads and writes no tensor.

Whole models are streamed behind it: the library encodes a file as one object in memory, and meanwhile no other thread
of the process runs (1.7 s a gigabyte, measured).
"""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from tidegate.core.errors import CorruptionError

# The file begins with the length of its header.
LENGTH = struct.Struct("<Q")
# The format's own limit.
HEADER_BYTES_MAX = 100_000_000
HEADER_ALIGNMENT_BYTES = 8
# By the name that NumPy gives a dtype, without its byte order.
TO_SAFETENSORS = {
    "f2": "F16", "f4": "F32", "f8": "F64", "i1": "I8", "i2": "I16", "i4": "I32", "i8": "I64",
    "u1": "U8", "u2": "U16", "u4": "U32", "u8": "U64", "b1": "BOOL",
}  # fmt: skip
FROM_SAFETENSORS = {name: dtype for dtype, name in TO_SAFETENSORS.items()}


class TensorLayout(NamedTuple):
    """One tensor to be written. ``dtype``: as in ``TO_SAFETENSORS``; ``size`` in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int


class HeaderEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor; ``data_offsets``: its first byte and the one after its last, counted from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class Header(msgspec.Struct, frozen=True):
    """``start``: where the tensors begin in the file (bytes)."""

    metadata: dict[str, str]
    entries: dict[str, HeaderEntry]
    start: int

    def file_bytes(self) -> int:
        """The length of the file that this header describes."""
        return self.start + max((entry.data_offsets[1] for entry in self.entries.values()), default=0)


def read_header(path: Path) -> Header:
    """Read a file's header. Whether the file is as long as the header says is for the caller to judge.

    Raises:
        CorruptionError: the file is no safetensors file.
    """
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            (length,) = LENGTH.unpack(file.read(LENGTH.size))
            if length > min(size, HEADER_BYTES_MAX):
                raise CorruptionError(f"{path.name} claims a header of {length} bytes and has {size}")
            raw = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
        metadata = msgspec.json.decode(raw.pop("__metadata__", msgspec.Raw(b"{}")), type=dict[str, str])
        entries = {name: msgspec.json.decode(entry, type=HeaderEntry) for name, entry in raw.items()}
    except (struct.error, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptionError(f"{path.name} is no safetensors file", why=str(error)) from error
    return Header(metadata, entries, start=LENGTH.size + length)


def encode_header(tensors: Sequence[TensorLayout], metadata: dict[str, str]) -> bytes:
    """The header for these tensors, whose bytes follow it in this order."""
    entries: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    offset = 0
    for tensor in tensors:
        entries[tensor.name] = {
            "dtype": TO_SAFETENSORS[tensor.dtype],
            "shape": tensor.shape,
            "data_offsets": (offset, offset + tensor.size),
        }
        offset += tensor.size
    text = msgspec.json.encode(entries)
    text += b" " * (-len(text) % HEADER_ALIGNMENT_BYTES)
    return LENGTH.pack(len(text)) + text
