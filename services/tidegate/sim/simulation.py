"""Running a scenario: tick by tick, faults first, then calm, with the invariants looked at after every tick."""

import asyncio
import random
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tidegate.sim.chronicle import Chronicle
from tidegate.sim.cluster import Cluster
from tidegate.sim.faults import FAULTS, Fault, Troublemaker
from tidegate.sim.invariants import Inspector
from tidegate.sim.loop import VirtualLoop
from tidegate.sim.scenario import TICK_S, Scenario
from tidegate.sim.truth import Truth


class Report(msgspec.Struct, frozen=True):
    """What a run came to. ``ticks`` that were run; it ends early at the first violation.

    ``digest`` is that of everything that happened in it: two runs of one seed have the same.
    """

    seed: int
    ticks: int
    max_lag: int
    updates: int
    admitted: int
    trained: int
    dropped: dict[str, int]
    revived: int
    max_in_flight: int
    trained_by_lag: dict[int, int]
    faults: int
    starts: int
    messages: int
    messages_lost: int
    redelivered: int
    refused_by_full_streams: int
    recovery_s: float | None
    digest: str
    violations: list[str]
    replay: str
    story: list[str] = []

    @property
    def passed(self) -> bool:
        """Whether every invariant held."""
        return not self.violations


def simulate(scenario: Scenario, *, faults: Mapping[Fault, int] = FAULTS) -> Report:
    """Run a scenario from beginning to end, with ``faults`` drawn by weight; nothing of it is left behind."""
    # The bus draws its pauses from the module's generator, as a real one should; here they follow the seed.
    state = random.getstate()
    random.seed(f"{scenario.seed}/process")
    loop = VirtualLoop()
    try:
        with tempfile.TemporaryDirectory(prefix="tidegate-sim-") as folder:
            return loop.run_until_complete(_run(scenario, Path(folder), faults))
    finally:
        loop.close()
        random.setstate(state)


async def _run(scenario: Scenario, folder: Path, faults: Mapping[Fault, int]) -> Report:
    chronicle = Chronicle()
    truth = Truth(max_lag=scenario.max_lag, max_age_s=scenario.max_age_s)
    cluster = Cluster(scenario, folder, chronicle=chronicle, truth=truth)
    inspector = Inspector(cluster)
    trouble = Troublemaker(cluster, faults)
    # Tasks that a failing service leaves behind; the failure itself was seen where it happened.
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: chronicle.remember(
            f"asyncio: {context['message']}: {context.get('exception')!r}"
        )
    )
    cluster.start()
    making = asyncio.ensure_future(trouble.run()) if scenario.faults else None
    tick = 0
    while tick < scenario.ticks and not truth.violations:
        if tick == scenario.calm_from_tick:
            if making is not None:
                making.cancel()
            await trouble.stop()
            await cluster.heal()
            inspector.calm(tick)
        await asyncio.sleep(TICK_S)
        tick += 1
        for line in inspector.look(tick):
            chronicle.mark(line)
    if making is not None:
        making.cancel()
    await trouble.stop()
    await cluster.stop()
    inspector.look(tick)
    inspector.audit()
    if tick == scenario.ticks:
        inspector.check_trained()
    inspector.books.close()
    return _report(cluster, inspector, trouble, tick=tick)


def _report(cluster: Cluster, inspector: Inspector, trouble: Troublemaker, *, tick: int) -> Report:
    scenario, truth, books = cluster.scenario, cluster.truth, inspector.books
    failed = bool(truth.violations)
    return Report(
        seed=scenario.seed,
        ticks=tick,
        max_lag=scenario.max_lag,
        updates=truth.num_updates,
        admitted=len(books.admitted),
        trained=sum(state == "trained" for state in books.states.values()),
        dropped=dict(sorted(books.reasons.items())),
        revived=books.num_revived,
        max_in_flight=inspector.max_in_flight,
        trained_by_lag=dict(sorted(truth.lags.items())),
        faults=trouble.num_faults,
        starts=sum(host.num_starts for host in cluster.hosts.values()),
        messages=cluster.network.num_sent,
        messages_lost=cluster.network.num_lost,
        redelivered=sum(durable.num_redelivered for durable in cluster.broker.durables.values()),
        refused_by_full_streams=sum(stream.num_refused for stream in cluster.broker.streams.values()),
        recovery_s=inspector.first_update_after_calm_s,
        digest=cluster.chronicle.digest(),
        violations=[str(violation) for violation in truth.violations],
        replay=replay_command(scenario),
        story=list(cluster.chronicle.lines) if failed else [],
    )


def replay_command(scenario: Scenario) -> str:
    """What to type to see the same run again."""
    arguments = f"--ticks {scenario.ticks} --max-lag {scenario.max_lag}"
    return f'make sim SEED={scenario.seed} ARGS="{arguments}{"" if scenario.faults else " --no-faults"}"'
