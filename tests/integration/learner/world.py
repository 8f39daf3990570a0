"""A learner with a fake store, real weight distribution and a real broker."""

import asyncio
import dataclasses
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tests.integration.learner.fake_store import FakeStore
from tests.integration.learner.fake_turns import FakeTurns
from tests.integration.weight_distribution.serving import serving
from tests.support.call_credentials import accepted, permitted_channel
from tests.support.environments import describing
from tests.support.service_harness import make_context
from tests.support.settings import make_settings
from tests.unit.learner.trajectories import segment
from tidegate.core.ids import PolicyVersion
from tidegate.core.records import Trajectory
from tidegate.learner.config import LearnerConfig
from tidegate.learner.main import build
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import Settings
from tidegate.runtime.rpc import RpcServer
from tidegate.runtime.service import ServiceContext
from tidegate.runtime.telemetry import Telemetry
from tidegate.wire.announcement import Announcement
from tidegate.wire.clients.learner import LearnerClient
from tidegate.wire.subjects import Topology

TIMEOUT_S = 60.0
CONFIG = LearnerConfig(lease_wait_s=0.1, republish_after_s=0.3, cache_dir="")


@dataclass
class Life:
    """One process of a learner: its context, its client, and its loop."""

    context: ServiceContext
    client: LearnerClient
    loop: asyncio.Future[None]

    async def version(self, at_least: int) -> PolicyVersion:
        """Wait until it has trained that far."""
        await until(lambda: self._trained() >= at_least or self.loop.done())
        if self.loop.done():
            self.loop.result()
        return (await self.client.progress()).version

    async def acknowledged(self, step: int) -> None:
        """Wait until an update is committed and its version published, and not only trained."""
        await until(lambda: self._published() >= step or self.loop.done())
        if self.loop.done():
            self.loop.result()

    def _published(self) -> int:
        label = self.context.stats.snapshot(at_s=0.0).labels.get("published_version", "")
        return int(label.rpartition("@")[2] or -1)

    def _trained(self) -> float:
        board = self.context.stats.snapshot(at_s=0.0)
        return board.values["version_step"] if "version" in board.labels else -1.0


@dataclass
class World:
    """What outlives a learner."""

    folder: Path
    settings: Settings
    store: FakeStore
    bus: Bus
    topology: Topology
    weights: AsyncExitStack
    turns: FakeTurns = field(default_factory=FakeTurns)
    num_offered: int = 0

    def offer(self, num_batches: int, *, at: PolicyVersion, **changes: Any) -> list[Trajectory]:
        """Put whole batches of fresh segments into the store."""
        made: list[Trajectory] = []
        for _ in range(num_batches * self.settings.batch_size):
            self.num_offered += 1
            fields: dict[str, Any] = {
                "seed": self.num_offered,
                "returns": (float(self.num_offered),),
                "started_at_s": time.time(),
                **changes,
            }
            made.append(segment(f"t{self.num_offered}", at=at, **fields))
        self.store.offer(made)
        return made

    async def announced(self) -> Announcement:
        """The newest announcement on POLICY."""
        stored = await self.bus.last(self.topology.stream("POLICY"), self.topology.policy("default"))
        assert stored is not None
        return Announcement.from_bytes(stored.data)

    async def serve_weights(self, folder: Path) -> None:
        """Weight distribution, from now on, with its disk in ``folder``."""
        await self.weights.aclose()
        await self.weights.enter_async_context(serving(folder, self.bus, settings=self.settings))

    @asynccontextmanager
    async def learner(
        self,
        config: LearnerConfig = CONFIG,
        *,
        killed: bool = False,
        telemetry: Telemetry | None = None,
    ) -> AsyncGenerator[Life, None]:
        """One process; leaving it drains the learner, or ends it without a drain when ``killed``."""
        context = make_context("learner", self.settings, bus=self.bus)
        if telemetry is not None:
            context = dataclasses.replace(context, telemetry=telemetry)
        async with describing(self.settings.addresses["environment"][0]):
            parts = await build(context, config)
        server = RpcServer(parts.servicers, accepted())
        address = self.settings.addresses["learner"][0]
        await server.start(address)
        channel = permitted_channel(address)
        loop = asyncio.ensure_future(parts.loops["train"]())
        try:
            yield Life(context, LearnerClient(channel), loop)
        finally:
            if killed:
                loop.cancel()
            else:
                context.drain.request()
            _, late = await asyncio.wait([loop], timeout=TIMEOUT_S)
            await channel.close()
            await server.stop(grace_s=0.1)
            await context.channels.close()
            if parts.close is not None:
                await parts.close()
            assert not late, "the learner does not end"
            if not loop.cancelled():
                loop.result()


@asynccontextmanager
async def world(
    folder: Path, bus: Bus, topology: Topology, *, max_lag: int = 2, **changes: Any
) -> AsyncGenerator[World, None]:
    """Store, weight distribution and broker."""
    settings = msgspec.structs.replace(make_settings(folder, broker_url="", max_lag=max_lag), **changes)
    store = FakeStore(batch_size=settings.batch_size)
    async with AsyncExitStack() as stack:
        weights = await stack.enter_async_context(AsyncExitStack())
        running = World(folder, settings, store, bus, topology, weights)
        server = RpcServer([store.registration(), running.turns.registration()], accepted())
        await server.start(settings.addresses["trajectory_store"][0])
        stack.push_async_callback(server.stop, grace_s=0.1)
        await running.serve_weights(folder)
        yield running


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; a hang fails the test."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.01)
