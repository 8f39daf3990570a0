"""The services' own lifecycle under seeds: drains, loops that fail, end or hang, and their cost."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from tests.simulation.reports import check
from tests.simulation.scenarios import groups_of_four
from tests.simulation.seeds import seeds
from tidegate.actor.rollouts import episode_runner
from tidegate.actor.rollouts.resumption import ResumedGroup, resume
from tidegate.core.errors import ConflictError
from tidegate.core.records import Task
from tidegate.launch.services import REQUIRED, instances
from tidegate.sim.cluster import DRAIN_TIMEOUT_S, SimulatedCluster
from tidegate.sim.faults import FAULTS, drain_blocked_actor, drain_one, fail_loop
from tidegate.sim.network import HEALTHY
from tidegate.sim.paced_engine import PacedEngine
from tidegate.sim.process import Process
from tidegate.sim.rpc import Channel, Server, Switchboard
from tidegate.sim.scenario import Scenario, draw_scenario
from tidegate.sim.simulation import Report, simulate
from tidegate.wire.clients.lifecycle import LifecycleClient

pytestmark = [
    pytest.mark.simulation,
    # Coroutines of killed processes are closed at the end of the run, after their loop is gone.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TICKS = 800
# Enough for one fault and the recovery from it.
SHORT_TICKS = 400
WARM_UP_S = 3.0
INSTANCES = [instance for service in REQUIRED for instance in instances(service, replicas=1)]


def two_actors(seed: int, *, ticks: int = TICKS) -> Scenario:
    return msgspec.structs.replace(
        draw_scenario(seed, ticks=ticks, max_lag=4), num_actors=2, policy_delays_s=(0.0, 0.3)
    )


class Once:
    """A fault that happens once, after training has begun, on a network without losses."""

    def __init__(self, instance: str) -> None:
        self.instance = instance
        self.exit_codes: list[int] = []
        self.drained_for_s = 0.0
        self._drawn = False

    async def begins(self, cluster: SimulatedCluster) -> bool:
        first, self._drawn = not self._drawn, True
        cluster.network.conditions = HEALTHY
        if first:
            await asyncio.sleep(WARM_UP_S)
        return first

    async def until_restarted(self, cluster: SimulatedCluster, *, starts: int) -> None:
        """Return once the supervisor has started one more process and it is ready."""
        host = cluster.hosts[self.instance]
        while host.num_starts == starts or host.state != "running":
            await asyncio.sleep(0.05)
        self.exit_codes = host.exit_codes


def run(scenario: Scenario, *faults: Any) -> Report:
    return simulate(scenario, faults=dict.fromkeys(faults, 1))


@pytest.mark.parametrize("seed", seeds(1, more=3))
def test_drains_and_failing_loops_among_all_faults_lose_no_finished_work(seed: int) -> None:
    report = check(simulate(draw_scenario(seed, ticks=TICKS), faults={**FAULTS, drain_one: 15, fail_loop: 8}))
    assert report.faults > 0
    assert report.updates > 0


@pytest.mark.parametrize("seed", seeds(1, more=3))
def test_drained_actors_finish_their_rollouts_and_no_other_actor_repeats_them(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished: Counter[str] = Counter()
    real = PacedEngine.generate

    def noted(engine: PacedEngine, tasks: Sequence[Task]) -> Any:
        made = real(engine, tasks)
        finished.update(rollouts.task.task_id for rollouts in made)
        return made

    exit_codes: list[int] = []

    async def drain_an_actor(cluster: SimulatedCluster, rng: random.Random) -> None:
        cluster.network.conditions = HEALTHY
        actor = rng.choice(cluster.actors)
        await actor.drain()
        exit_codes.extend(actor.exit_codes)

    monkeypatch.setattr(PacedEngine, "generate", noted)
    report = check(run(two_actors(seed), drain_an_actor))
    assert report.faults > 3
    assert set(exit_codes) == {0}
    assert max(finished.values()) == 1


def test_rollouts_of_a_drained_actor_are_resumed_from_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    resumed: list[ResumedGroup] = []

    def noted(*arguments: Any, **keywords: Any) -> ResumedGroup:
        resumed.append(resume(*arguments, **keywords))
        return resumed[-1]

    async def drain_an_actor(cluster: SimulatedCluster, rng: random.Random) -> None:
        await rng.choice(cluster.actors).drain()

    monkeypatch.setattr(episode_runner, "resume", noted)
    # Longer than a drain: the engine is stopped in the middle of them.
    scenario = groups_of_four(3, max_lag=16, rollout_s=2 * DRAIN_TIMEOUT_S, writes_tokens=True)
    report = check(run(scenario, drain_an_actor))
    assert report.faults > 3
    assert sum(each.tokens_resumed for each in resumed) > 0


@pytest.mark.parametrize("instance", INSTANCES)
def test_service_whose_loop_fails_drains_exits_one_and_is_restarted(instance: str) -> None:
    once = Once(instance)

    async def fail(cluster: SimulatedCluster, _rng: random.Random) -> None:
        if not await once.begins(cluster):
            return
        host = cluster.hosts[instance]
        starts = host.num_starts

        async def conflict() -> None:
            raise ConflictError("Another process took over")

        host.inject(conflict)
        await once.until_restarted(cluster, starts=starts)

    check(run(two_actors(1, ticks=SHORT_TICKS), fail))
    assert once.exit_codes == [1]


@pytest.mark.parametrize(
    ("error", "found"), [(None, "injected ended without a drain"), (ZeroDivisionError(), "ZeroDivisionError")]
)
def test_loop_that_ends_by_itself_or_crashes_is_a_defect(error: Exception | None, found: str) -> None:
    once = Once("task_queue")

    async def end(cluster: SimulatedCluster, _rng: random.Random) -> None:
        if not await once.begins(cluster):
            return

        async def loop() -> None:
            if error is not None:
                raise error

        cluster.hosts["task_queue"].inject(loop)

    report = run(two_actors(1, ticks=SHORT_TICKS), end)
    assert [violation for violation in report.violations if found in violation], report.violations
    assert report.violations[0].startswith("I9:")


def test_loop_that_ignores_a_drain_is_cancelled_at_the_timeout_and_the_process_exits_zero() -> None:
    once = Once("trajectory_store")

    async def hang(cluster: SimulatedCluster, _rng: random.Random) -> None:
        if not await once.begins(cluster):
            return
        host, loop = cluster.hosts["trajectory_store"], asyncio.get_running_loop()
        starts = host.num_starts
        host.inject(asyncio.Event().wait)  # pyright: ignore[reportArgumentType]  # what it returns is never seen
        await asyncio.sleep(0.0)
        began_s = loop.time()
        await host.drain()
        once.drained_for_s = loop.time() - began_s
        await once.until_restarted(cluster, starts=starts)

    check(run(two_actors(1, ticks=SHORT_TICKS), hang))
    assert once.exit_codes == [0]
    assert once.drained_for_s == pytest.approx(DRAIN_TIMEOUT_S, abs=1.5)


@pytest.mark.parametrize("seed", seeds(1, more=3))
def test_drain_call_ends_a_process_as_sigterm_does(seed: int) -> None:
    once = Once("environment-0")

    async def call(cluster: SimulatedCluster, _rng: random.Random) -> None:
        if not await once.begins(cluster):
            return
        host = cluster.hosts[once.instance]
        while host.state != "running":
            await asyncio.sleep(0.05)
        starts = host.num_starts
        channel = Channel(cluster.world.switchboard, Process("operator"), host.address, role="operator")
        await LifecycleClient(channel.as_channel(), service=once.instance).drain(reason="a rolling update")
        await once.until_restarted(cluster, starts=starts)

    check(run(two_actors(seed, ticks=SHORT_TICKS), call))
    assert once.exit_codes == [0]


@pytest.mark.parametrize("seed", seeds(1, more=3))
def test_actors_that_drain_while_they_cannot_publish_lose_no_finished_work(seed: int) -> None:
    report = check(run(two_actors(seed), drain_blocked_actor))
    assert report.faults > 3
    assert report.refused_by_full_streams > 0


async def test_server_that_serves_without_listening_is_a_defect() -> None:
    defects: list[str] = []
    server = Server(
        Switchboard(None),  # pyright: ignore[reportArgumentType]  # nothing is sent
        Process("toy"),
        [],
        meter=lambda method, seconds, status: None,
        on_serving=lambda _serving: None,
        on_defect=defects.append,
    )
    await server.set_serving(serving=True)
    assert len(defects) == 1
    await server.start("toy")
    await server.set_serving(serving=True)
    assert len(defects) == 1
