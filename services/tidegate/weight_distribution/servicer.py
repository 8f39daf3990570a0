"""The gRPC face of weight distribution. Tensors cross it as raw chunks (``wire.chunks``), never as protobuf fields."""

from collections.abc import AsyncIterator
from typing import Any

from grpc import aio

from tidegate.catalogue import weight_distribution as statistics
from tidegate.catalogue.telemetry import (
    ATTR_TRANSPORT,
    ATTR_VERSION,
    ATTR_WEIGHTS_BYTES,
    METRIC_WEIGHTS_PUBLISH,
    SPAN_WEIGHTS_PUBLISH,
)
from tidegate.core.errors import RecordError, UnavailableError
from tidegate.runtime.rpc import Registration
from tidegate.runtime.service import ServiceContext
from tidegate.v1 import weight_distribution_service_pb2 as pb
from tidegate.v1.weight_distribution_service_pb2_grpc import (
    WeightDistributionServiceServicer,
    add_WeightDistributionServiceServicer_to_server,
)
from tidegate.weight_distribution.announced import manifest_of
from tidegate.weight_distribution.config import WeightDistributionConfig
from tidegate.weight_distribution.loops import Distribution
from tidegate.wire.announcement import Announcement
from tidegate.wire.bounds import TENSORS_MAX, check_count, check_version
from tidegate.wire.chunks import chunk_deserializer, chunk_serializer
from tidegate.wire.convert import version_from_proto, version_to_proto

SERVICE_NAME = "tidegate.v1.WeightDistributionService"
PUBLISH_CHUNK_FIELD = 2
PULL_CHUNK_FIELD = 1

_Context = aio.ServicerContext[Any, Any]


class WeightDistributionServicer(WeightDistributionServiceServicer):
    """Publish, pull, head."""

    def __init__(
        self, context: ServiceContext, config: WeightDistributionConfig, distribution: Distribution
    ) -> None:
        """Acts through ``distribution``, counts on the context's board."""
        self._context = context
        self._config = config
        self._distribution = distribution

    def registration(self) -> Registration:
        """How the lifecycle adds it to the server, chunks uncopied."""
        return Registration(
            add=add_WeightDistributionServiceServicer_to_server,
            servicer=self,
            name=SERVICE_NAME,
            raw_requests={"PublishPolicy": chunk_deserializer(pb.PublishPolicyRequest, PUBLISH_CHUNK_FIELD)},
            raw_responses={"PullPolicy": chunk_serializer(PULL_CHUNK_FIELD)},
        )

    async def PublishPolicy(
        self,
        request_iterator: AsyncIterator[pb.PublishPolicyRequest | memoryview],
        context: _Context,
    ) -> pb.PublishPolicyResponse:
        """Take a version in, make it durable, announce it; repeating it is a success.

        Raises:
            UnavailableError: the disk is full; the learner publishes again until it has space.
        """
        try:
            return await self._publish(request_iterator)
        except OSError as error:
            raise UnavailableError(
                "The version cannot be written", why=str(error), fix="free space on the disk of the run"
            ) from error

    async def _publish(
        self, request_iterator: AsyncIterator[pb.PublishPolicyRequest | memoryview]
    ) -> pb.PublishPolicyResponse:
        started_at_s = self._context.clock.now_s()
        head = await anext(aiter(request_iterator), None)
        if not isinstance(head, pb.PublishPolicyRequest) or not head.HasField("announcement"):
            raise RecordError("A publish does not start with its announcement")
        head.announcement.ClearField("inline_payload")
        announcement = Announcement(head.announcement)
        manifest = manifest_of(announcement)
        intake = self._distribution.begin(manifest, head.announcement.SerializeToString())
        if intake is None:
            await self._distribution.repeat(manifest.version)
        else:
            inline = bytearray() if manifest.payload_size <= self._config.inline_bytes_max else None
            try:
                async for chunk in _chunks(head, request_iterator):
                    intake.feed(chunk)
                    if inline is not None:
                        inline += chunk
                await self._distribution.publish(
                    intake, inline_payload=None if inline is None else bytes(inline)
                )
            finally:
                self._distribution.abort(intake)
            self._count_publish(announcement, started_at_s=started_at_s, inline=inline is not None)
        return pb.PublishPolicyResponse(version=version_to_proto(manifest.version))

    async def PullPolicy(
        self, request: pb.PullPolicyRequest, context: _Context
    ) -> AsyncIterator[Any]:  # views of chunks, where the generated stub expects whole messages
        """Stream the named tensors from an offset."""
        check_version(request.version, "The version to be pulled")
        check_count(len(request.tensors), "tensors of a policy", max_count=TENSORS_MAX)
        version = version_from_proto(request.version)
        sent_bytes = 0
        for chunk in self._distribution.versions.read(
            version, names=request.tensors, offset=request.offset, chunk_bytes=self._config.chunk_bytes
        ):
            sent_bytes += len(chunk)
            yield chunk
        self._context.stats.add(statistics.PULLED)
        self._context.stats.add(statistics.PULLED_BYTES, sent_bytes)

    async def GetHead(self, request: pb.GetHeadRequest, context: _Context) -> pb.GetHeadResponse:
        """The newest announcement, and the versions that can still be pulled."""
        head = self._distribution.versions.head
        response = pb.GetHeadResponse(
            kept=[version_to_proto(version) for version in self._distribution.versions.kept()]
        )
        if head is not None:
            response.announcement.ParseFromString(head.announcement)
        return response

    def _count_publish(self, announcement: Announcement, *, started_at_s: float, inline: bool) -> None:
        context = self._context
        now_s = context.clock.now_s()
        context.stats.add(statistics.PUBLISHED)
        context.stats.add(statistics.PUBLISHED_BYTES, announcement.message.payload_size)
        context.telemetry.observe(
            METRIC_WEIGHTS_PUBLISH, now_s - started_at_s, {ATTR_TRANSPORT: "inline" if inline else "grpc"}
        )
        context.telemetry.emit(
            SPAN_WEIGHTS_PUBLISH,
            parent=announcement.message.trace_parent,
            started_at_s=started_at_s,
            finished_at_s=now_s,
            attributes={
                ATTR_VERSION: str(announcement.version),
                ATTR_WEIGHTS_BYTES: announcement.message.payload_size,
            },
            kind="producer",
        )


async def _chunks(
    head: pb.PublishPolicyRequest, rest: AsyncIterator[pb.PublishPolicyRequest | memoryview]
) -> AsyncIterator[bytes | memoryview]:
    """The payload's pieces: what came with the announcement, then the messages behind it."""
    if head.chunk:
        yield head.chunk
    async for message in rest:
        yield message if isinstance(message, memoryview) else message.chunk
