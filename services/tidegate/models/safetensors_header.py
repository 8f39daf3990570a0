"""The header of a safetensors file: which tensors it holds and where. Reads no tensor."""

import struct
from pathlib import Path

import msgspec

from tidegate.core.errors import CorruptionError

# The file begins with the length of its header.
LENGTH = struct.Struct("<Q")
# The format's own limit.
HEADER_BYTES_MAX = 100_000_000


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
