"""The inference service inside of a test, as its process would run it; it can be killed and started again."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import numpy as np

from tests.integration.actor.harness import MLP, segments_settings
from tests.support.broker import Broker
from tests.support.call_credentials import accepted
from tests.support.environments import CARTPOLE
from tests.support.service_harness import make_context
from tidegate.core.records import Array
from tidegate.inference.config import InferenceConfig
from tidegate.inference.main import assemble
from tidegate.models.policies import build_policy
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import PolicyConfig, Settings
from tidegate.runtime.rpc import RpcServer
from tidegate.runtime.service import ServiceContext
from tidegate.wire.vector_step import ActStep, StepLayout

NUM_ENVS = 4


class Service:
    """One process of the service."""

    def __init__(self, context: ServiceContext, config: InferenceConfig) -> None:
        self.context = context
        self.stats = context.stats
        self._parts = assemble(context, config, build_policy(CARTPOLE, context.settings.policy))
        self._server = RpcServer(self._parts.servicers, accepted())
        self._loops: list[asyncio.Future[None]] = []

    async def start(self) -> None:
        """Listen, and run the loops."""
        await self._server.start(self.context.settings.addresses["inference"][0])
        self._loops = [asyncio.ensure_future(loop()) for loop in self._parts.loops.values()]

    async def kill(self) -> None:
        """End it between two steps: its connections break, nothing is finished."""
        await self._server.stop(grace_s=0.0)
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await self.context.channels.close()

    async def drain(self) -> None:
        """End it as SIGTERM does; every loop returns by itself."""
        self.context.drain.request()
        async with asyncio.timeout(60.0):
            await asyncio.gather(*self._loops)
        await self._server.stop(grace_s=1.0)
        assert self._parts.close is not None
        await self._parts.close()
        await self.context.channels.close()


def inference_settings(folder: Path, nats: Broker, *, policy: PolicyConfig = MLP) -> Settings:
    """A CartPole run with the inference service and actors of 4 environments."""
    settings = segments_settings(folder, nats)
    # Tasks may not ask for more steps than the run file: these ask for up to so many.
    workload = msgspec.structs.replace(settings.workload, unroll_length=2000)
    return msgspec.structs.replace(settings, policy=policy, workload=workload)


@asynccontextmanager
async def serving(
    settings: Settings, bus: Bus, config: InferenceConfig | None = None
) -> AsyncGenerator[Service, None]:
    """A running service, drained at the end unless the test ended it."""
    service = Service(make_context("inference", settings, bus=bus), config or InferenceConfig())
    await service.start()
    try:
        yield service
    finally:
        with suppress(asyncio.CancelledError):
            await service.drain()


def layout_of(settings: Settings) -> StepLayout:
    """Of an actor of the run."""
    policy = build_policy(CARTPOLE, settings.policy)
    return StepLayout.of(policy, num_envs=settings.workload.num_envs)


def step(number: int, *, observations: Array | None = None) -> ActStep:
    """A step of 4 environments."""
    seen = np.random.default_rng(number).normal(size=(NUM_ENVS, 4)) if observations is None else observations
    return ActStep(number, 100 + number, seen.astype(np.float32).tobytes(), b"")
