"""Chaos runs: seeded runs of small fleets with random faults; invariants are checked after every tick of admission.

A chaos run has three parts: one without faults, in which the rate is measured; one with faults, at most one of a kind
at a time; and one without faults, in which the rate must recover. Durations are shuffled strata between 0.5 and 1.5
times their mean, so that chance hardly moves the rate. One seed is one run, the same on any machine.
"""

import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from itertools import repeat

import msgspec

from tidegate.core.distributions import Durations, Exponential, Fixed
from tidegate.core.goodput import GoodputConfig
from tidegate.core.hard_sync import HardSyncConfig
from tidegate.fleet.draws import Draws
from tidegate.fleet.faults import FAULTS, SLOWER, Fault, FleetFaultInjector
from tidegate.fleet.invariants import VIOLATIONS_SHOWN, Bounds, FleetInvariantChecker, FleetOracle, bounds_of
from tidegate.fleet.loop import FleetLoop
from tidegate.fleet.plan import FleetPlan
from tidegate.runtime.config import ResponseConfig

TICKS_MAX = 2000
TICK_S = 1.0
# A prime, so that batches of any size see all of them.
STRATA = 31
SHORTEST, LONGEST = 0.5, 1.5
RECOVERED_RATIO = 0.95
# A rate is measured over this many tasks: each duration is drawn three times.
TASKS_MEASURED = 3 * STRATA
UPDATES_MEASURED = STRATA
# Of the two rates together: chance exceeds it once in some thousand runs.
STANDARD_ERRORS = 2.0
FAULT_TICKS_MIN = 100
PACED_SHARE = 0.25
STEERED_SHARE = 0.25


class ChaosRun(msgspec.Struct, frozen=True):
    """The fleet of a seed; from ``faults_from_tick`` to ``healthy_from_tick``, a fault every ``fault_every_ticks``."""

    seed: int
    ticks_max: int
    ticks: int
    plan: FleetPlan
    present: int
    fault_every_ticks: float
    faults_from_tick: int
    healthy_from_tick: int


class ChaosReport(msgspec.Struct, frozen=True):
    """The result of a chaos run. Rates in trajectories/s; ``longest_gap_s`` between updates, ``progress_s`` its bound.

    ``recovery_ratio`` is None where too few updates lie on one side for a rate; ``recovery_chance`` is how much lower
    it may be by chance. ``events``: the faults, after a violation.
    """

    seed: int
    ticks: int
    actors: int
    max_lag: int
    batch_size: int
    faults: int
    updates: int
    admitted: int
    trained: int
    dropped: dict[str, int]
    revived: int
    lag_max: int
    openings_per_tick_max: int
    reports_refused: int
    progress_s: float
    longest_gap_s: float
    rate_before: float
    rate_after: float
    recovery_ratio: float | None
    recovery_chance: float
    violations: list[str]
    events: list[str]
    replay: str

    @property
    def passed(self) -> bool:
        """Whether every invariant held."""
        return not self.violations


def draw_chaos_run(seed: int, *, ticks_max: int = TICKS_MAX) -> ChaosRun:
    """The fleet and the length of a seed: a quarter, a half or all of ``ticks_max``."""
    # Part of each seed: another text would draw other fleets.
    rng = random.Random(f"{seed}/storm")
    present = rng.randint(2, 12)
    joining = rng.randint(0, 4)
    group_size = rng.choice((1, 1, 2))
    max_lag = rng.choice((0, 0, 1, 2, 4, 8))
    # At most four rounds of all actors in flight, which end within a run.
    groups_max = max(1, 4 * present // (max_lag + 1))
    batch_size = group_size * rng.randint(1, min(6, groups_max))
    rollout_s = rng.choice((2.0, 3.0, 5.0))
    environments = rng.choice((0, 0, 1, 3))
    in_flight = (max_lag + 1) * batch_size
    learn_s, score_s = rng.choice((0.1, 0.5, 1.5)), rng.choice((0.2, 0.5))
    # Twice the longest time of a trajectory without faults, so that faults make trajectories too old.
    batch_s = rollout_s * (2 + batch_size / group_size / present)
    scores_s = score_s * in_flight / group_size / environments if environments else 0.0
    tight_age_s = 2 * LONGEST * (batch_s + scores_s + learn_s * (max_lag + 2))
    plan = FleetPlan(
        actors=present + joining,
        rollout=Exponential(rollout_s),
        learn=Fixed(learn_s),
        batch_size=batch_size,
        max_lag=max_lag,
        max_age_s=rng.choice((tight_age_s, tight_age_s, 300.0)),
        pacing=rng.random() < PACED_SHARE,
        max_running=max(group_size, rng.choice((in_flight, 2 * present * group_size, 3 * batch_size))),
        group_size=group_size,
        environments=environments,
        score=Fixed(score_s if environments else 0.0),
        announce_s=rng.choice((0.0, 0.05)),
        pull_s=rng.choice((0.0, 0.1, 0.5)),
        fan_out=rng.choice((0, 2)),
        hop_s=rng.choice((0.0, 0.0, 0.02)),
        tick_s=TICK_S,
        trajectory_bytes=1,
        # Where it is small, memory pressure bounds the rollouts too. Below two batches the rate would depend on the
        # phase of the ticks, because a batch has to accumulate.
        resident_bytes_high=float(rng.choice((2, 2, 2 * (max_lag + 1))) * batch_size),
        checkpoint_every=rng.choice((1, 3, 8)),
        redelivery_s=rng.choice((5.0, 10.0)),
        prefetch=rng.choice((0, 0, 1)),
        response=_response(random.Random(f"{seed}/response")),
        seed=seed,
    )
    bounds = bounds_of(plan, longest=LONGEST, slowest=max(SLOWER))
    tasks = max(TASKS_MEASURED, UPDATES_MEASURED * batch_size / group_size)
    measured_s = tasks / slowest_rate(plan, bounds, actors=present)
    before = math.ceil((bounds.drain_s(present) + measured_s) / TICK_S)
    after = math.ceil((bounds.progress_s(present) + measured_s) / TICK_S)
    # A quarter or a half of the ticks where that leaves time for faults, else all; the other parts may be short then.
    lengths = [ticks_max // part for part in (4, 2, 1)]
    enough = [ticks for ticks in lengths if before + FAULT_TICKS_MIN + after <= ticks] or [ticks_max]
    ticks = rng.choice(enough)
    spare = max(0, before + FAULT_TICKS_MIN + after - ticks)
    return ChaosRun(
        seed=seed,
        ticks_max=ticks_max,
        ticks=ticks,
        plan=plan,
        present=present,
        fault_every_ticks=rng.choice((5.0, 15.0, 40.0)),
        faults_from_tick=max(0, before - spare // 2),
        healthy_from_tick=ticks - max(0, after - (spare - spare // 2)),
    )


def _response(rng: random.Random) -> ResponseConfig:
    """Mostly none; else hard syncs that coincide with faults, and a goodput controller that decides within a run."""
    if rng.random() >= STEERED_SHARE:
        return ResponseConfig()
    return ResponseConfig(
        hard_sync=HardSyncConfig(every_versions=rng.choice((0, 10, 40)), timeout_s=rng.choice((10.0, 30.0))),
        goodput=GoodputConfig(enabled=rng.random() < 0.5, window_s=20.0, settle_s=10.0, probe_every_s=20.0),
    )


def slowest_rate(plan: FleetPlan, bounds: Bounds, *, actors: int) -> float:
    """The lowest rate of such a fleet in tasks/s: whole rounds of the longest rollouts."""
    tasks = min(actors, bounds.in_flight // plan.group_size)
    round_s = bounds.rollout_s + bounds.score_s + bounds.travel_s + bounds.learn_s
    rates = [tasks / round_s, plan.batch_size / plan.group_size / (bounds.learn_s + bounds.travel_s + TICK_S)]
    if plan.environments:
        rates.append(plan.environments / bounds.score_s)
    return min(rates)


def simulate_chaos(run: ChaosRun, *, faults: Mapping[Fault, int] = FAULTS) -> ChaosReport:
    """Run to the end, or to the first violation."""
    oracle = FleetOracle()
    rng = random.Random(f"{run.seed}/durations")
    loop = FleetLoop(
        run.plan,
        make_draws=lambda duration, _stream: strata(duration, rng),
        observer=oracle,
        present=run.present,
    )
    bounds = bounds_of(run.plan, longest=LONGEST, slowest=max(SLOWER))
    checker = FleetInvariantChecker(loop, oracle, bounds)
    injector = FleetFaultInjector(
        loop, random.Random(f"{run.seed}/faults"), every_ticks=run.fault_every_ticks, faults=faults
    )
    updates = _Updates()
    tick = 0
    while tick < run.ticks and not oracle.violations:
        if tick == run.faults_from_tick:
            injector.begin(tick)
        if tick == run.healthy_from_tick:
            injector.stop(tick)
            checker.note_disturbance()
        elif run.faults_from_tick <= tick < run.healthy_from_tick and injector.step(tick):
            checker.note_disturbance()
        # Half a tick after those of admission, when the queue has applied the limits of a tick.
        loop.run((tick + 0.5) * TICK_S)
        tick += 1
        checker.check(healthy=not injector.running)
        updates.note(loop.meters.updates, now_s=loop.events.now_s)
    before, after = _rates(run, bounds, updates)
    # Hard syncs and a moving budget change the rate: there is no single rate to return to.
    ratio, tolerance = (None, 0.0) if run.plan.is_steered() else _recovery(before, after)
    if not oracle.violations and ratio is not None and ratio < RECOVERED_RATIO - tolerance:
        oracle.violate(
            "recovery",
            f"{ratio:.3f} of the rate before the first fault, {bounds.progress_s(run.present):.0f} s after the last"
            f" ({RECOVERED_RATIO} less {tolerance:.3f} of chance would do)",
        )
    return _report(
        run,
        loop,
        checker,
        oracle,
        injector,
        rates=(before.per_s if before else 0.0, after.per_s if after else 0.0),
        recovery=(ratio, tolerance),
        progress_s=bounds.progress_s(run.present),
        tick=tick,
    )


def strata(duration: Durations, rng: random.Random) -> Draws:
    """Durations between ``SHORTEST`` and ``LONGEST`` means, evenly spread, in rounds of random order.

    Each round has a new order: a fleet synchronises with a repeated one, perhaps in a slower pattern after the faults
    than before them.
    """
    if isinstance(duration, Fixed):
        return repeat(duration.value_s)
    width = (LONGEST - SHORTEST) / STRATA
    return _shuffled([duration.mean_s * (SHORTEST + (index + 0.5) * width) for index in range(STRATA)], rng)


def _shuffled(values: list[float], rng: random.Random) -> Draws:
    while True:
        rng.shuffle(values)
        yield from values


class UpdateRate(msgspec.Struct, frozen=True):
    """Updates/s between the first and the last update of an interval, with its standard error."""

    per_s: float
    error: float


class _Updates:
    """The times of updates, to half a tick."""

    def __init__(self) -> None:
        self._times_s: list[float] = []
        self._counts: list[int] = []

    def note(self, count: int, *, now_s: float) -> None:
        if not self._counts or self._counts[-1] != count:
            self._times_s.append(now_s)
            self._counts.append(count)

    def rate(self, from_s: float, to_s: float, *, at_least: float) -> UpdateRate | None:
        """The rate of an interval; None with less than ``at_least`` updates in it."""
        times_s, counts = self._times_s, self._counts
        first, last = bisect_left(times_s, from_s), bisect_right(times_s, to_s) - 1
        if last <= first or counts[last] - counts[first] < at_least:
            return None
        elapsed_s = times_s[last] - times_s[first]
        per_s = (counts[last] - counts[first]) / elapsed_s
        # Deviations of the updates of each tick from the rate, summed as if independent, which bounds the error.
        squares = sum(
            (counts[index] - counts[index - 1] - per_s * (times_s[index] - times_s[index - 1])) ** 2
            for index in range(first + 1, last + 1)
        )
        return UpdateRate(per_s, math.sqrt(squares) / elapsed_s)


def _rates(run: ChaosRun, bounds: Bounds, updates: _Updates) -> tuple[UpdateRate | None, UpdateRate | None]:
    """Before the first fault, and from the time to recover after the last."""
    at_least = _updates_measured(run.plan)
    steady_from_s = bounds.drain_s(run.present)
    recovered_s = run.healthy_from_tick * TICK_S + bounds.progress_s(run.present)
    return (
        updates.rate(steady_from_s, run.faults_from_tick * TICK_S, at_least=at_least),
        updates.rate(recovered_s, run.ticks * TICK_S, at_least=at_least),
    )


def _updates_measured(plan: FleetPlan) -> float:
    """The number of updates that a rate needs."""
    return max(UPDATES_MEASURED, TASKS_MEASURED * plan.group_size / plan.batch_size)


def _recovery(before: UpdateRate | None, after: UpdateRate | None) -> tuple[float | None, float]:
    """The rate after as a share of the rate before, and its tolerance for chance."""
    if before is None or after is None:
        return None, 0.0
    ratio = after.per_s / before.per_s
    rng = math.hypot(before.error / before.per_s, after.error / after.per_s)
    return ratio, STANDARD_ERRORS * rng


def _report(
    run: ChaosRun,
    loop: FleetLoop,
    checker: FleetInvariantChecker,
    oracle: FleetOracle,
    injector: FleetFaultInjector,
    *,
    rates: tuple[float, float],
    recovery: tuple[float | None, float],
    progress_s: float,
    tick: int,
) -> ChaosReport:
    plan, meters = run.plan, loop.meters
    before, after = (rate * plan.batch_size for rate in rates)
    return ChaosReport(
        seed=run.seed,
        ticks=tick,
        actors=run.present,
        max_lag=plan.max_lag or 0,
        batch_size=plan.batch_size,
        faults=injector.num_faults,
        updates=meters.updates,
        admitted=meters.admitted,
        trained=meters.trained,
        dropped=dict(sorted(meters.dropped.items())),
        revived=meters.revived,
        lag_max=max(meters.lags, default=0),
        openings_per_tick_max=checker.num_openings_max,
        reports_refused=loop.admission.num_refused,
        progress_s=progress_s,
        longest_gap_s=checker.longest_gap_s,
        rate_before=before,
        rate_after=after,
        recovery_ratio=recovery[0],
        recovery_chance=recovery[1],
        violations=oracle.violations[:VIOLATIONS_SHOWN],
        events=injector.events if oracle.violations else [],
        replay=replay_command(run.seed, ticks_max=run.ticks_max),
    )


def replay_command(seed: int, *, ticks_max: int) -> str:
    """The command that replays the run."""
    if ticks_max == TICKS_MAX:
        return f"make sim SEED={seed} ARGS=--chaos"
    return f'make sim SEED={seed} ARGS="--chaos --ticks {ticks_max}"'
