"""Rank 0's commands to the other ranks: MessagePack, then tensors as raw bytes. Nothing is unpickled.

On the wire, three broadcasts: two sizes (int64), the header, and one block of bytes with every tensor at a multiple of
64, so that tensors are views of it without a copy.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec
import torch
from torch import Tensor

from tidegate.core.errors import RecordError
from tidegate.core.response import Response
from tidegate.learner.ranks.group import RankGroup

ALIGNMENT_BYTES = 64
# Prefixes of the names of a restore's tensors.
POLICY, STATE = "policy/", "state/"
DTYPES: dict[str, torch.dtype] = {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Update(msgspec.Struct, frozen=True, tag="update"):
    """Compute update ``number`` of the attached batch; ``check``: then compare the result between ranks."""

    number: int
    response: Response
    values: dict[str, float]
    check: bool


class Restore(msgspec.Struct, frozen=True, tag="restore"):
    """Restore the attached policy and trainer state."""

    values: dict[str, Any]


class Wait(msgspec.Struct, frozen=True, tag="wait"):
    """Heartbeat: nothing to do."""


class StopRanks(msgspec.Struct, frozen=True, tag="stop"):
    """Rank 0 stops cleanly; ``completed``: because the run is complete, so that no rank is to start again."""

    completed: bool = False


Command: TypeAlias = Update | Restore | Wait | StopRanks


class _TensorHeader(msgspec.Struct, frozen=True):
    name: str
    dtype: str
    shape: tuple[int, ...]

    def num_bytes(self) -> int:
        return torch.Size(self.shape).numel() * DTYPES[self.dtype].itemsize


class _Header(msgspec.Struct, frozen=True):
    command: Command
    tensors: tuple[_TensorHeader, ...]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Header)


def send(group: RankGroup, command: Command, tensors: Mapping[str, Tensor] | None = None) -> None:
    """Broadcast from rank 0; returns once it is sent.

    Raises:
        RankLostError: a rank is lost.
        RecordError: a tensor has an unsupported dtype.
    """
    given = {name: tensor.detach() for name, tensor in (tensors or {}).items()}
    headers = tuple(_header_of(name, tensor) for name, tensor in given.items())
    header = _encoder.encode(_Header(command, headers))
    offsets, num_bytes = _offsets(headers)
    group.send_to_all(torch.tensor([len(header), num_bytes]))
    group.send_to_all(torch.frombuffer(bytearray(header), dtype=torch.uint8))
    if not num_bytes:
        return
    block = torch.zeros(num_bytes, dtype=torch.uint8, device=group.device)
    for tensor, offset in zip(given.values(), offsets, strict=True):
        raw = tensor.contiguous().reshape(-1).view(torch.uint8)
        block[offset : offset + len(raw)].copy_(raw)
    group.send_to_all(block)


def receive(group: RankGroup) -> tuple[Command, dict[str, Tensor]]:
    """Receive rank 0's next command on another rank; tensors share one block of memory.

    Raises:
        RankLostError: rank 0 is lost.
    """
    sizes = torch.zeros(2, dtype=torch.int64)
    group.send_to_all(sizes)
    header_bytes, num_bytes = (int(size) for size in sizes)
    raw_header = torch.zeros(header_bytes, dtype=torch.uint8)
    group.send_to_all(raw_header)
    header = _decoder.decode(raw_header.numpy().tobytes())
    block = torch.zeros(num_bytes, dtype=torch.uint8, device=group.device)
    if num_bytes:
        group.send_to_all(block)
    offsets, _ = _offsets(header.tensors)
    return header.command, {
        kept.name: block[offset : offset + kept.num_bytes()].view(DTYPES[kept.dtype]).view(kept.shape)
        for kept, offset in zip(header.tensors, offsets, strict=True)
    }


def _header_of(name: str, tensor: Tensor) -> _TensorHeader:
    if tensor.dtype not in _NAMES:
        raise RecordError(f"Tensor {name!r} is {tensor.dtype}, which cannot be sent to other ranks")
    return _TensorHeader(name, _NAMES[tensor.dtype], tuple(tensor.shape))


def _offsets(headers: tuple[_TensorHeader, ...]) -> tuple[list[int], int]:
    """The offset of each tensor, and the total size."""
    offsets: list[int] = []
    end = 0
    for header in headers:
        offsets.append(end)
        end += -(-header.num_bytes() // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return offsets, end
