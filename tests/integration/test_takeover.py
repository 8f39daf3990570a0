"""A stranger on the machine, and an actor outside of its role, against the real services of a run: nothing changes."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.broker import Broker
from tests.support.call_credentials import token_of
from tests.support.calls import with_status
from tests.support.service_harness import channel_of_test, make_context, running
from tests.support.settings import make_settings
from tests.unit.weight_distribution.offers import TREE, random_tensors, version
from tidegate.core.errors import BackpressureError, PermissionDeniedError, UnauthenticatedError
from tidegate.core.ids import LineageName, PolicyVersion, TrajectoryId
from tidegate.core.records import PolicySnapshot
from tidegate.core.staleness import Lineage, StalenessLimits
from tidegate.environment import main as environment
from tidegate.environment.config import EnvironmentConfig
from tidegate.runtime.bus import Bus
from tidegate.runtime.call_credentials import CallToken, FixedToken, derive_token
from tidegate.runtime.rpc import open_channel
from tidegate.runtime.service import ServiceContext
from tidegate.trajectory_store import main as trajectory_store
from tidegate.trajectory_store.config import TrajectoryStoreConfig
from tidegate.weight_distribution import main as weight_distribution
from tidegate.weight_distribution.config import WeightDistributionConfig
from tidegate.wire.announcement import Announcement
from tidegate.wire.clients.environment import EnvironmentClient
from tidegate.wire.clients.trajectory_store import Consumption, Dropped, TrajectoryStoreClient
from tidegate.wire.clients.weight_distribution import WeightDistributionClient

pytestmark = pytest.mark.integration

LIMITS = StalenessLimits(max_lag=4, max_age_s=300.0)
AT = PolicyVersion(LineageName("0-main"), 0)
NO_TOKEN = None
ANOTHER_RUN = FixedToken(derive_token("another run", "learner"))
STRANGERS = pytest.mark.parametrize("token", [NO_TOKEN, ANOTHER_RUN], ids=["no-token", "another-run"])


class Stranger:
    """A client that reaches the port of one service."""

    def __init__(self, context: ServiceContext, service: str, token: CallToken | None) -> None:
        self.channel = open_channel(context.settings.addresses[service][0], token)
        self.refusal = UnauthenticatedError if token in (NO_TOKEN, ANOTHER_RUN) else PermissionDeniedError

    async def refused(self, *attempts: Callable[[], Awaitable[object]]) -> None:
        """Every attempt is refused for its caller, before its content is looked at."""
        for attempt in attempts:
            with pytest.raises((UnauthenticatedError, PermissionDeniedError)) as refused:
                await with_status(attempt)
            assert type(refused.value) is self.refusal
        await self.channel.close()


@pytest.fixture
async def store(tmp_path: Path, nats: Broker, bus: Bus) -> AsyncIterator[ServiceContext]:
    settings = make_settings(tmp_path, broker_url=nats.url)
    context = make_context("trajectory_store", settings, bus=bus)
    async with running(trajectory_store.build, TrajectoryStoreConfig(), context):
        yield context


def calls_of_a_learner(client: TrajectoryStoreClient) -> list[Callable[[], Awaitable[object]]]:
    lineages = [Lineage(LineageName(name)) for name in ("0-stranger", "")]
    return [
        *(lambda each=each: client.open_lineage(each, learner_id="stranger") for each in lineages),
        lambda: client.lease_batch(AT, batch_size=6, limits=LIMITS, max_wait_s=0.1, learner_id="stranger"),
        lambda: client.sample_batch(
            PolicyVersion(AT.lineage, 10**9),
            batch_size=1,
            limits=LIMITS,
            max_wait_s=0.1,
            learner_id="stranger",
        ),
        lambda: client.commit_batch("b-1", version=AT, consumptions=list[Consumption]()),
        lambda: client.release_batch("b-1"),
        lambda: client.mark_checkpointed(AT),
    ]


def reads_of_an_operator(client: TrajectoryStoreClient) -> list[Callable[[], Awaitable[object]]]:
    return [client.read_ledger, client.ledger, lambda: client.trajectory("t-1")]


@STRANGERS
async def test_stranger_neither_leases_nor_drops_nor_uploads_nor_reads(
    store: ServiceContext, token: CallToken | None
) -> None:
    stranger = Stranger(store, "trajectory_store", token)
    client = TrajectoryStoreClient(stranger.channel)
    invented = [Dropped(TrajectoryId(f"invented-{number}"), "failed") for number in range(20_000)]
    await stranger.refused(
        *calls_of_a_learner(client),
        *reads_of_an_operator(client),
        lambda: client.watch_outcomes(0, limit=10, max_wait_s=0.1),
        lambda: client.drop_unarrived(invented),
        *(lambda number=number: client.upload(f"payload-{number}", b"x" * 4096) for number in range(16)),
    )
    owner = TrajectoryStoreClient(channel_of_test(store, "trajectory_store"))
    totals, ids = await owner.read_ledger()
    assert (totals.dropped, ids) == ({}, set())
    await owner.upload("honest", b"x" * (1 << 20))
    tree, _ = await owner.open_lineage(Lineage(AT.lineage), learner_id="learner-0")
    assert set(tree.lineages) == {AT.lineage}


async def test_actor_may_neither_train_nor_read_the_ledger(store: ServiceContext) -> None:
    actor = Stranger(store, "trajectory_store", token_of("actor"))
    client = TrajectoryStoreClient(actor.channel)
    await actor.refused(*calls_of_a_learner(client), *reads_of_an_operator(client))


@pytest.mark.parametrize(
    "token", [NO_TOKEN, ANOTHER_RUN, token_of("actor")], ids=["no-token", "another-run", "actor"]
)
async def test_forged_policy_is_not_published(tmp_path: Path, bus: Bus, token: CallToken | None) -> None:
    context = make_context("weight_distribution", make_settings(tmp_path, broker_url=""), bus=bus)
    async with running(weight_distribution.build, WeightDistributionConfig(), context):
        learner = WeightDistributionClient(channel_of_test(context, "weight_distribution"))
        await learner.publish(PolicySnapshot(version(1), random_tensors(1)), TREE)
        stranger = Stranger(context, "weight_distribution", token)
        client = WeightDistributionClient(stranger.channel)
        zeros = {name: np.zeros_like(tensor) for name, tensor in random_tensors(1).items()}
        large = {"w": np.zeros(1 << 20, np.float32)}
        await stranger.refused(
            lambda: client.publish(PolicySnapshot(version(6), zeros), TREE),
            lambda: client.publish(PolicySnapshot(version(7), large), TREE),
            client.head,
        )
        head, _ = await learner.head()
        assert head is not None
        assert head.version == version(1)


@STRANGERS
async def test_weights_are_not_given_to_a_stranger(tmp_path: Path, bus: Bus, token: CallToken | None) -> None:
    context = make_context("weight_distribution", make_settings(tmp_path, broker_url=""), bus=bus)
    async with running(weight_distribution.build, WeightDistributionConfig(), context):
        learner = WeightDistributionClient(channel_of_test(context, "weight_distribution"))
        await learner.publish(PolicySnapshot(version(1), random_tensors(1)), TREE)
        announcement, _ = await learner.head()
        assert announcement is not None
        found: Announcement = announcement
        stranger = Stranger(context, "weight_distribution", token)
        client = WeightDistributionClient(stranger.channel)
        await stranger.refused(lambda: client.pull(found, found.names))
        assert (await learner.pull(found, found.names)).keys() == random_tensors(1).keys()


@STRANGERS
async def test_stranger_takes_no_session_of_an_environment(
    tmp_path: Path, nats: Broker, bus: Bus, token: CallToken | None
) -> None:
    context = make_context("environment", make_settings(tmp_path, broker_url=nats.url), bus=bus)
    async with running(environment.build, EnvironmentConfig(max_sessions=2), context):
        stranger = Stranger(context, "environment", token)
        client = EnvironmentClient(stranger.channel)
        await stranger.refused(
            *(lambda seed=seed: client.reset("CartPole-v1", seed=seed) for seed in range(8))
        )
        actor = EnvironmentClient(channel_of_test(context, "environment"))
        sessions = [await actor.reset("CartPole-v1", seed=seed) for seed in range(2)]
        assert len(sessions) == 2
        with pytest.raises(BackpressureError):
            await actor.reset("CartPole-v1", seed=3)
