"""What learner replicas bring: the speedup of data parallelism, by a first model or by a measured curve."""

from bisect import bisect_left
from itertools import pairwise
from typing import TypeAlias

from tidegate.core.errors import ConfigError

# Each replica more costs every replica four percent (gradient exchange, stragglers): G·(1 − 0.04·(G − 1)).
LOSS_PER_REPLICA = 0.04
# There the model's speedup is highest; one replica more would make it slower.
REPLICAS_MAX = 13

# (replicas, speedup over one), ascending, from (1, 1) on. Empty: the model.
ScalingCurve: TypeAlias = tuple[tuple[int, float], ...]


def check_curve(curve: ScalingCurve) -> ScalingCurve:
    """A measured curve that can be one.

    Raises:
        ConfigError: it does not start at one replica, does not ascend, or claims more than the replicas can do.
    """
    if not curve:
        return curve
    if curve[0] != (1, 1.0):
        raise ConfigError(
            f"A speedup curve starts with {curve[0][0]}:{curve[0][1]:g}",
            why="speedups are counted against one replica",
            fix="start with 1:1",
        )
    for (fewer, _), (replicas, speedup) in pairwise(curve):
        if replicas <= fewer:
            raise ConfigError(
                f"A speedup curve names {replicas} replicas after {fewer}",
                fix="name each count once, ascending",
            )
        if not 0.0 < speedup <= replicas:
            raise ConfigError(
                f"{replicas} replicas cannot be {speedup:g} times as fast as one",
                fix=f"give a speedup above 0 and at most {replicas}",
            )
    return curve


def parse_curve(text: str) -> ScalingCurve:
    """Read ``1:1,2:1.9,4:3.5``: counts of replicas and their speedups over one.

    Raises:
        ConfigError: it is no such list, or no curve that can be measured.
    """
    points: list[tuple[int, float]] = []
    for pair in text.split(","):
        replicas, _, factor = pair.strip().partition(":")
        try:
            points.append((int(replicas), float(factor)))
        except ValueError as error:
            raise ConfigError(
                f"Speedup curve {text}: {pair!r} is no REPLICAS:SPEEDUP", fix="write it as 1:1,2:1.9,4:3.5"
            ) from error
    return check_curve(tuple(points))


def replicas_max(curve: ScalingCurve) -> int:
    """As many replicas as anything is known of."""
    return curve[-1][0] if curve else REPLICAS_MAX


def modelled_speedup(replicas: int) -> float:
    """The model, G(1 - 0.04(G - 1)), wherever it is asked; the caller bounds ``replicas``."""
    return replicas * (1.0 - LOSS_PER_REPLICA * (replicas - 1))


def speedup(replicas: int, *, curve: ScalingCurve = ()) -> float:
    """How many single replicas ``replicas`` of them are worth; between measured points on a straight line.

    Raises:
        ConfigError: there are none, or more than the curve or the model knows of.
    """
    known = replicas_max(curve)
    if not 1 <= replicas <= known:
        raise ConfigError(
            f"The speedup of {replicas} learner replicas is not known",
            why=f"the measured curve ends at {known}"
            if curve
            else f"by G·(1 − {LOSS_PER_REPLICA:g}·(G − 1)) each replica past {known} makes the learner slower",
            fix=f"plan with 1 to {known}, or measure more: --speedup 1:1,2:1.9,16:11",
        )
    if not curve:
        return modelled_speedup(replicas)
    index = bisect_left(curve, replicas, key=lambda point: point[0])
    upper = curve[index]
    if upper[0] == replicas:
        return upper[1]
    lower = curve[index - 1]
    share = (replicas - lower[0]) / (upper[0] - lower[0])
    return lower[1] + share * (upper[1] - lower[1])
