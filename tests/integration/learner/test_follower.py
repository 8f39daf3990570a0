"""A rank that only computes, observed from outside as a kubelet observes its pod."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from torch import Tensor

from tests.support.broker import free_port
from tests.support.call_credentials import accepted, permitted_channel
from tests.unit.learner.ranks.tape import Tape
from tests.unit.learner.ranks.test_equality import actor_critic
from tidegate.learner.ranks.following import Follower
from tidegate.learner.ranks.group import RankGroup
from tidegate.learner.ranks.membership import Membership
from tidegate.learner.ranks.messages import StopRanks, Wait, send
from tidegate.learner.ranks.port import ALONE, SharedTrainer
from tidegate.runtime import exit_codes
from tidegate.wire.clients.lifecycle import LifecycleClient

pytestmark = pytest.mark.integration

TIMEOUT_S = 60.0
MEMBER = Membership(rank=1, count=2, local_rank=0)


class PausedTape(Tape):
    """Sends nothing before ``go_on``."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def send_to_all(self, tensor: Tensor) -> None:
        if self.recorded:
            self.go_on.wait(TIMEOUT_S)
        super().send_to_all(tensor)


@asynccontextmanager
async def following(tape: PausedTape) -> AsyncGenerator[tuple[asyncio.Task[int], str]]:
    """A running follower of the tape, and its address."""
    address = f"127.0.0.1:{free_port()}"

    def join() -> tuple[SharedTrainer, RankGroup]:
        return actor_critic(ALONE), tape.as_group()

    life = asyncio.create_task(
        Follower(MEMBER, join, listen=address, accepted=accepted(), drain_timeout_s=0.1).run()
    )
    try:
        yield life, address
    finally:
        tape.go_on.set()
        await asyncio.wait([life], timeout=TIMEOUT_S)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not await condition():
            await asyncio.sleep(0.02)


async def test_a_follower_answers_probes_and_ends_well_when_rank_0_does() -> None:
    tape = PausedTape()
    send(tape.as_group(), Wait())
    send(tape.as_group(), StopRanks())
    tape.recorded = True
    async with following(tape) as (life, address):
        channel = permitted_channel(address)
        health = cast("Any", health_pb2_grpc).HealthStub(channel)

        async def serves(name: str) -> bool:
            request = health_pb2.HealthCheckRequest(service=name)
            answer = await health.Check(request, wait_for_ready=True, timeout=TIMEOUT_S)
            return answer.status == health_pb2.HealthCheckResponse.SERVING

        for name in ("startup", "liveness", "readiness", ""):
            await until(lambda name=name: serves(name))
        stats = await LifecycleClient(channel, service="learner").stats(now_s=0.0)
        assert (stats.instance, stats.state) == ("learner-rank-1", "ready")
        tape.go_on.set()
        async with asyncio.timeout(TIMEOUT_S):
            assert await life == 0
        assert tape.closed
        await channel.close()


async def test_a_follower_that_loses_rank_0_fails() -> None:
    tape = PausedTape()
    tape.recorded = True
    async with following(tape) as (life, _):
        tape.go_on.set()
        async with asyncio.timeout(TIMEOUT_S):
            assert await life == 1


async def test_a_follower_of_a_complete_run_ends_as_its_learner_does() -> None:
    tape = PausedTape()
    send(tape.as_group(), StopRanks(completed=True))
    tape.recorded = True
    async with following(tape) as (life, _):
        tape.go_on.set()
        async with asyncio.timeout(TIMEOUT_S):
            assert await life == exit_codes.COMPLETED


async def test_a_stopping_follower_reports_it_to_rank_0() -> None:
    tape = PausedTape()
    send(tape.as_group(), Wait())
    send(tape.as_group(), StopRanks())
    tape.recorded = True
    async with following(tape) as (life, address):
        channel = permitted_channel(address)
        client = LifecycleClient(channel, service="learner")

        async def reported() -> bool:
            return (await client.stats(now_s=0.0)).state == "draining"

        async def asked() -> bool:
            await client.drain(reason="the test")
            return await reported()

        await until(asked)
        tape.go_on.set()
        async with asyncio.timeout(TIMEOUT_S):
            assert await life == 0
        assert tape.asked == [1]
        await channel.close()
