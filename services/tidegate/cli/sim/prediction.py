"""``tidegate sim --from-run``: compares the rate and lag of a run folder with the simulator's prediction."""

from pathlib import Path

import msgspec
from rich.table import Table

from tidegate.cli.accounting import ledger_path
from tidegate.cli.samples import numbers, read_samples, trains
from tidegate.cli.up.history import read_steps
from tidegate.fleet.measured import (
    WARM_UP_SHARE,
    MeasuredFleet,
    Prediction,
    RolloutTimes,
    Setup,
    Shares,
    StepTimes,
    measure,
)
from tidegate.launch.run_folder import find_folder, read_plan
from tidegate.trajectory_store.reading import rows


def read_measured(folder: Path, *, actors: int | None, seed: int) -> MeasuredFleet:
    """The plan and the rates of a run folder, live or stopped; ``actors`` replaces its own number.

    Raises:
        NotFoundError: the folder has no run, or its run made too few steps.
        StaleFolderError, CorruptionError: it cannot be read.
    """
    found = find_folder(folder)
    _, plan = read_plan(found)
    file, actor = plan.file, plan.services["actor"]
    setup = Setup(
        actors=actors or plan.replicas["actor"] * actor.slots,
        batch_size=file.batch_size,
        max_lag=file.staleness.max_lag,
        max_age_s=file.staleness.max_age_s,
        max_running=file.limits().max_running,
        group_size=file.workload.num_samples,
        pacing=file.staleness.pacing,
        prefetch=round(actor.prefetch / actor.slots),
    )
    return measure(
        setup,
        steps=[msgspec.convert(step, StepTimes) for step in read_steps(found)],
        rollouts=[
            RolloutTimes(
                trajectory_id=row.trajectory_id,
                num_steps=row.num_steps,
                started_at_s=row.started_at_s,
                finished_at_s=row.finished_at_s,
                accepted_at_s=row.accepted_at_s,
            )
            for row in rows(ledger_path(found))
        ],
        shares=_shares(found),
        seed=seed,
    )


def _shares(folder: Path) -> Shares:
    """Means over the samples in which something was trained, without the first of them."""
    working = [numbers(sample) for sample in read_samples(folder) if trains(sample)]
    steady = working[int(len(working) * WARM_UP_SHARE) :]
    if not steady:
        return Shares()

    def mean(*names: str) -> float:
        return sum(sample.get(name, 0.0) for sample in steady for name in names) / len(steady)

    return Shares(
        busy=mean("actor_busy_ratio"),
        waiting=mean("actor_wait_task_ratio", "actor_wait_policy_ratio", "actor_wait_publish_ratio"),
        pull_ms=mean("weight_pull_ms"),
        environments=round(mean("num_environments")) if mean("scored_per_s") > 0 else 0,
        environment_busy=mean("environment_busy_ratio"),
        scored_per_s=mean("scored_per_s"),
    )


def prediction_table(measured: MeasuredFleet, prediction: Prediction) -> Table:
    """The table of measured and simulated values."""
    plan = measured.plan
    table = Table(
        title=f"{plan.actors} actors, batch {plan.batch_size}, max_lag {plan.max_lag}: rollouts of"
        f" {measured.rollout_s:.4g} s, updates of {measured.learn_s:.4g} s, hops of {measured.hop_s * 1000:.3g} ms",
        title_justify="left",
        box=None,
        padding=(0, 2),
    )
    for name in ("", "measured", "predicted", "error"):
        table.add_column(name, justify="right" if name else "left")
    table.add_row(
        "trajectories/s",
        f"{prediction.measured_per_s:,.2f}",
        f"{prediction.predicted_per_s:,.2f}",
        f"{prediction.error:+.1%}",
    )
    table.add_row(
        "steps/s",
        f"{prediction.measured_per_s * measured.steps_per_trajectory:,.0f}",
        f"{prediction.predicted_per_s * measured.steps_per_trajectory:,.0f}",
        f"{prediction.error:+.1%}",
    )
    table.add_row(
        "mean lag",
        f"{prediction.measured_lag:.2f}",
        f"{prediction.predicted_lag:.2f}",
        f"{prediction.lag_error:+.1%}",
    )
    return table
