"""The settings of a simulated fleet."""

import msgspec

from tidegate.core.admission import Limits
from tidegate.core.distributions import Durations, Fixed
from tidegate.core.errors import ConfigError
from tidegate.core.planner.scaling import modelled_speedup
from tidegate.core.staleness import StalenessLimits
from tidegate.runtime.config import ResponseConfig

# No budget at all: far beyond any version a run can reach, far below where sums stop being exact.
NO_BOUND = 1 << 40
# With this many replicas the planner's model is as fast as with one. The planner stops where they are fastest; the
# fleet simulates more of them all the same.
REPLICAS_MAX = 25


class FleetPlan(msgspec.Struct, frozen=True):
    """One loop. Seconds are virtual; counts are trajectories unless the name says otherwise.

    ``rollout``: seconds of one task on one actor (of a group: its longest sample). ``group_size``: trajectories a task.
    ``samples_per_trajectory``: what throughput counts (steps of a segment). ``max_lag``: None for no bound at all.
    ``admission``: whether the law holds; without it every idle actor starts at once and nothing bounds the queue.
    ``pacing``: whether it waits for the oldest rollout. ``max_running``: C, None where only the budget shall bind.
    ``learn``: seconds of one update on one replica, and ``learn_each_s`` more for each trajectory in it; ``replicas``
    (G) make it G(1 - 0.04(G - 1)) times as fast. ``environments``: scoring workers, 0 scores inline. ``announce_s``,
    ``pull_s``: of a version; ``fan_out``: children of each node of the tree of relays (0: all pull from the root at
    once). ``hop_s``: one message between two services. ``tick_s``: admission's. ``resident_bytes_high``: where the
    pressure of ``trajectory_bytes`` each in the store begins to bound the rollouts. ``checkpoint_every``: updates.
    ``redelivery_s``: until the task of a failed actor is redelivered. ``prefetch``: tasks that an actor holds
    besides the one it works on; others may have nothing to do meanwhile. ``response``: hard syncs and the budget of
    best goodput, as admission steers them.
    """

    actors: int
    rollout: Durations
    learn: Durations = Fixed(0.0)
    learn_each_s: float = 0.0
    batch_size: int = 1
    max_lag: int | None = 4
    max_age_s: float = 86_400.0
    max_running: int | None = None
    admission: bool = True
    pacing: bool = False
    group_size: int = 1
    samples_per_trajectory: int = 1
    replicas: int = 1
    environments: int = 0
    score: Durations = Fixed(0.0)
    announce_s: float = 0.0
    pull_s: float = 0.0
    fan_out: int = 0
    hop_s: float = 0.0
    tick_s: float = 1.0
    trajectory_bytes: int = 0
    resident_bytes_high: float = float("inf")
    checkpoint_every: int = 1
    redelivery_s: float = 10.0
    prefetch: int = 0
    response: ResponseConfig = ResponseConfig()
    seed: int = 0

    def limits(self) -> Limits:
        """The run file's limits."""
        max_lag = NO_BOUND if self.max_lag is None else self.max_lag
        limits = Limits(max_lag=max_lag, batch_size=self.batch_size, max_running=NO_BOUND, paced=self.pacing)
        if self.max_running is not None:
            return msgspec.structs.replace(limits, max_running=self.max_running)
        return limits

    def staleness(self) -> StalenessLimits:
        """The staleness budget of every gradient."""
        return StalenessLimits(
            max_lag=NO_BOUND if self.max_lag is None else self.max_lag, max_age_s=self.max_age_s
        )

    def is_steered(self) -> bool:
        """Whether admission changes limits by itself."""
        return self.response.hard_sync.every_versions > 0 or self.response.goodput.enabled

    def learner_speed(self) -> float:
        """How many times as fast as one replica all of them are."""
        return modelled_speedup(self.replicas)


def depths(count: int, *, fan_out: int) -> list[int]:
    """Pulls between the root and each of ``count`` nodes of a tree of relays, the nearest first."""
    if fan_out <= 0:
        return [1] * count
    levels: list[int] = []
    width, depth = fan_out, 1
    while len(levels) < count:
        levels.extend([depth] * min(width, count - len(levels)))
        width, depth = width * fan_out, depth + 1
    return levels


def check_plan(plan: FleetPlan) -> FleetPlan:
    """Refuse a plan that makes no progress.

    Raises:
        ConfigError: time would stand still, or a batch could never be filled.
    """
    if plan.actors < 1:
        raise ConfigError("A fleet needs an actor", fix="write --actors 1 or more")
    if plan.rollout.mean_s <= 0:
        raise ConfigError(
            "Rollouts take no time", why="time would stand still", fix="write a mean above 0 s, as exp:0.040"
        )
    if not 1 <= plan.replicas <= REPLICAS_MAX:
        raise ConfigError(
            f"{plan.replicas} replicas are none that the model of their efficiency holds for",
            why=f"G(1 - 0.04(G - 1)) is 1 again at {REPLICAS_MAX}",
            fix=f"write --replicas 1 to {REPLICAS_MAX}",
        )
    if plan.batch_size % plan.group_size:
        raise ConfigError(
            f"A batch of {plan.batch_size} cannot be made of whole groups of {plan.group_size}",
            fix=f"set the batch to a multiple of {plan.group_size}",
        )
    if plan.max_running is not None and plan.max_running < plan.group_size:
        raise ConfigError(f"max_running {plan.max_running} is less than one group of {plan.group_size}")
    if plan.max_running is not None and plan.max_lag is None and not plan.admission:
        raise ConfigError("--max-running has no effect without admission", fix="drop one of the two")
    return plan
