"""A fake trajectory store: records what was dropped and uploaded, and may be unavailable."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.call_credentials import accepted
from tidegate.core.errors import RecordError, UnavailableError
from tidegate.runtime.config import Settings
from tidegate.runtime.rpc import Registration, RpcServer
from tidegate.v1 import trajectory_store_service_pb2 as pb
from tidegate.v1.trajectory_store_service_pb2_grpc import add_TrajectoryStoreServiceServicer_to_server


class FakeStore:
    """The two calls that come from outside of the learner."""

    def __init__(self) -> None:
        self.dropped: dict[str, tuple[str, str]] = {}
        self.uploads: dict[str, bytes] = {}
        self.away = False
        self.refuses = False
        self.num_calls = 0

    async def DropUnarrived(
        self, request: pb.DropUnarrivedRequest, context: Any
    ) -> pb.DropUnarrivedResponse:  # gRPC's name
        self.num_calls += 1
        if self.away:
            raise UnavailableError("the store is away")
        if self.refuses:
            raise RecordError("the sender does not hold the task")
        fresh = [dropped for dropped in request.dropped if dropped.trajectory_id not in self.dropped]
        self.dropped |= {dropped.trajectory_id: (dropped.reason, dropped.detail) for dropped in fresh}
        return pb.DropUnarrivedResponse(dropped=len(fresh))

    async def UploadPayload(  # gRPC's name
        self, requests: AsyncIterator[pb.UploadPayloadRequest], context: Any
    ) -> pb.UploadPayloadResponse:
        body = bytearray()
        name = ""
        async for request in requests:
            name = name or request.reference.payload_id
            body += request.chunk
        self.uploads[name] = bytes(body)
        return pb.UploadPayloadResponse()

    def __getattr__(self, name: str) -> Any:
        """Every other call of the service exists and is never made."""
        if name.startswith("_"):
            raise AttributeError(name)
        return None

    async def serve(self, address: str) -> RpcServer:
        server = RpcServer(
            [
                Registration(
                    add_TrajectoryStoreServiceServicer_to_server, self, "tidegate.v1.TrajectoryStoreService"
                )
            ],
            accepted(),
        )
        await server.start(address)
        return server


@asynccontextmanager
async def serving_store(settings: Settings) -> AsyncGenerator[FakeStore, None]:
    """A store where the settings have it."""
    store = FakeStore()
    server = await store.serve(settings.addresses["trajectory_store"][0])
    yield store
    await server.stop(grace_s=0.0)
