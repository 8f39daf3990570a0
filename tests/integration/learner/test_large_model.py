"""A policy of a third of a gigabyte: the event loops of learner, weight distribution and actor never stand still."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import pytest
import structlog

from tests.integration.learner.world import CONFIG, world
from tests.support.loop_stalls import stalls_of
from tests.support.other_threads import longest_hold_cpu_s
from tests.unit.learner.trajectories import version
from tidegate.actor.engines.port import EngineControl
from tidegate.actor.policy import ActorPolicies
from tidegate.actor.rollouts.served_policy import ServedPolicy
from tidegate.catalogue import learner as statistics
from tidegate.core.records import Array, PolicySnapshot
from tidegate.core.response import FRESH, Response
from tidegate.core.staleness import LineageTree
from tidegate.learner import main
from tidegate.learner.checkpoint_tensors import read_tensors, write_tensors
from tidegate.learner.optim.port import TrainerState
from tidegate.models.finite import check_finite
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import PolicyConfig
from tidegate.runtime.loop_watchdog import LoopWatchdog
from tidegate.wire.policy_payload import announce
from tidegate.wire.subjects import Topology

pytestmark = pytest.mark.integration

# Far below the size of the whole, far above what a busy machine adds to a piece of a few megabytes.
HOLD_MAX_S = 0.2


def large_policy() -> dict[str, Array]:
    """320 MB in two tensors."""
    rng = np.random.default_rng(0)
    return {f"layer.{index}": rng.standard_normal((8_000, 5_000), dtype=np.float32) for index in range(2)}


class LargeTrainer:
    """A trainer whose update costs nothing, with two moments of each parameter."""

    def __init__(self, policy: dict[str, Array]) -> None:
        self._policy = policy

    def prepare(self, batch: object, /) -> object:
        return batch

    def update(self, batch: object, *, number: int, response: Response = FRESH) -> dict[str, float]:
        for tensor in self._policy.values():
            tensor[0, 0] = number
        return {"loss": 0.0}

    def policy(self) -> dict[str, Array]:
        return {name: tensor.copy() for name, tensor in self._policy.items()}

    def state(self) -> TrainerState:
        moments = {f"{name}.{moment}": tensor for moment in "mv" for name, tensor in self.policy().items()}
        return TrainerState(tensors=moments, values={})

    def restore(self, policy: Mapping[str, Array], state: TrainerState) -> None:
        self._policy = {name: np.array(tensor) for name, tensor in policy.items()}


@pytest.fixture
def large_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learners train this one; made outside of the event loop that is watched."""
    trainer = LargeTrainer(large_policy())

    def open_large(setting: object) -> LargeTrainer:
        return trainer

    monkeypatch.setattr(main, "open_trainer", open_large)


@pytest.mark.usefixtures("large_trainer")
async def test_loop_serves_while_a_large_policy_is_copied_published_checkpointed_and_restored(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    config = msgspec.structs.replace(CONFIG, checkpoint_every_steps=1, keep_checkpoints=1)
    async with world(tmp_path, bus, topology) as running:
        watchdog = LoopWatchdog(structlog.get_logger("test"))
        watchdog.start()
        async with running.learner(config) as life:
            running.offer(1, at=await life.version(0))
            await life.acknowledged(1)
            await life.client.checkpoint()
            assert life.context.stats.value(statistics.CHECKPOINT_S) > 0.0
        async with running.learner(config) as life:
            assert (await life.version(1)).step == 1
        watchdog.stop()
    assert not (stalls := stalls_of(watchdog)), stalls


class CheckingEngine:
    """An engine that looks at every value of a policy."""

    def check_policy(self, snapshot: PolicySnapshot) -> None:
        check_finite(snapshot)


async def test_loop_of_an_actor_serves_while_a_large_policy_is_checked() -> None:
    snapshot = PolicySnapshot(version(1), large_policy(), published_at_s=0.0)
    policies = ActorPolicies(
        PolicyConfig(kind="mlp"), ServedPolicy(EngineControl(), asyncio.Event()), CheckingEngine()
    )
    watchdog = LoopWatchdog(structlog.get_logger("test"))
    watchdog.start()
    for _ in range(20):
        await policies.prepare(snapshot)
        await asyncio.sleep(0)
    watchdog.stop()
    assert not (stalls := stalls_of(watchdog)), stalls


def test_no_step_of_a_publication_or_a_checkpoint_keeps_other_threads_from_running(tmp_path: Path) -> None:
    tensors = large_policy()
    snapshot = PolicySnapshot(version(1), tensors, published_at_s=0.0)
    path = tmp_path / "tensors"
    assert longest_hold_cpu_s(lambda: write_tensors(path, tensors)) < HOLD_MAX_S
    assert longest_hold_cpu_s(lambda: read_tensors(path)) < HOLD_MAX_S
    assert longest_hold_cpu_s(lambda: announce(snapshot, LineageTree())) < HOLD_MAX_S
    assert longest_hold_cpu_s(lambda: check_finite(snapshot)) < HOLD_MAX_S


def test_measure_of_the_other_threads_finds_a_call_that_lets_none_run() -> None:
    whole = large_policy()["layer.0"]
    copies: list[bytes] = []

    def hold() -> None:
        copies[:] = [b"".join([whole.data] * 8)]

    # Beside other work the thread that measures may miss one.
    assert any(longest_hold_cpu_s(hold) > HOLD_MAX_S for _ in range(5))
