"""The result of a simulated run."""

from typing import Literal

import msgspec

from tidegate.fleet.loop import FleetLoop
from tidegate.fleet.plan import FleetPlan

Mode = Literal["async", "sync"]


class RoundTimes(msgspec.Struct, frozen=True):
    """An actor's time between two updates by use, in seconds; the four parts add up to ``total_s``.

    ``straggler_wait_s``: idle while others roll out or are scored; ``learner_stall_s``: idle while no rollout is in
    flight; ``weights_wait_s``: holds a task and waits for a version that may start it.
    """

    total_s: float
    rollout_s: float
    straggler_wait_s: float
    learner_stall_s: float
    weights_wait_s: float


class FleetReport(msgspec.Struct, frozen=True):
    """One run, from 0 to ``horizon_s`` virtual seconds. The same plan gives the same report.

    ``samples`` were trained; ``queue*`` counts samples that wait in the store; ``newest_lag`` is the lag that the
    newest of them will have, in updates. ``waste_ratio``: dropped of what ended. ``propagation_s_p95``: until 95 % of
    the actors can serve a version.
    """

    actors: int
    mode: Mode
    admission: bool
    max_lag: int | None
    batch_size: int
    horizon_s: float
    seed: int
    samples: int
    samples_per_s: float
    updates: int
    lag_mean: float
    lag_p95: int
    lag_max: int
    actor_idle_ratio: float
    learner_idle_ratio: float
    environment_busy_ratio: float
    queue: int
    queue_mean: float
    queue_max: int
    newest_lag: float
    waste_ratio: float
    dropped: dict[str, int]
    round: RoundTimes
    propagation_s_p95: float
    admitted: int
    in_flight: int
    events: int


def simulate_fleet(plan: FleetPlan, *, horizon_s: float) -> FleetReport:
    """Run a fleet without faults for ``horizon_s`` virtual seconds.

    Raises:
        ConfigError: such a fleet makes no progress.
    """
    loop = FleetLoop(plan)
    loop.run(horizon_s)
    return report_of(loop)


def report_of(loop: FleetLoop) -> FleetReport:
    """The report of a loop so far."""
    plan, meters, horizon_s = loop.plan, loop.meters, loop.events.now_s
    size = plan.samples_per_trajectory
    dropped = sum(meters.dropped.values())
    ended = meters.trained + dropped
    depths = sorted(actor.depth for actor in loop.actors.members)
    return FleetReport(
        actors=plan.actors,
        mode="sync" if plan.max_lag == 0 and plan.admission else "async",
        admission=plan.admission,
        max_lag=plan.max_lag,
        batch_size=plan.batch_size,
        horizon_s=horizon_s,
        seed=plan.seed,
        samples=meters.trained * size,
        samples_per_s=meters.trained * size / horizon_s,
        updates=meters.updates,
        lag_mean=meters.lag_mean(),
        lag_p95=meters.lag_quantile(0.95),
        lag_max=max(meters.lags, default=0),
        actor_idle_ratio=1 - meters.busy_area / (plan.actors * horizon_s),
        learner_idle_ratio=1 - meters.learner_area / horizon_s,
        environment_busy_ratio=meters.scoring_area / (plan.environments * horizon_s)
        if plan.environments
        else 0.0,
        queue=meters.queue * size,
        queue_mean=meters.queue_area * size / horizon_s,
        queue_max=meters.queue_max * size,
        newest_lag=meters.queue / plan.batch_size,
        waste_ratio=dropped / ended if ended else 0.0,
        dropped=dict(sorted(meters.dropped.items())),
        round=_round_times(loop),
        propagation_s_p95=loop.weights.delay_s(depths[int(0.95 * (len(depths) - 1))]),
        admitted=meters.admitted,
        in_flight=loop.queue.counts.in_flight,
        events=loop.events.num_events,
    )


def _round_times(loop: FleetLoop) -> RoundTimes:
    meters = loop.meters
    rounds = max(1, meters.updates) * loop.plan.actors
    parts = (meters.busy_area, meters.straggler_area, meters.stall_area, meters.pull_area)
    return RoundTimes(sum(parts) / rounds, *(part / rounds for part in parts))
