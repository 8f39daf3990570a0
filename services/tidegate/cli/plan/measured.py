"""Measurements of a run folder: rates of actors, workers and learner, and the durations of rollouts.

A stage's rate is its work divided by the time in which it did not wait, between the first and the last sample that
admission wrote while the learner trained. This is its capacity; its throughput is bound by the slowest stage.
"""

from pathlib import Path
from typing import Any, cast

import msgspec

from tidegate.catalogue import actor as actor_stats
from tidegate.catalogue import environment as environment_stats
from tidegate.catalogue import learner as learner_stats
from tidegate.catalogue.kinds import Counter
from tidegate.cli.accounting import ledger_path
from tidegate.cli.samples import read_samples, trains
from tidegate.core.distributions import Histogram, histogram_of
from tidegate.core.errors import NotFoundError
from tidegate.core.prices import Prices
from tidegate.launch.run_folder import read_plan
from tidegate.trajectory_store.timeline import rollout_times

# Sampled evenly from the run; fewer give the tail of a distribution to a hundredth.
ROLLOUTS_MAX = 4096
WAITS = (actor_stats.WAIT_TASK_S, actor_stats.WAIT_POLICY_S, actor_stats.WAIT_PUBLISH_S)


class LengthQuantiles(msgspec.Struct, frozen=True):
    """Steps or tokens a rollout."""

    mean: float
    p50: float
    p95: float
    p99: float
    max: float


class RunMeasurements(msgspec.Struct, frozen=True):
    """Rates are trajectories/s: of one actor, one worker (0: nothing is scored by workers), the learner.

    ``num_slots``: rollouts one actor makes at once, by Little's law. ``seconds``: the measured time.
    ``throughput_per_s``: of the whole run in that time.
    """

    run_id: str
    seconds: float
    throughput_per_s: float
    num_actors: int
    actor_rate: float
    num_slots: int
    num_environments: int
    environment_rate: float
    learner_rate: float
    batch_size: int
    max_lag: int
    lag_mean: float
    weight_sync_s: float
    rollout: Histogram
    lengths: LengthQuantiles
    prices: Prices


def measure_run(folder: Path) -> RunMeasurements:
    """Read a run folder, live or stopped.

    Raises:
        NotFoundError: it is no run folder, or too little was trained to measure anything.
        StaleFolderError, CorruptionError: its files cannot be read.
    """
    record, plan = read_plan(folder)
    working = [sample for sample in read_samples(folder) if trains(sample)]
    if len(working) < 2:
        raise NotFoundError(
            f"{folder} has no measurements yet",
            why="admission wrote fewer than two samples while the learner trained",
            fix="let the run train for some seconds, or give rates by flags",
        )
    first, last = working[0], working[-1]
    seconds = float(last["at_s"]) - float(first["at_s"])

    def increase(service: str, name: Counter) -> float:
        key = f"{service}.{name}"
        return _values(last).get(key, 0.0) - _values(first).get(key, 0.0)

    num_actors = max(1, round(_mean(working, "num_actors")))
    num_workers = round(_mean(working, "num_environments"))
    trained = increase("learner", learner_stats.TRAINED_TRAJECTORIES)
    scored = increase("environment", environment_stats.SCORED)
    actor_s = num_actors * seconds - sum(increase("actor", name) for name in WAITS)
    actor_rate = _rate(increase("actor", actor_stats.TRAJECTORIES), actor_s)
    learner_rate = _rate(trained, seconds - increase("learner", learner_stats.WAIT_BATCH_S))
    if actor_rate <= 0.0 or learner_rate <= 0.0:
        raise NotFoundError(f"Nothing was rolled out or trained in {folder}", fix="see `tidegate explain`")
    rollout, lengths = _rollouts(ledger_path(folder))
    return RunMeasurements(
        run_id=record.run_id,
        seconds=seconds,
        throughput_per_s=trained / seconds,
        num_actors=num_actors,
        actor_rate=actor_rate,
        num_slots=max(1, round(actor_rate * rollout.mean_s)),
        num_environments=num_workers if scored > 0.0 else 0,
        environment_rate=_rate(scored, increase("environment", environment_stats.BUSY_S)),
        learner_rate=learner_rate,
        batch_size=plan.file.batch_size,
        max_lag=plan.file.staleness.max_lag,
        lag_mean=_mean(working, "lag_mean"),
        weight_sync_s=_mean(working, "weight_pull_ms") / 1e3,
        rollout=rollout,
        lengths=lengths,
        prices=plan.file.prices,
    )


def _values(sample: dict[str, Any]) -> dict[str, float]:
    return cast("dict[str, float]", sample.get("values", {}))


def _mean(samples: list[dict[str, Any]], name: str) -> float:
    return sum(float(sample.get(name, 0.0)) for sample in samples) / len(samples)


def _rate(count: float, seconds: float) -> float:
    return count / seconds if count > 0.0 and seconds > 0.0 else 0.0


def _rollouts(ledger: Path) -> tuple[Histogram, LengthQuantiles]:
    rows = rollout_times(ledger, num_max=ROLLOUTS_MAX)
    if not rows:
        raise NotFoundError(
            f"No rollout in {ledger} has a duration", fix="let the run train for some seconds"
        )
    lengths = sorted(length for _, length in rows)
    return histogram_of([seconds for seconds, _ in rows]), LengthQuantiles(
        mean=sum(lengths) / len(lengths),
        p50=_quantile(lengths, 0.50),
        p95=_quantile(lengths, 0.95),
        p99=_quantile(lengths, 0.99),
        max=lengths[-1],
    )


def _quantile(ascending: list[float], share: float) -> float:
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))]
