"""Client of weight distribution."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from functools import partial

import grpc
import numpy as np

from tidegate.core.ids import PolicyVersion
from tidegate.core.records import Array, PolicySnapshot
from tidegate.core.staleness import LineageTree
from tidegate.v1 import policy_pb2
from tidegate.v1 import weight_distribution_service_pb2 as pb
from tidegate.v1.weight_distribution_service_pb2_grpc import WeightDistributionServiceStub
from tidegate.wire.announcement import Announcement
from tidegate.wire.chunks import chunk_deserializer, chunk_serializer
from tidegate.wire.clients.remote import DEADLINE_S, remote_errors, transfer_deadline_s
from tidegate.wire.convert import version_from_proto, version_to_proto
from tidegate.wire.payload_cutter import PayloadCutter
from tidegate.wire.policy_payload import announce, tensor_of
from tidegate.wire.subjects import CHUNK_BYTES, FIRST_CHUNK_BYTES

SERVICE = "weight_distribution"
PUBLISH_CHUNK_FIELD = 2
PULL_CHUNK_FIELD = 1
# Larger policies are hashed in a thread: 1 ms beside the event loop's 100.
ENCODED_IN_LOOP_BYTES = 16 << 20
_PUBLISH = "/tidegate.v1.WeightDistributionService/PublishPolicy"
_PULL = "/tidegate.v1.WeightDistributionService/PullPolicy"


class WeightDistributionClient:
    """Typed calls to weight distribution."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """``channel``: shared; its owner closes it."""
        self._stub = WeightDistributionServiceStub(channel)
        self._publish = channel.stream_unary(
            _PUBLISH,
            request_serializer=chunk_serializer(PUBLISH_CHUNK_FIELD),
            response_deserializer=pb.PublishPolicyResponse.FromString,
        )
        # The same method with its whole stream in one message; a call without a stream costs both sides a fifth less.
        self._publish_small = channel.unary_unary(
            _PUBLISH,
            request_serializer=pb.PublishPolicyRequest.SerializeToString,
            response_deserializer=pb.PublishPolicyResponse.FromString,
        )
        self._pull = channel.unary_stream(
            _PULL,
            request_serializer=pb.PullPolicyRequest.SerializeToString,
            response_deserializer=chunk_deserializer(pb.PullPolicyResponse, PULL_CHUNK_FIELD),
        )

    async def publish(self, snapshot: PolicySnapshot, tree: LineageTree, *, trace_parent: str = "") -> None:
        """Publish one version; repeating it with the same tensors succeeds.

        Raises:
            ConflictError: the version exists with other tensors, or another learner published past it.
        """
        encode = partial(announce, snapshot, tree, trace_parent=trace_parent)
        is_large = sum(tensor.nbytes for tensor in snapshot.tensors.values()) > ENCODED_IN_LOOP_BYTES
        message, raw = await asyncio.to_thread(encode) if is_large else encode()
        timeout_s = transfer_deadline_s(message.payload_size)
        if message.payload_size <= FIRST_CHUNK_BYTES:
            request = pb.PublishPolicyRequest(announcement=message, chunk=b"".join(raw))
            with remote_errors(SERVICE):
                await self._publish_small(request, timeout=timeout_s)
            return

        async def requests() -> AsyncIterator[pb.PublishPolicyRequest | memoryview]:
            yield pb.PublishPolicyRequest(announcement=message)
            for chunk in _rechunk(raw):
                yield chunk

        with remote_errors(SERVICE):
            await self._publish(requests(), timeout=timeout_s)

    async def pull(self, announcement: Announcement, names: Collection[str]) -> dict[str, Array]:
        """The named tensors of an announced version, verified, in manifest order.

        Raises:
            NotFoundError: the version is no longer kept; follow to a newer one.
            CorruptionError: a digest does not match.
        """
        entries = [entry for entry in announcement.message.tensors if entry.name in names]
        if not entries:
            return {}
        request = pb.PullPolicyRequest(
            version=version_to_proto(announcement.version), tensors=[entry.name for entry in entries]
        )
        receiving = _Receiving(entries, version=announcement.version)
        timeout_s = transfer_deadline_s(sum(entry.size for entry in entries))
        with remote_errors(SERVICE):
            async for message in self._pull(request, timeout=timeout_s):
                receiving.feed(message if isinstance(message, memoryview) else message.chunk)
        return receiving.tensors()

    async def head(self) -> tuple[Announcement | None, list[PolicyVersion]]:
        """The newest announcement (None before the first) and the versions still kept."""
        with remote_errors(SERVICE):
            response = await self._stub.GetHead(pb.GetHeadRequest(), timeout=DEADLINE_S)
        kept = [version_from_proto(version) for version in response.kept]
        return (Announcement(response.announcement) if response.HasField("announcement") else None), kept


class _Receiving:
    """Tensors being received, each in a buffer of its own.

    So a tensor is freed by itself when a later version replaces it. Holds one payload.
    """

    def __init__(self, entries: Sequence[policy_pb2.TensorEntry], *, version: PolicyVersion) -> None:
        self._entries = entries
        self._cutter = PayloadCutter(entries, version=version, fix="pull it again")
        # Not zeroed: bytearrays would cost as much as the transfer. Unwritten pages take no memory yet.
        self._buffers = {entry.name: np.empty(entry.size, dtype=np.uint8).data for entry in entries}

    def feed(self, chunk: bytes | memoryview) -> None:
        """The next bytes.

        Raises:
            CorruptionError: a tensor does not match its digest.
            RecordError: the payload is longer than the manifest.
        """
        for entry, offset, part in self._cutter.cut(chunk):
            self._buffers[entry.name][offset : offset + len(part)] = part

    def tensors(self) -> dict[str, Array]:
        """All tensors, verified.

        Raises:
            RecordError: the payload ended early, or a tensor has a shape that its bytes cannot have.
        """
        self._cutter.finish()
        return {
            entry.name: tensor_of(entry, self._buffers[entry.name].toreadonly()) for entry in self._entries
        }


def _rechunk(tensors: list[memoryview]) -> Iterator[memoryview]:
    """Small tensors joined, large ones cut, so that each message is near ``CHUNK_BYTES``."""
    pending = bytearray()
    for tensor in tensors:
        if len(tensor) < CHUNK_BYTES - len(pending):
            pending += tensor
            continue
        if pending:
            yield memoryview(pending)
            pending = bytearray()
        yield from (tensor[start : start + CHUNK_BYTES] for start in range(0, len(tensor), CHUNK_BYTES))
    if pending:
        yield memoryview(pending)
