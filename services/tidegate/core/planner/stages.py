"""The balance calculator: actors, environment, store and learner as a line of stages, each with a capacity.

Rates are samples a second, in any unit of samples (steps, segments, completions), provided that all
stages and the batch count the same. Throughput is the smallest capacity, T = min(N·r, M·r_e, store, u·B). Without
admission every stage works as fast as it can and what the next one cannot take piles up before it; with admission
the law bounds work in flight to (max_lag + 1) batches, so queue and lag end there and actors wait instead.
"""

from typing import Literal, TypeAlias

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.core.planner.scaling import ScalingCurve, check_curve, speedup
from tidegate.core.prices import EXAMPLE_PRICES, Prices, usd_per_million

StageName: TypeAlias = Literal["actor", "environment", "store", "learner"]
Binding: TypeAlias = Literal["actor", "environment", "store", "learner", "balanced"]

# Rates of real runs are not known any closer; within this, actors and learner are called balanced.
BALANCED_WITHIN = 0.02


class Loop(msgspec.Struct, frozen=True):
    """What a platform is made of.

    ``actor_rate``, ``environment_rate``: samples/s of one. ``learner_rate``: samples/s of one replica (updates/s ×
    batch). ``num_environments`` 0: rewards come with the rollout. ``store_rate`` 0: the store is never the bottleneck.
    ``batch_size``: samples an update. ``scaling``: measured speedups of the learner; empty is the model.
    """

    num_actors: int
    actor_rate: float
    learner_rate: float
    batch_size: int
    num_replicas: int = 1
    num_environments: int = 0
    environment_rate: float = 0.0
    store_rate: float = 0.0
    max_lag: int = 4
    scaling: ScalingCurve = ()


class Stage(msgspec.Struct, frozen=True):
    """One stage: how much it could do, and the share of that it is used for. ``utilisation`` is in [0, 1]."""

    name: StageName
    count: int
    capacity_per_s: float
    utilisation: float


class Backlog(msgspec.Struct, frozen=True):
    """Finished samples that wait after some seconds, and how many updates old that makes the newest of them."""

    queue: float
    lag_updates: float


class Balance(msgspec.Struct, frozen=True):
    """The bottleneck of a loop and its consequences. ``replay_ratio``: capacity of the learner over that of the actors.

    ``unbounded``: after ``after_s`` without admission; ``bounded``: with it. ``budget_lasts_s``: seconds until the lag
    passes ``max_lag`` without admission; None if it never does.
    """

    throughput_per_s: float
    updates_per_s: float
    bottleneck: Binding
    stages: tuple[Stage, ...]
    replay_ratio: float
    after_s: float
    unbounded: Backlog
    bounded: Backlog
    budget_lasts_s: float | None
    usd_per_h: float
    usd_per_million: float

    def stage(self, name: StageName) -> Stage:
        """A stage by name; a loop without it has none."""
        return next(stage for stage in self.stages if stage.name == name)


def check_loop(loop: Loop) -> Loop:
    """A loop that can run.

    Raises:
        ConfigError: something is missing, negative or beyond what is known of replicas.
    """
    for what, value in (
        ("actors", loop.num_actors),
        ("samples/s an actor", loop.actor_rate),
        ("samples/s of the learner", loop.learner_rate),
        ("samples an update", loop.batch_size),
    ):
        if not 0 < value < float("inf"):
            raise ConfigError(f"A loop with {value:g} {what} does nothing", fix="give a positive number")
    if loop.num_environments and not 0 < loop.environment_rate < float("inf"):
        raise ConfigError(
            f"{loop.num_environments} environment workers score {loop.environment_rate:g} samples/s each",
            fix="give the rate of one worker, or no workers where rewards come with the rollout",
        )
    if not (loop.num_environments >= 0 and 0.0 <= loop.store_rate < float("inf") and loop.max_lag >= 0):
        raise ConfigError("A count, a rate or a budget is negative or no number", fix="give 0 or more")
    speedup(loop.num_replicas, curve=check_curve(loop.scaling))
    return loop


def capacities(loop: Loop) -> list[tuple[StageName, int, float]]:
    """(stage, how many, samples/s of all of them) in the order of the loop; optional stages only if they are there."""
    stages: list[tuple[StageName, int, float]] = [
        ("actor", loop.num_actors, loop.num_actors * loop.actor_rate)
    ]
    if loop.num_environments:
        stages.append(("environment", loop.num_environments, loop.num_environments * loop.environment_rate))
    if loop.store_rate:
        stages.append(("store", 1, loop.store_rate))
    learner = loop.learner_rate * speedup(loop.num_replicas, curve=loop.scaling)
    return [*stages, ("learner", loop.num_replicas, learner)]


def throughput(loop: Loop) -> float:
    """Samples/s of the loop: its smallest capacity."""
    return min(capacity for _, _, capacity in capacities(loop))


def balance_of(loop: Loop, *, prices: Prices = EXAMPLE_PRICES, after_s: float = 60.0) -> Balance:
    """Work out a loop.

    Raises:
        ConfigError: it cannot run (``check_loop``), or ``after_s`` is no time.
    """
    if not 0.0 <= after_s < float("inf"):
        raise ConfigError(f"Queue and lag after {after_s:g} s are undefined", fix="give seconds, 0 or more")
    stages = capacities(check_loop(loop))
    rate = throughput(loop)
    produced, consumed = stages[0][2], stages[-1][2]
    surplus = max(0.0, produced - rate)
    queue = surplus * after_s
    lag = queue / loop.batch_size
    usd_per_h = prices.usd_per_h(
        num_actors=loop.num_actors, num_environments=loop.num_environments, num_learners=loop.num_replicas
    )
    return Balance(
        throughput_per_s=rate,
        updates_per_s=rate / loop.batch_size,
        bottleneck=_binding(stages),
        stages=tuple(Stage(name, count, capacity, rate / capacity) for name, count, capacity in stages),
        replay_ratio=consumed / produced,
        after_s=after_s,
        unbounded=Backlog(queue, lag),
        bounded=Backlog(
            min(queue, float((loop.max_lag + 1) * loop.batch_size)), min(lag, float(loop.max_lag))
        ),
        budget_lasts_s=loop.max_lag * loop.batch_size / surplus if surplus > 0.0 else None,
        usd_per_h=usd_per_h,
        usd_per_million=usd_per_million(usd_per_h, per_s=rate),
    )


def _binding(stages: list[tuple[StageName, int, float]]) -> Binding:
    """The smallest capacity; of equals the last, since what piles up does so before it."""
    slowest = min(capacity for _, _, capacity in stages)
    if max(stages[0][2], stages[-1][2]) <= slowest * (1.0 + BALANCED_WITHIN):
        return "balanced"
    slow: list[StageName] = [name for name, _, capacity in stages if capacity == slowest]
    return slow[-1]
