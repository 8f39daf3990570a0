import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.integration.learner.world import CONFIG, TIMEOUT_S, Life, World, until, world
from tests.support.service_harness import channel_of_test
from tests.unit.learner.trajectories import segment_tensors
from tests.unit.models.tiny_llama import make_folder
from tidegate.catalogue import learner as statistics
from tidegate.core.errors import ConflictError, TidegateError, UnauthenticatedError, UnavailableError
from tidegate.core.ids import LineageName, PolicyVersion, TaskId, TrajectoryId
from tidegate.core.records import PolicySnapshot, Trajectory
from tidegate.core.staleness import Lineage
from tidegate.learner.optim.actor_critic import ActorCriticTrainer
from tidegate.models.model_folder import folder_digest
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import LoraConfig, PolicyConfig
from tidegate.wire.announcement import Announcement
from tidegate.wire.clients.weight_distribution import WeightDistributionClient
from tidegate.wire.subjects import Topology

pytestmark = pytest.mark.integration
SEVERAL = msgspec.structs.replace(CONFIG, updates_per_version=2)


def head(running: World, step: int) -> PolicyVersion:
    return PolicyVersion(lineage=running.store.head_lineage.name, step=step)


def steps(running: World) -> list[dict[str, object]]:
    path = Path(running.settings.data_dir) / "learner" / "steps.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


async def test_first_version_is_published_before_the_first_batch(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    async with world(tmp_path, bus, topology) as running, running.learner() as life:
        assert await life.version(0) == head(running, 0)
        announced = await running.announced()
        assert announced.version == head(running, 0)
        assert running.store.head_lineage.parent is None
        assert announced.inline_snapshot() is not None


async def test_each_batch_makes_one_version_and_is_committed_at_the_one_before(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    async with world(tmp_path, bus, topology) as running:
        async with running.learner() as life:
            await life.version(0)
            first = await running.announced()
            running.offer(3, at=head(running, 0))
            assert await life.version(3) == head(running, 3)
            await until(lambda: len(running.store.commits) == 3)
            progress = await life.client.progress()
        commits = running.store.commits
        assert [commit.version.step for commit in commits] == [0, 1, 2]
        assert [set(commit.lags.values()) for commit in commits] == [{0}, {1}, {2}]
        announced = await running.announced()
        assert announced.version == head(running, 3)
        assert announced.digests() != first.digests()
        assert progress.consumed_trajectories == 6
        assert progress.metrics.keys() >= {"loss", "ess", "clipped_fraction", "mean_return"}
        assert progress.metrics["mean_return"] == np.mean([1, 2, 3, 4, 5, 6])
        lines = steps(running)
        assert [line["step"] for line in lines] == [1, 2, 3]
        assert [line["lag_max"] for line in lines] == [0, 1, 2]
        assert lines[-1]["env_steps"] == progress.consumed_steps == 6 * 32
        assert running.store.leases == {}


async def test_several_updates_are_one_version_and_one_commit(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    async with world(tmp_path, bus, topology) as running:
        async with running.learner(SEVERAL) as life:
            await life.version(0)
            running.offer(3, at=head(running, 0))
            await life.version(3)
            await until(lambda: len(running.store.commits) == 3)
            progress = await life.client.progress()
        assert [commit.version.step for commit in running.store.commits] == [0, 1, 2]
        assert [set(commit.lags.values()) for commit in running.store.commits] == [{0}, {1}, {2}]
        assert (await running.announced()).version == head(running, 3)
        assert progress.consumed_trajectories == 6
        assert [(line["step"], line["samples"], line["updates"]) for line in steps(running)] == [
            (1, 2, 2),
            (2, 2, 2),
            (3, 2, 2),
        ]


async def test_failure_between_two_updates_of_a_version_loses_the_whole_version(
    tmp_path: Path, bus: Bus, topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, bus, topology, max_lag=4) as running:
        async with running.learner(SEVERAL) as life:
            await life.version(0)
            running.offer(1, at=head(running, 0))
            await life.version(1)
            await until(lambda: len(running.store.commits) == 1)
        trained = await running.announced()
        update = ActorCriticTrainer.update

        def failing(
            trainer: ActorCriticTrainer, batch: Any, *, number: int, **given: Any
        ) -> dict[str, float]:
            metrics = update(trainer, batch, number=number, **given)
            return {**metrics, "loss": float("nan")} if number >= 3 else metrics

        lost: list[Trajectory] = []

        async def life_that_fails() -> None:
            async with running.learner(SEVERAL) as life:
                lost.extend(running.offer(1, at=await life.version(1)))
                await until(life.loop.done)

        with monkeypatch.context() as patched:
            patched.setattr(ActorCriticTrainer, "update", failing)
            with pytest.raises(TidegateError, match="not finite"):
                await life_that_fails()
        assert len(running.store.commits) == 1
        assert (await running.announced()).digests() == trained.digests()
        async with running.learner(SEVERAL) as life:
            await life.version(2)
            await until(lambda: len(running.store.commits) == 2)
        again = running.store.commits[1]
        assert again.version.step == 1
        assert again.lags.keys() == {trajectory.trajectory_id for trajectory in lost}


async def test_without_a_budget_nothing_is_leased_ahead(tmp_path: Path, bus: Bus, topology: Topology) -> None:
    async with world(tmp_path, bus, topology, max_lag=0) as running, running.learner() as life:
        await life.version(0)
        for step in range(3):
            running.offer(1, at=head(running, step))
            await life.version(step + 1)
        await until(lambda: len(running.store.commits) == 3)
        # One being trained, and the one before while its commit is on the way.
        assert running.store.num_leases_max <= 2
        assert all(set(commit.lags.values()) == {0} for commit in running.store.commits)


async def test_with_a_budget_the_next_batch_is_leased_while_one_is_trained(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    async with world(tmp_path, bus, topology, max_lag=4) as running, running.learner() as life:
        await life.version(0)
        running.offer(4, at=head(running, 0))
        await life.version(4)
        # One being trained, one ahead, and the one before while its commit is on the way.
        assert 2 <= running.store.num_leases_max <= 3


async def test_trajectory_that_left_the_budget_after_its_lease_is_not_trained(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    async with world(tmp_path, bus, topology, max_lag=1) as running, running.learner() as life:
        await life.version(0)
        running.offer(2, at=head(running, 0))
        await life.version(2)
        # This store leases stale batches: two versions behind, and too old.
        stale, fresh = running.offer(1, at=head(running, 0))
        (expired, _) = running.offer(1, at=head(running, 2), started_at_s=1.0)
        del fresh
        running.offer(1, at=head(running, 2))
        await life.version(3)
        dropped = {name: reason for _, names in running.store.releases for name, reason in names.items()}
        assert dropped[stale.trajectory_id] == "stale"
        assert dropped[expired.trajectory_id] == "expired"
        assert all(max(commit.lags.values()) <= 1 for commit in running.store.commits)
        assert all(not commit.lags.keys() & dropped.keys() for commit in running.store.commits)


async def test_trajectory_that_fits_no_policy_is_dropped_and_training_continues(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    async with world(tmp_path, bus, topology) as running, running.learner() as life:
        await life.version(0)
        tensors = segment_tensors(1)
        del tensors["observations"]
        invalid = running.offer(1, at=head(running, 0), tensors=tensors)
        running.offer(1, at=head(running, 0))
        await life.version(1)
        (_, dropped) = running.store.releases[0]
        assert dropped == {trajectory.trajectory_id: "invalid" for trajectory in invalid}


async def test_trajectory_that_makes_an_update_not_finite_is_named_and_training_continues(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    async with world(tmp_path, bus, topology) as running, running.learner() as life:
        await life.version(0)
        sound = running.offer(1, at=head(running, 0))
        poisoned = msgspec.structs.replace(
            sound[0], trajectory_id=TrajectoryId("bad.0"), task_id=TaskId("bad")
        )
        rewards = poisoned.tensors["rewards"].copy()
        rewards[3, 1] = 3e38
        poisoned = msgspec.structs.replace(poisoned, tensors={**poisoned.tensors, "rewards": rewards})
        del running.store.available[0]
        running.store.offer([poisoned, sound[0]])
        await life.version(1)
        (_, dropped) = running.store.releases[0]
        assert dropped == {"bad.0": "poisoned"}
        await life.acknowledged(1)
        (commit,) = running.store.commits
        assert commit.lags.keys() == {trajectory.trajectory_id for trajectory in sound}
        assert len(running.store.opened) == 1
        stored = await bus.last(topology.stream("QUARANTINE"), topology.quarantine("learner"))
        assert stored is not None
        kept = json.loads(stored.data)
        assert (kept["trajectory_id"], kept["found"]["tensor"], kept["found"]["position"]) == (
            "bad.0",
            "rewards",
            [3, 1],
        )


async def test_commit_and_lease_survive_an_absent_store_and_lost_answers(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    async with world(tmp_path, bus, topology) as running:
        running.store.failures.update(OpenLineage=2, LeaseBatch=2, CommitBatch=3)
        running.store.lost_answers.update(OpenLineage=1, LeaseBatch=2, CommitBatch=1)
        async with running.learner() as life:
            await life.version(0)
            running.offer(3, at=head(running, 0))
            await life.version(3)
            await until(lambda: len(running.store.commits) == 3)
        assert [commit.version.step for commit in running.store.commits] == [0, 1, 2]
        assert len(running.store.opened) == 1
        assert (await running.announced()).version.step == 3


@dataclass
class HeldUpdate:
    """A learner in its first update, which ends once ``may_finish`` is set; the next batch is offered."""

    running: World
    life: Life
    may_finish: threading.Event


@asynccontextmanager
async def held_update(
    folder: Path, bus: Bus, topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[HeldUpdate]:
    """Leases last 0.2 s."""
    may_finish = hold_updates(monkeypatch)
    async with world(folder, bus, topology) as running, running.learner() as life:
        running.store.lease_timeout_s = 0.2
        await life.version(0)
        running.offer(2, at=head(running, 0))
        yield HeldUpdate(running, life, may_finish)


def hold_updates(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Updates wait in their thread until the event is set."""
    may_finish = threading.Event()
    real = ActorCriticTrainer.update

    def update(trainer: ActorCriticTrainer, *args: Any, **kwargs: Any) -> dict[str, float]:
        may_finish.wait(TIMEOUT_S)
        return real(trainer, *args, **kwargs)

    monkeypatch.setattr(ActorCriticTrainer, "update", update)
    return may_finish


async def test_leases_are_renewed_while_an_update_computes(
    tmp_path: Path, bus: Bus, topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with held_update(tmp_path, bus, topology, monkeypatch) as held:
        store = held.running.store
        # The batch in training, and the one that is leased ahead of it.
        await until(lambda: len([name for name, count in store.renewed.items() if count > 4]) == 2)
        held.may_finish.set()
        await held.life.version(2)
        await until(lambda: len(store.commits) == 2)


async def test_update_in_progress_says_by_when_it_should_end_and_lasts_as_long_as_it_does(
    tmp_path: Path, bus: Bus, topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with held_update(tmp_path, bus, topology, monkeypatch) as held:
        stats, clock = held.life.context.stats, held.life.context.clock
        await until(lambda: stats.value(statistics.UPDATE_DUE_AT_S) > clock.now_s())
        # The wall clock is set back by an hour meanwhile.
        monkeypatch.setattr(clock, "now_s", lambda: time.time() - 3600.0)
        held.may_finish.set()
        await held.life.version(2)
        await until(lambda: stats.value(statistics.UPDATE_DUE_AT_S) == 0.0)
        assert 0.0 < stats.value(statistics.BUSY_S) < TIMEOUT_S


async def test_batch_that_was_lost_before_its_update_is_replaced(
    tmp_path: Path, bus: Bus, topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with held_update(tmp_path, bus, topology, monkeypatch) as held:
        store = held.running.store
        await until(lambda: len(store.renewed) == 2)
        ahead = next(lease for lease in store.leases.values() if lease.version.step == 1)
        renewals = store.calls["RenewLeases"]
        del store.leases[ahead.batch_id]
        store.offer(ahead.trajectories)
        await until(lambda: store.calls["RenewLeases"] > renewals + 1)
        held.may_finish.set()
        await until(lambda: len(store.commits) == 2)
        assert ahead.batch_id not in {commit.batch_id for commit in store.commits}


async def test_learner_whose_lineage_was_replaced_ends_with_a_conflict(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    async def be_taken_over(running: World) -> None:
        async with running.learner() as life:
            await life.version(0)
            other = Lineage(name=LineageName("0-ffff"))
            running.store.tree = running.store.tree.add(other)
            running.store.opened.append(other)
            await asyncio.wait([life.loop])

    async with world(tmp_path, bus, topology) as running:
        with pytest.raises(ConflictError, match="closed"):
            await be_taken_over(running)


async def test_version_that_weight_distribution_lost_is_published_again(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    async with world(tmp_path, bus, topology) as running, running.learner() as life:
        await life.version(0)
        running.offer(1, at=head(running, 0))
        version = await life.version(1)
        await until(lambda: len(running.store.commits) == 1)
        await running.serve_weights(tmp_path / "another-disk")
        weights = WeightDistributionClient(channel_of_test(life.context, "weight_distribution"))

        async def versions() -> list[PolicyVersion]:
            # Channels of a process share their connections: this one may still hold the learner's last failure.
            with suppress(UnavailableError):
                return (await weights.head())[1]
            return []

        async with asyncio.timeout(60.0):
            while version not in await versions():
                await asyncio.sleep(0.05)
        assert (await bus.stream_state(topology.stream("POLICY"))).messages == 2


async def test_first_version_is_published_again_with_the_time_of_its_publication(
    tmp_path: Path, bus: Bus, topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(client: WeightDistributionClient) -> tuple[Announcement | None, list[PolicyVersion]]:
        return None, []

    times_s: list[float] = []
    publish = WeightDistributionClient.publish

    async def noted(
        client: WeightDistributionClient, snapshot: PolicySnapshot, *args: Any, **kw: Any
    ) -> None:
        times_s.append(snapshot.published_at_s)
        await publish(client, snapshot, *args, **kw)

    monkeypatch.setattr(WeightDistributionClient, "head", nothing)
    monkeypatch.setattr(WeightDistributionClient, "publish", noted)
    async with world(tmp_path, bus, topology) as running, running.learner() as life:
        await until(lambda: len(times_s) >= 2 or life.loop.done())
    assert len(set(times_s)) == 1, "metrics of propagation count from it"
    assert times_s[0] > 0.0


async def test_credential_that_is_being_rotated_ends_no_learner_that_waits_for_a_batch(
    tmp_path: Path, bus: Bus, topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_asked = 0
    ask = WeightDistributionClient.head

    async def refused_twice(
        client: WeightDistributionClient,
    ) -> tuple[Announcement | None, list[PolicyVersion]]:
        nonlocal num_asked
        num_asked += 1
        if num_asked <= 2:
            raise UnauthenticatedError("The credential was rotated")
        return await ask(client)

    monkeypatch.setattr(WeightDistributionClient, "head", refused_twice)
    async with world(tmp_path, bus, topology) as running, running.learner() as life:
        await life.version(0)
        await until(lambda: num_asked > 2 or life.loop.done())
        assert not life.loop.done()


async def test_every_publication_of_adapters_names_the_model_they_are_of(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    folder = make_folder(tmp_path / "llama", tied=True)
    policy = PolicyConfig(kind="transformers", path=str(folder), lora=LoraConfig(rank=2))
    async with world(tmp_path, bus, topology, policy=policy) as running, running.learner() as life:
        await life.version(0)
        announced = await running.announced()
        assert announced.message.base_digest == folder_digest(folder)
        await running.serve_weights(tmp_path / "another-disk")
        weights = WeightDistributionClient(channel_of_test(life.context, "weight_distribution"))
        async with asyncio.timeout(60.0):
            while announced.version not in (await weights.head())[1]:
                await asyncio.sleep(0.05)
        head, _ = await weights.head()
        assert head is not None
        assert head.message.base_digest == folder_digest(folder)


async def test_progress_before_the_first_version_asks_to_retry(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    async with world(tmp_path, bus, topology) as running:
        running.store.failures.update(OpenLineage=10_000)
        async with running.learner() as life:
            with pytest.raises(UnavailableError, match="starting"):
                await life.client.progress()
            running.store.failures.clear()
            await life.version(0)
            assert (await life.client.progress()).consumed_trajectories == 0
