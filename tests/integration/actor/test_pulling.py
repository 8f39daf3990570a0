"""Policies too large for an announcement: pulled, resumed, verified, and applied atomically."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.integration.actor.harness import (
    TREE,
    announce_policy,
    give,
    mlp_params,
    segment,
    segments_settings,
    trajectories,
    version,
)
from tests.support.broker import Broker
from tests.support.call_credentials import accepted
from tests.support.service_harness import make_context, running, until
from tidegate.actor import main
from tidegate.actor.config import ActorConfig
from tidegate.catalogue import actor as statistics
from tidegate.core.errors import NotFoundError, UnavailableError
from tidegate.core.records import PolicySnapshot
from tidegate.runtime import policy_follower
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import Settings
from tidegate.runtime.rpc import Registration, RpcServer
from tidegate.v1 import weight_distribution_service_pb2 as pb
from tidegate.v1.weight_distribution_service_pb2_grpc import add_WeightDistributionServiceServicer_to_server
from tidegate.wire.policy_payload import announce
from tidegate.wire.subjects import Topology

pytestmark = pytest.mark.integration
CONFIG = ActorConfig(pull_attempts=4)


class FlakyWeights:
    """Serves tensors by version; ``failures`` defines how the next calls fail."""

    def __init__(self) -> None:
        self.tensors: dict[int, dict[str, bytes]] = {}
        self.asked: list[tuple[int, tuple[str, ...]]] = []
        self.failures: list[str] = []

    def keep(self, snapshot: PolicySnapshot) -> None:
        message, chunks = announce(snapshot, TREE)
        names = [entry.name for entry in message.tensors]
        read = (bytes(chunk) for chunk in chunks)
        self.tensors[snapshot.version.step] = dict(zip(names, read, strict=True))

    async def PullPolicy(  # gRPC's name
        self, request: pb.PullPolicyRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.PullPolicyResponse]:
        self.asked.append((request.version.step, tuple(request.tensors)))
        failure = self.failures.pop(0) if self.failures else ""
        if failure == "gone":
            raise NotFoundError("no longer kept")
        for name in request.tensors:
            chunk = self.tensors[request.version.step][name]
            if failure == "corrupt":
                chunk = bytes(len(chunk) - 1) + b"\x55"
            yield pb.PullPolicyResponse(chunk=chunk)
            if failure == "break":
                raise UnavailableError("the connection broke")

    def __getattr__(self, name: str) -> Any:
        """Every other call of the service exists and is never made."""
        if name.startswith("_"):
            raise AttributeError(name)
        return None


@pytest.fixture
def settings(tmp_path: Path, nats: Broker) -> Settings:
    return segments_settings(tmp_path, nats)


@pytest.fixture
async def weights(settings: Settings) -> AsyncIterator[FlakyWeights]:
    weights = FlakyWeights()
    server = RpcServer(
        [
            Registration(
                add_WeightDistributionServiceServicer_to_server,
                weights,
                "tidegate.v1.WeightDistributionService",
            )
        ],
        accepted(),
    )
    await server.start(settings.addresses["weight_distribution"][0])
    yield weights
    await server.stop(grace_s=0.0)


async def publish(
    bus: Bus, topology: Topology, weights: FlakyWeights, step: int, seed: int
) -> PolicySnapshot:
    snapshot = PolicySnapshot(version(step), mlp_params(seed))
    weights.keep(snapshot)
    await announce_policy(bus, topology, step, snapshot.tensors, inline=False)
    return snapshot


async def test_only_what_changed_travels(
    bus: Bus, topology: Topology, settings: Settings, weights: FlakyWeights
) -> None:
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context:
        await publish(bus, topology, weights, 0, seed=0)
        await until(lambda: context.stats.value(statistics.WEIGHT_PULL_MS) > 0)
        changed = mlp_params(0) | {"value.1.bias": np.ones(1, np.float32)}
        weights.keep(PolicySnapshot(version(1), changed))
        await announce_policy(bus, topology, 1, changed, inline=False)
        await give(bus, topology, [segment("task-1", required=1)])
        [record] = await trajectories(bus, topology, 1)
    assert record.spans[0].version == version(1)
    assert [step for step, _ in weights.asked] == [0, 1]
    assert set(weights.asked[0][1]) == set(mlp_params(0))
    assert weights.asked[1][1] == ("value.1.bias",)


async def test_interrupted_pull_resumes_where_it_stopped(
    bus: Bus, topology: Topology, settings: Settings, weights: FlakyWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_follower, "PIECE_BYTES", 1)
    weights.failures = ["", "", "break"]
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context:
        await publish(bus, topology, weights, 0, seed=0)
        await until(lambda: context.stats.value(statistics.WEIGHT_PULL_MS) > 0)
    names = [asked for _, asked in weights.asked]
    assert names.count(names[2]) == 2, "the piece that broke is asked for again"
    assert sorted(names[:2] + names[3:]) == sorted((name,) for name in mlp_params(0)), "the others are not"


async def test_corrupt_tensor_is_pulled_again_and_never_served(
    bus: Bus, topology: Topology, settings: Settings, weights: FlakyWeights
) -> None:
    weights.failures = ["corrupt", "corrupt"]
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context:
        await publish(bus, topology, weights, 0, seed=0)
        await give(bus, topology, [segment("task-1")])
        [record] = await trajectories(bus, topology, 1)
    assert record.spans[0].version == version(0)
    assert context.stats.value(statistics.PULL_RETRIES) == 2
    assert len(weights.asked) == 3


async def test_version_that_is_no_longer_kept_is_left_for_the_next(
    bus: Bus, topology: Topology, settings: Settings, weights: FlakyWeights
) -> None:
    weights.failures = ["gone"] * 4
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context:
        await publish(bus, topology, weights, 0, seed=0)
        await until(lambda: context.stats.value(statistics.PULL_RETRIES) >= 1)
        weights.failures = []
        await publish(bus, topology, weights, 1, seed=1)
        await give(bus, topology, [segment("task-1", required=1)])
        [record] = await trajectories(bus, topology, 1)
    assert record.spans[0].version == version(1)


async def test_actor_without_weight_distribution_serves_on_and_recovers(
    bus: Bus, topology: Topology, settings: Settings
) -> None:
    weights = FlakyWeights()
    async with running(main.build, CONFIG, make_context("actor", settings, bus=bus)) as context:
        await announce_policy(bus, topology, 0, mlp_params(0))
        await until(lambda: context.stats.value(statistics.WEIGHT_PULL_MS) > 0)
        await publish(bus, topology, weights, 1, seed=1)
        await until(lambda: context.stats.value(statistics.PULL_RETRIES) >= 2)
        await give(bus, topology, [segment("task-1")])
        [record] = await trajectories(bus, topology, 1)
        assert record.spans[0].version == version(0)
        server = RpcServer(
            [
                Registration(
                    add_WeightDistributionServiceServicer_to_server,
                    weights,
                    "tidegate.v1.WeightDistributionService",
                )
            ],
            accepted(),
        )
        await server.start(settings.addresses["weight_distribution"][0])
        await give(bus, topology, [segment("task-2", required=1)])
        [record] = await trajectories(bus, topology, 1)
        await server.stop(grace_s=0.0)
    assert record.spans[0].version == version(1)
