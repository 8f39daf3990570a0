"""Flags and measurements put together: what was typed comes first, then what a run measured, then defaults."""

from pathlib import Path
from typing import TypeVar

import msgspec

from tidegate.cli.plan.answer import PlanQuestion
from tidegate.cli.plan.measured import MeasuredRun, measure_run
from tidegate.cli.plan.specs import parse_durations, parse_speedup
from tidegate.core.errors import ConfigError
from tidegate.core.planner.rollout import LAG_WALL, PENALTY_PER_VERSION, RolloutLoop
from tidegate.core.planner.scaling import speedup
from tidegate.core.planner.stages import Loop, check_loop
from tidegate.core.planner.tails import Durations
from tidegate.core.prices import EXAMPLE_PRICES, Prices

ValueT = TypeVar("ValueT")

BATCH = 256
MAX_LAG = 4
EXAMPLE = "tidegate plan --actors 16 --actor-rate 1000 --learner-rate 12000"


class Flags(msgspec.Struct, frozen=True):
    """What was typed; None is what was not. Units as in the help of the command."""

    actors: int | None = None
    actor_rate: float | None = None
    learner_rate: float | None = None
    update_rate: float | None = None
    batch: int | None = None
    replicas: int = 1
    speedup: str | None = None
    environments: int | None = None
    environment_rate: float | None = None
    store_rate: float = 0.0
    max_lag: int | None = None
    after_s: float = 60.0
    target_rate: float = 0.0
    rollout: str | None = None
    slots: int | None = None
    group: int | None = None
    train_s: float | None = None
    weight_sync_s: float | None = None
    reward_tail: str | None = None
    lag_wall: float = LAG_WALL
    freshness_penalty: float = PENALTY_PER_VERSION
    actor_price: float | None = None
    environment_price: float | None = None
    learner_price: float | None = None
    from_run: Path | None = None


def ask(flags: Flags) -> tuple[PlanQuestion, MeasuredRun | None]:
    """The question that flags and a run folder put.

    Raises:
        ConfigError: something that is needed was neither typed nor measured, or was typed twice.
        NotFoundError: there is no such run, or nothing to measure in it.
    """
    run = measure_run(flags.from_run) if flags.from_run else None
    actors = flags.actors if flags.actors is not None else (run.num_actors if run else None)
    if actors is None:
        raise ConfigError(
            "How many actors is not known", fix=f"give --actors or --from-run, as in `{EXAMPLE}`"
        )
    rollout = _rollout(flags, run)
    slots = _known(flags.slots, run.num_slots if run else 1)
    group, batch = _sizes(flags, run, places=actors * slots, has_rollouts=rollout is not None)
    learner_rate = _learner_rate(flags, run, batch=batch, group=group)
    loop = Loop(
        num_actors=actors,
        actor_rate=_actor_rate(flags, run, rollout, slots=slots),
        learner_rate=learner_rate,
        batch_size=batch,
        num_replicas=flags.replicas,
        num_environments=_known(flags.environments, run.num_environments if run else 0),
        environment_rate=_known(flags.environment_rate, run.environment_rate if run else 0.0),
        store_rate=flags.store_rate,
        max_lag=_known(flags.max_lag, run.max_lag if run else MAX_LAG),
        scaling=parse_speedup(flags.speedup) if flags.speedup else (),
    )
    check_loop(loop)
    rollouts = rollout and RolloutLoop(
        rollout=rollout,
        num_slots=actors * slots,
        group=group,
        train_s=_known(flags.train_s, group / learner_rate) / speedup(loop.num_replicas, curve=loop.scaling),
        weight_sync_s=_known(flags.weight_sync_s, run.weight_sync_s if run else 0.0),
        reward=parse_durations(flags.reward_tail, flag="--reward-tail") if flags.reward_tail else None,
        max_lag=loop.max_lag,
        lag_wall=flags.lag_wall,
        penalty_per_version=flags.freshness_penalty,
    )
    prices = _prices(flags, run.prices if run else EXAMPLE_PRICES)
    return PlanQuestion(loop, prices, flags.after_s, flags.target_rate, rollouts or None), run


def _known(typed: ValueT | None, otherwise: ValueT) -> ValueT:
    return otherwise if typed is None else typed


def _rollout(flags: Flags, run: MeasuredRun | None) -> Durations | None:
    if flags.rollout is not None:
        return parse_durations(flags.rollout, flag="--rollout")
    return run.rollout if run else None


def _sizes(flags: Flags, run: MeasuredRun | None, *, places: int, has_rollouts: bool) -> tuple[int, int]:
    """(rollouts a step, samples an update); where one is not known it is the other."""
    batch = flags.batch if flags.batch is not None else (run.batch_size if run else None)
    group = _known(flags.group, _known(batch, places))
    return group, _known(batch, group if has_rollouts else BATCH)


def _actor_rate(flags: Flags, run: MeasuredRun | None, rollout: Durations | None, *, slots: int) -> float:
    if flags.actor_rate is not None:
        return flags.actor_rate
    if run is not None and flags.rollout is None:
        return run.actor_rate
    if rollout is None:
        raise ConfigError(
            "How fast an actor is is not known",
            fix=f"give --actor-rate, --rollout or --from-run, as in `{EXAMPLE}`",
        )
    return slots / rollout.mean_s if rollout.mean_s > 0.0 else 0.0


def _learner_rate(flags: Flags, run: MeasuredRun | None, *, batch: int, group: int) -> float:
    if flags.learner_rate is not None and flags.update_rate is not None:
        raise ConfigError(
            "--learner-rate and --update-rate both say how fast the learner is", fix="give one of them"
        )
    if flags.learner_rate is not None:
        return flags.learner_rate
    if flags.update_rate is not None:
        return flags.update_rate * batch
    if flags.train_s:
        return group / flags.train_s
    if run is not None:
        return run.learner_rate
    raise ConfigError(
        "How fast the learner is is not known",
        fix=f"give --learner-rate, --update-rate, --train or --from-run, as in `{EXAMPLE}`",
    )


def _prices(flags: Flags, base: Prices) -> Prices:
    typed = (flags.actor_price, flags.environment_price, flags.learner_price)
    if any(price is not None and not 0.0 <= price < float("inf") for price in typed):
        raise ConfigError("A price is no number of dollars", fix="give dollars an hour, 0 or more")
    return Prices(
        actor_usd_per_h=_known(flags.actor_price, base.actor_usd_per_h),
        environment_usd_per_h=_known(flags.environment_price, base.environment_usd_per_h),
        learner_usd_per_h=_known(flags.learner_price, base.learner_usd_per_h),
    )
