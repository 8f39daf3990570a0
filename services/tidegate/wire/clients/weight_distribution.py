"""Client of weight distribution."""

from collections.abc import AsyncIterator, Mapping, Sequence

import grpc
import numpy as np

from tidegate.core.errors import CorruptionError, RecordError
from tidegate.core.ids import PolicyVersion
from tidegate.core.records import Array, PolicySnapshot
from tidegate.core.staleness import LineageTree
from tidegate.v1 import policy_pb2
from tidegate.v1 import weight_distribution_service_pb2 as pb
from tidegate.v1.weight_distribution_service_pb2_grpc import WeightDistributionServiceStub
from tidegate.wire.announcement import Announcement
from tidegate.wire.chunks import chunk_deserializer, chunk_serializer
from tidegate.wire.clients.remote import DEADLINE_S, remote_errors
from tidegate.wire.convert import version_from_proto, version_to_proto
from tidegate.wire.digest import Digest
from tidegate.wire.policy_payload import announce, tensors_of
from tidegate.wire.subjects import CHUNK_BYTES

SERVICE = "weight_distribution"
PUBLISH_CHUNK_FIELD = 2
PULL_CHUNK_FIELD = 1
TRANSFER_DEADLINE_S = 600.0
# A policy up to this size travels with its announcement.
SMALL_PAYLOAD_BYTES = 256 * 1024
_PUBLISH = "/tidegate.v1.WeightDistributionService/PublishPolicy"
_PULL = "/tidegate.v1.WeightDistributionService/PullPolicy"


class WeightDistributionClient:
    """Typed calls to weight distribution."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """The channel is shared and stays the caller's to close."""
        self._stub = WeightDistributionServiceStub(channel)
        self._publish = channel.stream_unary(
            _PUBLISH,
            request_serializer=chunk_serializer(PUBLISH_CHUNK_FIELD),
            response_deserializer=pb.PublishPolicyResponse.FromString,
        )
        self._pull = channel.unary_stream(
            _PULL,
            request_serializer=pb.PullPolicyRequest.SerializeToString,
            response_deserializer=chunk_deserializer(pb.PullPolicyResponse, PULL_CHUNK_FIELD),
        )

    async def publish(self, snapshot: PolicySnapshot, tree: LineageTree, *, trace_parent: str = "") -> None:
        """Publish one version; doing it again with the same tensors is a success.

        Raises:
            ConflictError: the version exists with other tensors, or another learner published past it.
        """
        message, raw = announce(snapshot, tree, trace_parent=trace_parent)

        async def requests() -> AsyncIterator[pb.PublishPolicyRequest | memoryview]:
            if message.payload_size <= SMALL_PAYLOAD_BYTES:
                # One message instead of two: at a hundred versions a second the second costs more than its bytes.
                yield pb.PublishPolicyRequest(announcement=message, chunk=b"".join(raw))
                return
            yield pb.PublishPolicyRequest(announcement=message)
            for chunk in _rechunk(raw):
                yield chunk

        with remote_errors(SERVICE):
            await self._publish(requests(), timeout=TRANSFER_DEADLINE_S)

    async def pull(
        self, announcement: Announcement, *, have: Mapping[str, Array] | None = None
    ) -> PolicySnapshot:
        """The tensors of an announced version. ``have`` maps names to tensors that are known to be unchanged.

        Raises:
            NotFoundError: the version is no longer kept; follow to a newer one.
            CorruptionError: a digest does not match.
        """
        known = have or {}
        entries = [entry for entry in announcement.message.tensors if entry.name not in known]
        if not entries:
            tensors = tensors_of(announcement.message.tensors, b"", have=known)
            return PolicySnapshot(announcement.version, tensors, announcement.message.published_at_s)
        request = pb.PullPolicyRequest(
            version=version_to_proto(announcement.version), tensors=[entry.name for entry in entries]
        )
        receiving = _Receiving(entries)
        with remote_errors(SERVICE):
            async for message in self._pull(request, timeout=TRANSFER_DEADLINE_S):
                receiving.feed(message if isinstance(message, memoryview) else message.chunk)
        payload = receiving.verified()
        tensors = tensors_of(announcement.message.tensors, payload, have=known, verified=True)
        return PolicySnapshot(announcement.version, tensors, announcement.message.published_at_s)

    async def head(self) -> tuple[Announcement | None, list[PolicyVersion]]:
        """The newest announcement (None before the first) and the versions still kept."""
        with remote_errors(SERVICE):
            response = await self._stub.GetHead(pb.GetHeadRequest(), timeout=DEADLINE_S)
        kept = [version_from_proto(version) for version in response.kept]
        return (Announcement(response.announcement) if response.HasField("announcement") else None), kept


class _Receiving:
    """A payload on its way: one buffer, each tensor hashed while its bytes are still in the processor's cache.

    Holds one payload; it is freed with the snapshot that views it.
    """

    def __init__(self, entries: Sequence[policy_pb2.TensorEntry]) -> None:
        self._entries = entries
        # Not zeroed, and in huge pages where the system has them: a bytearray would cost as much as the transfer.
        self._view = np.empty(sum(entry.size for entry in entries), dtype=np.uint8).data
        self._filled = 0
        self._next = -1
        self._stop = 0
        self._hash = Digest()
        self._begin_tensor()

    def feed(self, chunk: bytes | memoryview) -> None:
        """The next bytes.

        Raises:
            CorruptionError: a tensor does not match its digest.
            RecordError: more came than the manifest lists.
        """
        stop = self._filled + len(chunk)
        if stop > len(self._view):
            raise RecordError(f"A policy of {len(self._view)} bytes came with more than that")
        self._view[self._filled : stop] = chunk
        while self._filled < stop:
            part = min(stop, self._stop)
            self._hash.update(self._view[self._filled : part])
            self._filled = part
            if part == self._stop:
                self._end_tensor()
                self._begin_tensor()

    def _begin_tensor(self) -> None:
        """Move to the next tensor that has bytes."""
        while True:
            self._next += 1
            if self._next == len(self._entries):
                return
            self._hash = Digest()
            self._stop += self._entries[self._next].size
            if self._stop > self._filled:
                return
            self._end_tensor()

    def _end_tensor(self) -> None:
        entry = self._entries[self._next]
        if self._hash.digest() != entry.digest:
            raise CorruptionError(
                f"Tensor {entry.name} of a policy does not match its digest", fix="pull it again"
            )

    def verified(self) -> memoryview:
        """The whole payload, every tensor checked.

        Raises:
            RecordError: the payload ended early.
        """
        if self._filled != len(self._view):
            raise RecordError(f"A policy of {len(self._view)} bytes ended after {self._filled}")
        return self._view.toreadonly()


def _rechunk(tensors: list[bytes]) -> list[memoryview]:
    """Small tensors joined, large ones cut, so that each message is near ``CHUNK_BYTES``."""
    chunks: list[memoryview] = []
    pending = bytearray()
    for tensor in tensors:
        if len(tensor) < CHUNK_BYTES - len(pending):
            pending += tensor
            continue
        if pending:
            chunks.append(memoryview(bytes(pending)))
            pending = bytearray()
        view = memoryview(tensor)
        chunks.extend(view[start : start + CHUNK_BYTES] for start in range(0, len(view), CHUNK_BYTES))
    if pending:
        chunks.append(memoryview(bytes(pending)))
    return chunks
