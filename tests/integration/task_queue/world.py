"""Fake peers of the task queue: a store, policy versions, and an actor that takes tasks."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np

from tests.support.call_credentials import accepted
from tests.support.consumers import open_consumer
from tidegate.core.ids import LineageName, PolicyVersion, TrajectoryId
from tidegate.core.records import PolicySnapshot, Task
from tidegate.core.staleness import Lineage, LineageTree
from tidegate.runtime.bus import Bus
from tidegate.runtime.consumer import Consumer
from tidegate.runtime.rpc import Registration, RpcServer
from tidegate.v1 import trajectory_store_service_pb2 as pb
from tidegate.v1 import trajectory_store_service_pb2_grpc as pb_grpc
from tidegate.wire.convert import task_from_bytes, version_to_proto
from tidegate.wire.policy_payload import announce
from tidegate.wire.subjects import Topology

LINEAGE = Lineage(LineageName("0-a"))
Call = grpc.aio.ServicerContext[Any, Any]


def version(step: int) -> PolicyVersion:
    return PolicyVersion(LINEAGE.name, step)


class FakeStore:
    """A log of outcomes and a record of drops; a dropped id that is not terminal comes back as an outcome."""

    def __init__(self) -> None:
        self.log: list[pb.Outcome | None] = []
        self.dropped: dict[str, str] = {}
        self._states: dict[str, str] = {}
        self._changed = asyncio.Event()

    def add_outcome(
        self, trajectory: TrajectoryId | str, state: str, *, trained_at: PolicyVersion | None = None
    ) -> None:
        self.log.append(
            pb.Outcome(
                trajectory_id=trajectory,
                state=state,
                trained_at=version_to_proto(trained_at) if trained_at else None,
            )
        )
        self._states[trajectory] = state
        self._changed.set()

    def skip(self, num_entries: int) -> None:
        """The next places of the log hold nothing any more."""
        self.log += [None] * num_entries
        self._changed.set()

    async def WatchOutcomes(
        self, request: pb.WatchOutcomesRequest, context: Call
    ) -> pb.WatchOutcomesResponse:
        if len(self.log) <= request.cursor:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), timeout=request.max_wait_s)
            except TimeoutError:
                return pb.WatchOutcomesResponse(next_cursor=request.cursor)
        new = self.log[request.cursor : request.cursor + request.limit]
        return pb.WatchOutcomesResponse(
            outcomes=[outcome for outcome in new if outcome is not None],
            next_cursor=request.cursor + len(new),
        )

    async def DropUnarrived(
        self, request: pb.DropUnarrivedRequest, context: Call
    ) -> pb.DropUnarrivedResponse:
        fresh = [
            item
            for item in request.dropped
            if self._states.get(item.trajectory_id) not in ("trained", "dropped")
        ]
        for item in fresh:
            self.dropped[item.trajectory_id] = f"{item.reason}: {item.detail}"
            self.add_outcome(item.trajectory_id, "dropped")
        return pb.DropUnarrivedResponse(dropped=len(fresh))

    def __getattr__(self, name: str) -> Any:
        """Every other call of the service exists and is never made."""
        if name.startswith("_"):
            raise AttributeError(name)
        return None

    @asynccontextmanager
    async def serving(self, address: str) -> AsyncGenerator[None, None]:
        registration = Registration(
            pb_grpc.add_TrajectoryStoreServiceServicer_to_server, self, "tidegate.v1.TrajectoryStoreService"
        )
        server = RpcServer([registration], accepted())
        await server.start(address)
        try:
            yield
        finally:
            await server.stop(grace_s=0.0)


async def announce_version(bus: Bus, topology: Topology, step: int) -> None:
    message, chunks = announce(
        PolicySnapshot(version(step), {"w": np.zeros(3, dtype=np.float32)}), LineageTree().add(LINEAGE)
    )
    message.inline_payload = b"".join(chunks)
    await bus.publish(topology.policy("default"), message.SerializeToString(), message_id=str(version(step)))


class Taker:
    """An actor that only takes tasks, and acknowledges them at once."""

    def __init__(self, bus: Bus, topology: Topology) -> None:
        self._bus = bus
        self._spec = topology.task_consumer("default", ack_wait_s=30.0, max_running=1000)
        self._consumer: Consumer | None = None

    async def take(self, count: int) -> list[Task]:
        """Fetch exactly ``count`` tasks."""
        got: list[Task] = []
        async with asyncio.timeout(60.0):
            while len(got) < count:
                got += await self._fetch(count - len(got), wait_s=1.0)
        return got

    async def take_whatever_comes(self, *, for_s: float) -> list[Task]:
        """Fetch the tasks that arrive within ``for_s``."""
        return await self._fetch(1000, wait_s=for_s)

    async def _fetch(self, count: int, *, wait_s: float) -> list[Task]:
        if self._consumer is None:
            self._consumer = await open_consumer(self._bus, self._spec)
        deliveries = await self._consumer.fetch(count, wait_s=wait_s)
        for delivery in deliveries:
            await delivery.ack()
        return [task_from_bytes(delivery.data) for delivery in deliveries]
