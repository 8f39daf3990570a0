"""Runs a scenario tick by tick, first with faults and then without; invariants are checked after every tick."""

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tidegate.runtime.process_random import GENERATOR
from tidegate.sim.cluster import SimulatedCluster
from tidegate.sim.event_log import EventLog
from tidegate.sim.faults import Fault, FaultInjector, faults_of
from tidegate.sim.invariants import InvariantChecker
from tidegate.sim.oracle import Oracle
from tidegate.sim.scenario import TICK_S, Scenario
from tidegate.sim.virtual_loop import VirtualLoop


class Report(msgspec.Struct, frozen=True):
    """The result of a run. ``ticks``: run until the end or the first violation.

    ``digest``: of all events; two runs of one seed have the same. ``events``: the last ones, after a violation.
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
    events: list[str] = []

    @property
    def passed(self) -> bool:
        """Whether every invariant held."""
        return not self.violations


def simulate(scenario: Scenario, *, faults: Mapping[Fault, int] | None = None) -> Report:
    """Run a scenario with ``faults`` drawn by weight, by default ``faults_of``; its files are removed."""
    # Pauses of retries and ids of messages follow the seed.
    state = GENERATOR.getstate()
    GENERATOR.seed(f"{scenario.seed}/process")
    loop = VirtualLoop()
    try:
        with tempfile.TemporaryDirectory(prefix="tidegate-sim-") as folder:
            return loop.run_until_complete(_run(scenario, Path(folder), faults or faults_of(scenario)))
    finally:
        loop.close()
        GENERATOR.setstate(state)


async def _run(scenario: Scenario, folder: Path, faults: Mapping[Fault, int]) -> Report:
    event_log = EventLog()
    oracle = Oracle(max_lag=scenario.max_lag, max_age_s=scenario.max_age_s)
    cluster = SimulatedCluster(scenario, folder, event_log=event_log, oracle=oracle)
    checker = InvariantChecker(cluster)
    injector = FaultInjector(cluster, faults)
    # Tasks that a failing service leaves behind; the failure itself was reported where it happened.
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: event_log.remember(
            f"asyncio: {context['message']}: {context.get('exception')!r}"
        )
    )
    await cluster.start()
    injecting = asyncio.ensure_future(injector.run()) if scenario.faults else None
    tick = 0
    while tick < scenario.ticks and not oracle.violations:
        if tick == scenario.healthy_from_tick:
            if injecting is not None:
                injecting.cancel()
            await injector.stop()
            await cluster.heal()
            checker.expect_progress(tick)
        await asyncio.sleep(TICK_S)
        tick += 1
        for line in checker.check(tick):
            event_log.mark(line)
    if injecting is not None:
        injecting.cancel()
    await injector.stop()
    await cluster.stop()
    checker.check(tick)
    checker.audit()
    if tick == scenario.ticks:
        checker.check_trained()
    checker.accounting.close()
    return _report(cluster, checker, injector, tick=tick)


def _report(
    cluster: SimulatedCluster, checker: InvariantChecker, injector: FaultInjector, *, tick: int
) -> Report:
    scenario, oracle, accounting = cluster.scenario, cluster.oracle, checker.accounting
    failed = bool(oracle.violations)
    return Report(
        seed=scenario.seed,
        ticks=tick,
        max_lag=scenario.max_lag,
        updates=oracle.num_updates,
        admitted=len(accounting.admitted),
        trained=sum(state == "trained" for state in accounting.states.values()),
        dropped=dict(sorted(accounting.reasons.items())),
        revived=accounting.num_revived,
        max_in_flight=checker.max_in_flight,
        trained_by_lag=dict(sorted(oracle.lags.items())),
        faults=injector.num_faults,
        starts=sum(host.num_starts for host in cluster.hosts.values()),
        messages=cluster.network.num_sent,
        messages_lost=cluster.network.num_lost,
        redelivered=sum(durable.num_redelivered for durable in cluster.broker.durables.values()),
        refused_by_full_streams=sum(stream.num_refused for stream in cluster.broker.streams.values()),
        recovery_s=checker.first_update_after_faults_s,
        digest=cluster.event_log.digest(),
        violations=[str(violation) for violation in oracle.violations],
        replay=replay_command(scenario),
        events=list(cluster.event_log.lines) if failed else [],
    )


def replay_command(scenario: Scenario) -> str:
    """The command that replays the run."""
    arguments = f"--ticks {scenario.ticks} --max-lag {scenario.max_lag}"
    if not scenario.faults:
        arguments += " --no-faults"
    if scenario.central_inference:
        arguments += " --central-inference"
    return f'make sim SEED={scenario.seed} ARGS="{arguments}"'
