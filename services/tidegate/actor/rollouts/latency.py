"""The minimum time of rollouts (``workload.latency``, which simulates slow environments), from their tasks' seeds."""

from collections.abc import Mapping

from tidegate.core.curriculum import uniform_fraction
from tidegate.core.distributions import Distribution, slowest_quantile
from tidegate.core.lengths import OTHER_BIN
from tidegate.core.records import Task


def rollout_time_s(by_bin: Mapping[str, Distribution], task: Task, *, first_sample: int = 0) -> float:
    """Seconds of a task's slowest sample; the same on every actor.

    ``first_sample``: index of the first of these samples, so that later samples draw another time.
    """
    distribution = by_bin.get(task.curriculum_bin, by_bin.get(OTHER_BIN))
    if distribution is None:
        return 0.0
    share = uniform_fraction(task.seed, "latency", first_sample)
    return slowest_quantile(distribution, share, num=task.num_samples)
