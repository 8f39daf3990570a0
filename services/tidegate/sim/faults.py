"""Faults, drawn from the seed: each entry of the table makes something fail and repairs it."""

import asyncio
import contextlib
import random
import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec

from tidegate.core.errors import TidegateError, UnavailableError
from tidegate.core.staleness import StalenessLimits
from tidegate.sim.cluster import (
    CALL_S,
    FINISHED_WORK,
    INFERENCE_WAIT_S,
    LEASE_TIMEOUT_S,
    WORK_QUEUES,
    SimulatedCluster,
)
from tidegate.sim.host import Host
from tidegate.sim.network import DEGRADED, LOSSY
from tidegate.sim.process import Process
from tidegate.sim.rpc import Channel
from tidegate.sim.scenario import Scenario
from tidegate.wire.call_permissions import Role
from tidegate.wire.clients.learner import LearnerClient
from tidegate.wire.clients.trajectory_store import TrajectoryStoreClient
from tidegate.wire.subjects import HEADER_MESSAGE_ID

# Mean seconds from one fault to the next; several may be active at once.
GAP_S = 2.5
KEPT_SHARE = 0.5
KILLED_SHARE = 0.5
SLOWNESS = 5.0
STRAGGLERS = 0.3
STORE = "trajectory_store"
# How the name of a checkpoint of the first policy ends.
FIRST_POLICY = ".0"
CLOCK_ERROR_S = 3600.0

Fault = Callable[[SimulatedCluster, random.Random], Awaitable[None]]


async def kill_one(cluster: SimulatedCluster, rng: random.Random) -> None:
    """``kill -9`` of any process; its supervisor restarts it."""
    host = rng.choice(list(cluster.hosts.values()))
    await _down(host, seconds=rng.uniform(0.2, 3.0))


async def kill_learner(cluster: SimulatedCluster, rng: random.Random) -> None:
    """``kill -9`` of the learner, which is restored from its newest checkpoint."""
    await _down(cluster.hosts["learner"], seconds=rng.uniform(0.2, 3.0))


async def roll_learner_back(cluster: SimulatedCluster, rng: random.Random) -> None:
    """``kill -9`` of the learner and loss of its newest checkpoints: an older branch of the run continues."""
    host = cluster.hosts["learner"]
    await host.kill()
    host.hold(held=True)
    paths = _checkpoints(cluster)
    # Without any the store opens no branch for it, once one with an update was safe.
    spared = 0 if paths and paths[0].name.endswith(FIRST_POLICY) else 1
    for path in paths[spared:][-rng.randint(1, 2) :]:
        shutil.rmtree(path)
    await asyncio.sleep(rng.uniform(0.2, 3.0))
    host.hold(held=False)


async def request_rollback(cluster: SimulatedCluster, rng: random.Random) -> None:
    """An operator sends the learner back to one of its checkpoints; half of the time it is killed soon after that."""
    operator = Process("operator")
    channel = Channel(cluster.world.switchboard, operator, "learner", role="operator")
    learner = LearnerClient(channel.as_channel())

    async def ask() -> None:
        with contextlib.suppress(TidegateError):
            if kept := (await learner.progress()).kept:
                await learner.rollback(rng.choice(kept))

    await operator.start(ask())
    if rng.random() < KILLED_SHARE:
        await asyncio.sleep(rng.uniform(0.0, 0.5))
        await _down(cluster.hosts["learner"], seconds=rng.uniform(0.2, 3.0))


async def start_second_learner(cluster: SimulatedCluster, rng: random.Random) -> None:
    """An operator starts a second learner: the one that opened its lineage last continues, the other one exits."""
    cluster.second_learner.hold(held=False)
    await asyncio.sleep(rng.uniform(1.0, 5.0))
    cluster.second_learner.hold(held=True)
    await cluster.second_learner.kill()


async def drain_one(cluster: SimulatedCluster, rng: random.Random) -> None:
    """A rolling update: SIGTERM, then a new process."""
    host = rng.choice(list(cluster.hosts.values()))
    await _drained(host, seconds=rng.uniform(0.1, 1.0))


async def drain_blocked_actor(cluster: SimulatedCluster, rng: random.Random) -> None:
    """SIGTERM to an actor whose finished rollouts cannot be published for a part of the drain timeout."""
    host = rng.choice(cluster.actors)
    topology = cluster.world.topology
    streams = [cluster.broker.streams.get(topology.stream(kind)) for kind in FINISHED_WORK]
    blocked = [stream for stream in streams if stream is not None]
    for stream in blocked:
        stream.closed = True
    await asyncio.sleep(rng.uniform(0.5, 1.5))
    drain = asyncio.ensure_future(host.drain())
    await asyncio.sleep(rng.uniform(0.2, 0.5) * cluster.settings.drain_timeout_s)
    for stream in blocked:
        stream.closed = False
    await drain


async def fail_loop(cluster: SimulatedCluster, rng: random.Random) -> None:
    """A loop of a service fails: the service drains, exits 1, and its supervisor restarts it."""
    host = rng.choice(list(cluster.hosts.values()))

    async def fail() -> None:
        raise UnavailableError("A fault ended this loop")

    host.inject(fail)


async def lose_for_long(cluster: SimulatedCluster, rng: random.Random) -> None:
    """One service is down for longer than every timeout of its peers."""
    host = rng.choice(list(cluster.hosts.values()))
    await _down(host, seconds=rng.uniform(4.0, 10.0))


async def lose_admission(cluster: SimulatedCluster, rng: random.Random) -> None:
    """Admission is down: the last limits hold."""
    await _down(cluster.hosts["admission"], seconds=rng.uniform(3.0, 10.0))


async def lose_all_actors(cluster: SimulatedCluster, rng: random.Random) -> None:
    """All actors are down for a while: training pauses."""
    seconds = rng.uniform(2.0, 8.0)
    await asyncio.gather(*(_down(host, seconds=seconds) for host in cluster.actors))


async def lose_broker(cluster: SimulatedCluster, rng: random.Random) -> None:
    """The broker is killed and restarted with its files."""
    if not cluster.broker.up:
        return
    cluster.event_log.note("broker", "process_killed")
    cluster.broker.kill()
    await asyncio.sleep(rng.uniform(0.3, 5.0))
    if not cluster.broker.up:
        cluster.broker.restart()
        cluster.event_log.note("broker", "process_ready")


async def degrade_network(cluster: SimulatedCluster, rng: random.Random) -> None:
    """Many messages are lost, the others arrive late and out of order."""
    cluster.network.conditions = DEGRADED
    await asyncio.sleep(rng.uniform(2.0, 6.0))
    cluster.network.conditions = LOSSY


async def isolate_one(cluster: SimulatedCluster, rng: random.Random) -> None:
    """A network partition isolates one process: others take over the work that it holds."""
    name = rng.choice(list(cluster.hosts))
    cluster.event_log.note(name, "isolated")
    cluster.network.isolated |= {name}
    await asyncio.sleep(rng.uniform(1.0, 6.0))
    cluster.network.isolated -= {name}


async def fill_stream(cluster: SimulatedCluster, rng: random.Random) -> None:
    """A work queue refuses messages, as on a full disk."""
    stream = cluster.broker.streams.get(cluster.world.topology.stream(rng.choice(WORK_QUEUES)))
    if stream is None:
        return
    stream.closed = True
    await asyncio.sleep(rng.uniform(1.0, 5.0))
    stream.closed = False


async def slow_actor(cluster: SimulatedCluster, rng: random.Random) -> None:
    """One actor becomes slow, or holds some rollouts for longer than their deadline."""
    pace = rng.choice(cluster.actor_paces)
    slow = rng.random() < 0.5
    pace.rollout_s = cluster.scenario.rollout_s * (SLOWNESS if slow else 1.0)
    pace.stragglers = 0.0 if slow else STRAGGLERS
    await asyncio.sleep(rng.uniform(3.0, 8.0))
    pace.rollout_s, pace.stragglers = cluster.scenario.rollout_s, 0.0


async def slow_learner(cluster: SimulatedCluster, rng: random.Random) -> None:
    """Updates take long; trajectories that wait for them age."""
    cluster.learner_pace.update_s = rng.uniform(1.0, 3.0)
    await asyncio.sleep(rng.uniform(3.0, 8.0))
    cluster.learner_pace.update_s = cluster.scenario.update_s


async def delay_policy(cluster: SimulatedCluster, rng: random.Random) -> None:
    """Announcements of policies reach one actor late, the others at once."""
    position = rng.randrange(len(cluster.actors))
    cluster.actors[position].slow_policy(rng.uniform(2.0, 5.0))
    await asyncio.sleep(rng.uniform(3.0, 8.0))
    cluster.actors[position].slow_policy(cluster.scenario.policy_delays_s[position])


async def corrupt_message(cluster: SimulatedCluster, rng: random.Random) -> None:
    """The bytes of a waiting message are truncated: it goes to QUARANTINE, and its trajectories are dropped."""
    stream = cluster.broker.streams.get(cluster.world.topology.stream(rng.choice(WORK_QUEUES)))
    if stream is None or not stream.messages:
        return
    sequence = rng.choice(list(stream.messages))
    message = stream.messages[sequence]
    size = int(len(message.data) * KEPT_SHARE)
    stream.messages[sequence] = msgspec.structs.replace(message, data=message.data[:size])
    stream.num_bytes -= len(message.data) - size
    cluster.corrupted_tasks.add(message.headers[HEADER_MESSAGE_ID].partition(":")[0])


async def steal_batch(cluster: SimulatedCluster, rng: random.Random) -> None:
    """A stranger with stolen credentials leases a batch and goes away: its trajectories come back by themselves."""
    stranger, scenario = Process("stranger"), cluster.scenario

    def store_as(role: Role) -> TrajectoryStoreClient:
        channel = Channel(cluster.world.switchboard, stranger, STORE, role=role)
        return TrajectoryStoreClient(channel.as_channel())

    async def lease() -> None:
        with contextlib.suppress(TidegateError):
            _, head = await store_as("operator").ledger()
            if head is not None:
                await store_as("learner").lease_batch(
                    head,
                    batch_size=scenario.batch_size,
                    limits=StalenessLimits(scenario.max_lag, scenario.max_age_s),
                    max_wait_s=rng.uniform(0.5, 2.0),
                    learner_id=stranger.name,
                )

    await stranger.start(lease())


async def isolate_learner(cluster: SimulatedCluster, rng: random.Random) -> None:
    """The learner reaches no service until its leases have expired: what it commits then is refused."""
    cluster.network.isolated |= {"learner"}
    await asyncio.sleep(LEASE_TIMEOUT_S + rng.uniform(1.0, 4.0))
    cluster.network.isolated -= {"learner"}


async def set_clock_wrong(cluster: SimulatedCluster, rng: random.Random) -> None:
    """The wall clock of one host is an hour ahead or behind, until it is corrected.

    No actor's is ahead and the store's is not behind: trajectories would look younger by the time from their end to
    their arrival (``Arrival.times``).
    """
    host = rng.choice(list(cluster.hosts.values()))
    errors_s = [-CLOCK_ERROR_S, CLOCK_ERROR_S]
    if host in cluster.actors:
        errors_s.remove(CLOCK_ERROR_S)
    if host is cluster.hosts[STORE]:
        errors_s.remove(-CLOCK_ERROR_S)
    host.clock.ahead_s = rng.choice(errors_s)
    cluster.event_log.note(host.instance, "clock_wrong", detail=f"{host.clock.ahead_s:+g} s")
    await asyncio.sleep(rng.uniform(1.0, 6.0))
    host.clock.ahead_s = 0.0


async def kill_inference(cluster: SimulatedCluster, rng: random.Random) -> None:
    """``kill -9`` of the inference service, for less or for more than its actors wait for it."""
    await _down(cluster.hosts["inference"], seconds=rng.uniform(0.2, 2.0 * INFERENCE_WAIT_S))


async def drain_inference(cluster: SimulatedCluster, rng: random.Random) -> None:
    """SIGTERM to the inference service, then a new process."""
    await _drained(cluster.hosts["inference"], seconds=rng.uniform(0.1, 1.0))


async def slow_inference(cluster: SimulatedCluster, rng: random.Random) -> None:
    """Calls of the network take long: actors wait for each action, some for longer than they may."""
    cluster.inference_pace.call_s = rng.uniform(0.1, 1.5 * INFERENCE_WAIT_S)
    await asyncio.sleep(rng.uniform(3.0, 8.0))
    cluster.inference_pace.call_s = CALL_S


async def isolate_inference(cluster: SimulatedCluster, rng: random.Random) -> None:
    """The inference service reaches neither actors nor the broker: the version that it acts with grows old."""
    cluster.network.isolated |= {"inference"}
    await asyncio.sleep(rng.uniform(1.0, 6.0))
    cluster.network.isolated -= {"inference"}


# The weight of each fault in the draw.
FAULTS: dict[Fault, int] = {
    kill_one: 6,
    kill_learner: 2,
    roll_learner_back: 2,
    start_second_learner: 1,
    drain_one: 3,
    drain_blocked_actor: 1,
    fail_loop: 1,
    lose_for_long: 2,
    lose_admission: 1,
    lose_all_actors: 1,
    lose_broker: 2,
    degrade_network: 2,
    isolate_one: 2,
    fill_stream: 2,
    slow_actor: 2,
    slow_learner: 1,
    delay_policy: 2,
    corrupt_message: 1,
}


# Of scenarios with central inference, besides.
INFERENCE_FAULTS: dict[Fault, int] = {
    kill_inference: 4,
    drain_inference: 2,
    slow_inference: 2,
    isolate_inference: 2,
}


def faults_of(scenario: Scenario) -> Mapping[Fault, int]:
    """What may fail in a scenario, with the weight of each."""
    return {**FAULTS, **INFERENCE_FAULTS} if scenario.central_inference else FAULTS


class FaultInjector:
    """Draws faults from the table and runs them until ``stop``."""

    def __init__(self, cluster: SimulatedCluster, faults: Mapping[Fault, int]) -> None:
        """``faults``: the weight of each in the draw."""
        self._cluster = cluster
        self._faults = faults
        self._rng = cluster.scenario.rng("faults")
        self._running: set[asyncio.Task[None]] = set()
        self.num_faults = 0

    async def run(self) -> None:
        """Start faults for ever."""
        self._cluster.network.conditions = LOSSY
        faults, weights = list(self._faults), list(self._faults.values())
        while True:
            await asyncio.sleep(self._rng.expovariate(1.0 / GAP_S))
            (fault,) = self._rng.choices(faults, weights)
            self.num_faults += 1
            self._cluster.event_log.note("fault", fault.__name__)
            running = asyncio.ensure_future(fault(self._cluster, self._rng))
            self._running.add(running)
            running.add_done_callback(self._ended)

    def _ended(self, fault: asyncio.Task[None]) -> None:
        self._running.discard(fault)
        if not fault.cancelled() and (error := fault.exception()) is not None:
            self._cluster.world.on_defect(f"a fault failed: {error!r}")

    async def stop(self) -> None:
        """Cancel every running fault; ``SimulatedCluster.heal`` repairs what they left."""
        running = list(self._running)
        for fault in running:
            fault.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _down(host: Host, *, seconds: float) -> None:
    host.hold(held=True)
    await host.kill()
    await asyncio.sleep(seconds)
    host.hold(held=False)


async def _drained(host: Host, *, seconds: float) -> None:
    host.hold(held=True)
    await host.drain()
    await asyncio.sleep(seconds)
    host.hold(held=False)


def _checkpoints(cluster: SimulatedCluster) -> list[Path]:
    """Numbered folders, oldest first."""
    folder = cluster.folder / "learner" / "checkpoints"
    return sorted(path for path in folder.glob("[0-9]*") if path.is_dir()) if folder.is_dir() else []
