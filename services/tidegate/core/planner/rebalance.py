"""The cheapest platform for the same work: actors, environment workers and learner replicas by cost per million."""

import math

import msgspec

from tidegate.core.planner.scaling import replicas_max
from tidegate.core.planner.stages import Loop, capacities, throughput
from tidegate.core.prices import EXAMPLE_PRICES, Prices, dollars, usd_per_million

# Smaller savings are not worth a change; it also keeps rounding from proposing the present size.
SAVING_MIN = 0.005
# Costs within this are equal: sums of prices are not exact.
SLACK = 1e-9
# One of so many workers is less than half a percent of what they do.
WORKERS_TRIED_MAX = 256


class Rebalancing(msgspec.Struct, frozen=True):
    """The cheaper size, and the cost per million samples before and after. ``changes`` is False if nothing is better.

    ``saving`` is the share of the cost per million that is saved.
    """

    changes: bool
    num_actors: int
    num_environments: int
    num_replicas: int
    throughput_before_per_s: float
    throughput_after_per_s: float
    usd_per_h_before: float
    usd_per_h_after: float
    usd_per_million_before: float
    usd_per_million_after: float
    saving: float
    sentence: str


def usd_per_h(loop: Loop, prices: Prices) -> float:
    """What a loop costs an hour."""
    return prices.usd_per_h(
        num_actors=loop.num_actors, num_environments=loop.num_environments, num_learners=loop.num_replicas
    )


def replicas_needed(loop: Loop) -> int | None:
    """The smallest number of learner replicas with which the learner is no bottleneck; None if none suffices."""
    others = min(capacity for name, _, capacity in capacities(loop) if name != "learner")
    for replicas in range(1, replicas_max(loop.scaling) + 1):
        resized = msgspec.structs.replace(loop, num_replicas=replicas)
        if capacities(resized)[-1][2] >= others:
            return replicas
    return None


def rebalance(loop: Loop, *, prices: Prices = EXAMPLE_PRICES, target_per_s: float = 0.0) -> Rebalancing:
    """The cheapest loop per million samples that does at least what this one does (or ``target_per_s``, if more).

    For given replicas and workers, cost per million falls with every actor until actors are as fast as the rest, and
    rises after it; so only the counts next to that point, next to the target's and the present one can be cheapest.
    Where a target cannot be reached at all, the cheapest loop that keeps today's rate is named.
    """
    replica_counts = range(1, replicas_max(loop.scaling) + 1)
    within_reach = max(
        _ceiling(msgspec.structs.replace(loop, num_replicas=replicas)) for replicas in replica_counts
    )
    target_per_s = target_per_s if target_per_s <= within_reach else 0.0
    wanted = max(throughput(loop), target_per_s) * (1.0 - SLACK)
    best, best_key = loop, _key(loop, loop, prices, wanted)
    for replicas in replica_counts:
        for candidate in _candidates(msgspec.structs.replace(loop, num_replicas=replicas), loop, wanted):
            key = _key(candidate, loop, prices, wanted)
            if key < best_key:
                best, best_key = candidate, key
    before, after = _cost(loop, prices), _cost(best, prices)
    saving = 1.0 - after / before if before > 0.0 else 0.0
    if throughput(loop) >= wanted and saving < SAVING_MIN:
        best, after, saving = loop, before, 0.0
    return Rebalancing(
        changes=best != loop,
        num_actors=best.num_actors,
        num_environments=best.num_environments,
        num_replicas=best.num_replicas,
        throughput_before_per_s=throughput(loop),
        throughput_after_per_s=throughput(best),
        usd_per_h_before=usd_per_h(loop, prices),
        usd_per_h_after=usd_per_h(best, prices),
        usd_per_million_before=before,
        usd_per_million_after=after,
        saving=saving,
        sentence=_sentence(loop, best, before, after),
    )


def _candidates(resized: Loop, loop: Loop, wanted: float) -> list[Loop]:
    ceiling = _ceiling(resized)
    found: list[Loop] = []
    for workers in _worker_counts(loop, ceiling, wanted):
        reach = min(ceiling, workers * loop.environment_rate) if workers else ceiling
        counts = {loop.num_actors, *_beside(reach, loop.actor_rate), *_beside(wanted, loop.actor_rate)}
        found += [
            msgspec.structs.replace(resized, num_actors=actors, num_environments=workers)
            for actors in sorted(counts)
        ]
    return found


def _ceiling(loop: Loop) -> float:
    """Capacity of the stages that have no replicas to buy."""
    return min(capacity for name, _, capacity in capacities(loop) if name in ("learner", "store"))


def _worker_counts(loop: Loop, ceiling: float, wanted: float) -> list[int]:
    """Every count up to what the learner can take while a worker is a step that shows; past that only the edges."""
    if not loop.num_environments:
        return [0]
    enough = _beside(ceiling, loop.environment_rate)[1]
    if enough <= WORKERS_TRIED_MAX:
        return sorted({loop.num_environments, *range(1, enough + 1)})
    return sorted({loop.num_environments, enough, *_beside(wanted, loop.environment_rate)})


def _beside(rate: float, rate_of_one: float) -> tuple[int, int]:
    exact = rate / rate_of_one
    return max(1, math.floor(exact + SLACK)), max(1, math.ceil(exact - SLACK))


def _cost(loop: Loop, prices: Prices) -> float:
    return usd_per_million(usd_per_h(loop, prices), per_s=throughput(loop))


def _key(candidate: Loop, loop: Loop, prices: Prices, wanted: float) -> tuple[bool, float, int]:
    """Reaching the rate first, then the cost (to nine digits), then the fewest machines moved."""
    moved = (
        abs(candidate.num_actors - loop.num_actors)
        + abs(candidate.num_environments - loop.num_environments)
        + abs(candidate.num_replicas - loop.num_replicas)
    )
    rate = throughput(candidate)
    cost = usd_per_million(usd_per_h(candidate, prices), per_s=rate)
    return rate < wanted, round(cost, 9), moved


def _sentence(loop: Loop, best: Loop, before: float, after: float) -> str:
    if best == loop:
        return f"No other size does this work for less than {dollars(before)} per million."
    parts = [
        f"{new} {name}{'' if new == 1 else 's'} instead of {old}"
        for name, old, new in (
            ("actor", loop.num_actors, best.num_actors),
            ("environment worker", loop.num_environments, best.num_environments),
            ("learner replica", loop.num_replicas, best.num_replicas),
        )
        if old != new
    ]
    rate_before, rate_after = throughput(loop), throughput(best)
    more = rate_after / rate_before - 1.0
    rate = (
        f"{rate_after:,.0f} samples/s ({more:+.0%})"
        if more > SAVING_MIN
        else f"the same {rate_after:,.0f} samples/s"
    )
    cost = f"{dollars(after)} per million instead of {dollars(before)} ({_change(before, after)})"
    return f"Run {' and '.join(parts)}: {rate} for {cost}."


def _change(before: float, after: float) -> str:
    return f"{after / before - 1.0:+.0%}" if before > 0.0 else "both free"
