"""What goes wrong, drawn from the seed: one table of faults, each a story that makes something fail and mends it."""

import asyncio
import random
import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec

from tidegate.core.errors import UnavailableError
from tidegate.sim.cluster import FINISHED_WORK, WORK_QUEUES, Cluster
from tidegate.sim.host import Host
from tidegate.sim.network import BREEZE, STORM
from tidegate.wire.subjects import HEADER_MESSAGE_ID

# Mean seconds from one fault to the next; several may be under way at once.
GAP_S = 2.5
GARBLED_SHARE = 0.5
SLOWNESS = 5.0
STRAGGLERS = 0.3

Fault = Callable[[Cluster, random.Random], Awaitable[None]]


async def kill_one(cluster: Cluster, rng: random.Random) -> None:
    """``kill -9`` of any process; its supervisor brings it back."""
    host = rng.choice(list(cluster.hosts.values()))
    await _down(host, seconds=rng.uniform(0.2, 3.0))


async def kill_learner(cluster: Cluster, rng: random.Random) -> None:
    """The learner dies and is restored from its newest checkpoint."""
    await _down(cluster.hosts["learner"], seconds=rng.uniform(0.2, 3.0))


async def roll_learner_back(cluster: Cluster, rng: random.Random) -> None:
    """The learner dies and its newest checkpoints are lost with it: the older branch of the run goes on."""
    host = cluster.hosts["learner"]
    await host.kill()
    host.hold(held=True)
    for path in _checkpoints(cluster)[-rng.randint(1, 2) :]:
        shutil.rmtree(path)
    await asyncio.sleep(rng.uniform(0.2, 3.0))
    host.hold(held=False)


async def start_second_learner(cluster: Cluster, rng: random.Random) -> None:
    """Somebody starts a learner while one is alive: whoever opens its lineage last goes on, the other one ends."""
    cluster.rival.hold(held=False)
    await asyncio.sleep(rng.uniform(1.0, 5.0))
    cluster.rival.hold(held=True)
    await cluster.rival.kill()


async def drain_one(cluster: Cluster, rng: random.Random) -> None:
    """A rolling update: SIGTERM, then a new process."""
    host = rng.choice(list(cluster.hosts.values()))
    host.hold(held=True)
    await host.drain()
    await asyncio.sleep(rng.uniform(0.1, 1.0))
    host.hold(held=False)


async def drain_blocked_actor(cluster: Cluster, rng: random.Random) -> None:
    """SIGTERM to an actor whose finished rollouts cannot be published, for less than a drain may take."""
    host = rng.choice(cluster.actors)
    topology = cluster.around.topology
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


async def fail_loop(cluster: Cluster, rng: random.Random) -> None:
    """A loop of a service fails: the service drains, exits 1, and its supervisor restarts it."""
    host = rng.choice(list(cluster.hosts.values()))

    async def fail() -> None:
        raise UnavailableError("A fault ended this loop")

    host.inject(fail)


async def lose_for_long(cluster: Cluster, rng: random.Random) -> None:
    """One service is away for longer than every timeout on the way."""
    host = rng.choice(list(cluster.hosts.values()))
    await _down(host, seconds=rng.uniform(4.0, 10.0))


async def lose_admission(cluster: Cluster, rng: random.Random) -> None:
    """Admission is away: the last limits hold."""
    await _down(cluster.hosts["admission"], seconds=rng.uniform(3.0, 10.0))


async def lose_all_actors(cluster: Cluster, rng: random.Random) -> None:
    """No actor at all for a while: a pause."""
    seconds = rng.uniform(2.0, 8.0)
    await asyncio.gather(*(_down(host, seconds=seconds) for host in cluster.actors))


async def lose_broker(cluster: Cluster, rng: random.Random) -> None:
    """The broker dies and comes back with its files."""
    if not cluster.broker.up:
        return
    cluster.chronicle.note("broker", "process_killed")
    cluster.broker.kill()
    await asyncio.sleep(rng.uniform(0.3, 5.0))
    if not cluster.broker.up:
        cluster.broker.restart()
        cluster.chronicle.note("broker", "process_ready")


async def storm(cluster: Cluster, rng: random.Random) -> None:
    """Much is lost on the way, the rest is late and out of order."""
    cluster.network.weather = STORM
    await asyncio.sleep(rng.uniform(2.0, 6.0))
    cluster.network.weather = BREEZE


async def cut_one_off(cluster: Cluster, rng: random.Random) -> None:
    """A process lives and is reached by nobody: others take over what it holds."""
    name = rng.choice(list(cluster.hosts))
    cluster.chronicle.note(name, "cut_off")
    cluster.network.cut |= {name}
    await asyncio.sleep(rng.uniform(1.0, 6.0))
    cluster.network.cut -= {name}


async def fill_stream(cluster: Cluster, rng: random.Random) -> None:
    """A work queue takes nothing: its disk is full."""
    stream = cluster.broker.streams.get(cluster.around.topology.stream(rng.choice(WORK_QUEUES)))
    if stream is None:
        return
    stream.closed = True
    await asyncio.sleep(rng.uniform(1.0, 5.0))
    stream.closed = False


async def slow_actor(cluster: Cluster, rng: random.Random) -> None:
    """One actor becomes slow, or keeps a rollout for longer than anybody waits."""
    pace = rng.choice(cluster.actor_paces)
    slow = rng.random() < 0.5
    pace.rollout_s = cluster.scenario.rollout_s * (SLOWNESS if slow else 1.0)
    pace.stragglers = 0.0 if slow else STRAGGLERS
    await asyncio.sleep(rng.uniform(3.0, 8.0))
    pace.rollout_s, pace.stragglers = cluster.scenario.rollout_s, 0.0


async def slow_learner(cluster: Cluster, rng: random.Random) -> None:
    """Updates take long: what waits for them grows old."""
    cluster.learner_pace.update_s = rng.uniform(1.0, 3.0)
    await asyncio.sleep(rng.uniform(3.0, 8.0))
    cluster.learner_pace.update_s = cluster.scenario.update_s


async def delay_policy(cluster: Cluster, rng: random.Random) -> None:
    """New policies reach one actor very late; the others have them at once."""
    position = rng.randrange(len(cluster.actors))
    cluster.actors[position].slow_policy(rng.uniform(2.0, 5.0))
    await asyncio.sleep(rng.uniform(3.0, 8.0))
    cluster.actors[position].slow_policy(cluster.scenario.policy_delays_s[position])


async def garble_message(cluster: Cluster, rng: random.Random) -> None:
    """The bytes of a waiting message are not what was sent: it goes to QUARANTINE, and its trajectories end."""
    stream = cluster.broker.streams.get(cluster.around.topology.stream(rng.choice(WORK_QUEUES)))
    if stream is None or not stream.messages:
        return
    sequence = rng.choice(list(stream.messages))
    message = stream.messages[sequence]
    size = int(len(message.data) * GARBLED_SHARE)
    stream.messages[sequence] = msgspec.structs.replace(message, data=message.data[:size])
    stream.num_bytes -= len(message.data) - size
    cluster.garbled_tasks.add(message.headers[HEADER_MESSAGE_ID].partition(":")[0])


# Weights: how often a fault is drawn beside the others.
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
    storm: 2,
    cut_one_off: 2,
    fill_stream: 2,
    slow_actor: 2,
    slow_learner: 1,
    delay_policy: 2,
    garble_message: 1,
}


class Troublemaker:
    """Draws faults from the table until it is told to stop."""

    def __init__(self, cluster: Cluster, faults: Mapping[Fault, int]) -> None:
        """``faults`` and how often each is drawn beside the others; begins with ``run``."""
        self._cluster = cluster
        self._faults = faults
        self._rng = cluster.scenario.rng("faults")
        self._stories: set[asyncio.Task[None]] = set()
        self.num_faults = 0

    async def run(self) -> None:
        """Make trouble for ever."""
        self._cluster.network.weather = BREEZE
        faults, weights = list(self._faults), list(self._faults.values())
        while True:
            await asyncio.sleep(self._rng.expovariate(1.0 / GAP_S))
            (fault,) = self._rng.choices(faults, weights)
            self.num_faults += 1
            self._cluster.chronicle.note("fault", fault.__name__)
            story = asyncio.ensure_future(fault(self._cluster, self._rng))
            self._stories.add(story)
            story.add_done_callback(self._ended)

    def _ended(self, story: asyncio.Task[None]) -> None:
        self._stories.discard(story)
        if not story.cancelled() and (error := story.exception()) is not None:
            self._cluster.around.on_defect(f"a fault's story broke off: {error!r}")

    async def stop(self) -> None:
        """End every story where it is; what it left broken is ``Cluster.heal``'s to mend."""
        stories = list(self._stories)
        for story in stories:
            story.cancel()
        await asyncio.gather(*stories, return_exceptions=True)


async def _down(host: Host, *, seconds: float) -> None:
    host.hold(held=True)
    await host.kill()
    await asyncio.sleep(seconds)
    host.hold(held=False)


def _checkpoints(cluster: Cluster) -> list[Path]:
    """Numbered folders, oldest first."""
    folder = cluster.folder / "learner" / "checkpoints"
    return sorted(path for path in folder.glob("[0-9]*") if path.is_dir()) if folder.is_dir() else []
