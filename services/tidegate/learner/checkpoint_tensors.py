"""The tensors of a checkpoint as one safetensors file, streamed: hashed while they are written and read.

Memory grows by nothing when a file is written and by its size when it is read, and other threads run meanwhile, so a
learner answers calls during its own checkpoint, whatever the model's size.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np

from tidegate.core.errors import CorruptionError
from tidegate.core.records import Array
from tidegate.models.safetensors_header import (
    FROM_SAFETENSORS,
    HeaderEntry,
    TensorLayout,
    encode_header,
    read_header,
)

DIGEST_BYTES = 16
# Hashed and written together, while it is in the cache of a core.
PIECE_BYTES = 4 << 20


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a manifest says of a file: its size in bytes, and its digest (BLAKE2b, hexadecimal)."""

    size: int
    digest: str


def entry_of(data: bytes) -> FileEntry:
    """The entry of a small file."""
    return FileEntry(size=len(data), digest=hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest())


def write_tensors(path: Path, tensors: Mapping[str, Array]) -> FileEntry:
    """Write a file, durable also against power loss; returns its entry.

    Raises:
        OSError: the disk failed or is full.
    """
    # A transposed array is copied into order here, one at a time: the file holds memory as it lies.
    layouts = [
        TensorLayout(name, _dtype(tensor), tensor.shape, tensor.nbytes) for name, tensor in tensors.items()
    ]
    hasher, size = hashlib.blake2b(digest_size=DIGEST_BYTES), 0
    with path.open("wb") as file:
        for piece in _pieces(encode_header(layouts, {}), tensors):
            hasher.update(piece)
            file.write(piece)
            size += len(piece)
        file.flush()
        os.fsync(file.fileno())
    return FileEntry(size=size, digest=hasher.hexdigest())


def read_tensors(path: Path) -> tuple[dict[str, Array], FileEntry]:
    """Every tensor of a file, and the entry that its manifest must have.

    Raises:
        CorruptionError: the file is no whole safetensors file.
        FileNotFoundError: there is none.
    """
    header = read_header(path)
    hasher = hashlib.blake2b(digest_size=DIGEST_BYTES)
    tensors: dict[str, Array] = {}
    size = path.stat().st_size
    if header.file_bytes() != size:
        raise CorruptionError(f"{path} is corrupt", why=f"it has {size} bytes, not {header.file_bytes()}")
    with path.open("rb") as file:
        hasher.update(file.read(header.start))
        for name, entry in sorted(header.entries.items(), key=lambda item: item[1].data_offsets):
            buffer = np.empty(entry.data_offsets[1] - entry.data_offsets[0], dtype=np.uint8)
            if file.tell() != header.start + entry.data_offsets[0]:
                raise CorruptionError(f"{path} is corrupt", why=f"{name} does not follow what is before it")
            file.readinto(buffer.data)
            hasher.update(buffer.data)
            tensors[name] = _shaped(path, name, entry, buffer)
    return tensors, FileEntry(size=size, digest=hasher.hexdigest())


def _pieces(header: bytes, tensors: Mapping[str, Array]) -> Iterator[bytes | memoryview]:
    yield header
    for tensor in tensors.values():
        little = np.asarray(tensor, dtype=tensor.dtype.newbyteorder("<"), order="C")
        data = little.reshape(-1).view(np.uint8).data
        yield from (data[start : start + PIECE_BYTES] for start in range(0, len(data), PIECE_BYTES))


def _dtype(tensor: Array) -> str:
    return tensor.dtype.str[1:]


def _shaped(path: Path, name: str, entry: HeaderEntry, buffer: Array) -> Array:
    dtype = FROM_SAFETENSORS.get(entry.dtype)
    if dtype is None:
        raise CorruptionError(f"{path} holds {name!r} of the unknown type {entry.dtype}")
    try:
        return buffer.view(np.dtype(f"<{dtype}")).reshape(entry.shape)
    except ValueError as error:
        raise CorruptionError(f"{path} holds {name!r} of an impossible shape", why=str(error)) from error
