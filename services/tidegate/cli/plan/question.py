"""Options and measurements combined: an option wins over a measurement, and that over a default."""

from pathlib import Path
from typing import NamedTuple, TypeVar

from tidegate.cli.durations import read_durations
from tidegate.cli.plan.answer import PlanQuestion
from tidegate.cli.plan.measured import RunMeasurements, measure_run
from tidegate.cli.plan.options import BalanceOptions, PriceOptions, RolloutOptions
from tidegate.core.distributions import Durations
from tidegate.core.errors import ConfigError
from tidegate.core.planner.rollout import RolloutLoop
from tidegate.core.planner.scaling import parse_curve, speedup
from tidegate.core.planner.stages import Loop, check_loop
from tidegate.core.prices import EXAMPLE_PRICES, Prices

ValueT = TypeVar("ValueT")

BATCH = 256
MAX_LAG = 4
EXAMPLE = "tidegate plan --actors 16 --actor-rate 1000 --learner-rate 12000"


class PlanFlags(NamedTuple):
    """The options that describe a configuration, by group."""

    balance: BalanceOptions = BalanceOptions()
    rollouts: RolloutOptions = RolloutOptions()
    prices: PriceOptions = PriceOptions()


def ask(flags: PlanFlags, *, from_run: Path | None = None) -> tuple[PlanQuestion, RunMeasurements | None]:
    """The question that options and a run folder describe.

    Raises:
        ConfigError: a required value was neither given nor measured, or was given twice.
        NotFoundError: there is no such run, or nothing to measure in it.
    """
    run = measure_run(from_run) if from_run else None
    actors = flags.balance.actors if flags.balance.actors is not None else (run.num_actors if run else None)
    if actors is None:
        raise ConfigError(
            "The number of actors is unknown", fix=f"give --actors or --from-run, as in `{EXAMPLE}`"
        )
    rollout = _rollout(flags, run)
    slots = _known(flags.rollouts.slots, run.num_slots if run else 1)
    group, batch = _sizes(flags, run, places=actors * slots, has_rollouts=rollout is not None)
    learner_rate = _learner_rate(flags, run, batch=batch, group=group)
    loop = Loop(
        num_actors=actors,
        actor_rate=_actor_rate(flags, run, rollout, slots=slots),
        learner_rate=learner_rate,
        batch_size=batch,
        num_replicas=flags.balance.replicas,
        num_environments=_known(flags.balance.environments, run.num_environments if run else 0),
        environment_rate=_known(flags.balance.environment_rate, run.environment_rate if run else 0.0),
        store_rate=flags.balance.store_rate,
        max_lag=_known(flags.balance.max_lag, run.max_lag if run else MAX_LAG),
        scaling=parse_curve(flags.balance.speedup) if flags.balance.speedup else (),
    )
    check_loop(loop)
    rollouts = rollout and RolloutLoop(
        rollout=rollout,
        num_slots=actors * slots,
        group=group,
        train_s=_known(flags.rollouts.train, group / learner_rate)
        / speedup(loop.num_replicas, curve=loop.scaling),
        weight_sync_s=_known(flags.rollouts.weight_sync, run.weight_sync_s if run else 0.0),
        reward=_reward(flags),
        max_lag=loop.max_lag,
        lag_wall=flags.rollouts.lag_wall,
        penalty_per_version=flags.rollouts.freshness_penalty,
    )
    prices = _prices(flags, run.prices if run else EXAMPLE_PRICES)
    return PlanQuestion(loop, prices, flags.balance.after, flags.balance.target_rate, rollouts or None), run


def _known(typed: ValueT | None, otherwise: ValueT) -> ValueT:
    return otherwise if typed is None else typed


def _rollout(flags: PlanFlags, run: RunMeasurements | None) -> Durations | None:
    if flags.rollouts.rollout is not None:
        return read_durations(flags.rollouts.rollout, option="--rollout")
    return run.rollout if run else None


def _reward(flags: PlanFlags) -> Durations | None:
    text = flags.rollouts.reward_tail
    return read_durations(text, option="--reward-tail") if text else None


def _sizes(
    flags: PlanFlags, run: RunMeasurements | None, *, places: int, has_rollouts: bool
) -> tuple[int, int]:
    """(rollouts a step, samples an update); an unknown one equals the other."""
    batch = flags.balance.batch if flags.balance.batch is not None else (run.batch_size if run else None)
    group = _known(flags.rollouts.group, _known(batch, places))
    return group, _known(batch, group if has_rollouts else BATCH)


def _actor_rate(
    flags: PlanFlags, run: RunMeasurements | None, rollout: Durations | None, *, slots: int
) -> float:
    if flags.balance.actor_rate is not None:
        return flags.balance.actor_rate
    if run is not None and flags.rollouts.rollout is None:
        return run.actor_rate
    if rollout is None:
        raise ConfigError(
            "The rate of an actor is unknown",
            fix=f"give --actor-rate, --rollout or --from-run, as in `{EXAMPLE}`",
        )
    return slots / rollout.mean_s if rollout.mean_s > 0.0 else 0.0


def _learner_rate(flags: PlanFlags, run: RunMeasurements | None, *, batch: int, group: int) -> float:
    if flags.balance.learner_rate is not None and flags.balance.update_rate is not None:
        raise ConfigError(
            "--learner-rate and --update-rate both set the rate of the learner", fix="give one of them"
        )
    if flags.balance.learner_rate is not None:
        return flags.balance.learner_rate
    if flags.balance.update_rate is not None:
        return flags.balance.update_rate * batch
    if flags.rollouts.train:
        return group / flags.rollouts.train
    if run is not None:
        return run.learner_rate
    raise ConfigError(
        "The rate of the learner is unknown",
        fix=f"give --learner-rate, --update-rate, --train or --from-run, as in `{EXAMPLE}`",
    )


def _prices(flags: PlanFlags, base: Prices) -> Prices:
    typed = (flags.prices.actor_price, flags.prices.environment_price, flags.prices.learner_price)
    if any(price is not None and not 0.0 <= price < float("inf") for price in typed):
        raise ConfigError("A price is no number of dollars", fix="give dollars per hour, 0 or more")
    return Prices(
        actor_usd_per_h=_known(flags.prices.actor_price, base.actor_usd_per_h),
        environment_usd_per_h=_known(flags.prices.environment_price, base.environment_usd_per_h),
        learner_usd_per_h=_known(flags.prices.learner_price, base.learner_usd_per_h),
    )
