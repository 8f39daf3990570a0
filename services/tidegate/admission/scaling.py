"""The recommended number of actors, from the run's signals and the view of the cluster, where there is one.

Consumes: signals and diagnosis of each tick, the last view of the cluster. Produces: a recommendation, for operators,
for KEDA and for the controller. Nothing here calls the cluster: an adapter stores its view, and without an adapter the
number of reporting actors is used as the number of replicas.
"""

import asyncio

import msgspec

from tidegate.catalogue import admission as statistics
from tidegate.catalogue.kinds import Counter, Gauge, Text
from tidegate.core.balance import Diagnosis, Signals
from tidegate.core.scaling import (
    Mode,
    Recommendation,
    ScalingConfig,
    ScalingState,
    ScalingView,
    advance,
)

# An older view of the cluster is ignored; the adapter refreshes it several times as often.
VIEW_AGE_MAX_S = 60.0


class Overrides(msgspec.Struct, frozen=True):
    """What a TrainingRun declares over the run file; kept until the TrainingRun changes.

    ``pause``: why admission pauses ("" while it does not). ``max_lag``: a budget inside the run file's.
    ``mode``, ``min_replicas``, ``max_replicas``, ``replicas``: of scaling; None keeps the run file's
    value, or the measured one.
    """

    pause: str = ""
    max_lag: int | None = None
    mode: Mode | None = None
    min_replicas: int | None = None
    max_replicas: int | None = None
    replicas: int | None = None


NO_OVERRIDES = Overrides()


class ClusterView(msgspec.Struct, frozen=True):
    """The adapter's newest view. ``seen_at_s`` monotonic; ``scaled_at_s`` seconds since the epoch.

    ``replicas``: wanted by the Deployments; None without an adapter. ``fixed``: those of the Deployments that are never
    patched. ``scaled_by``: the other manager that scaled last, "" when admission did or none. ``zero``: who asked for 0
    actors and since when, as a sentence; "" while there are some, or an autoscaler asked.
    """

    seen_at_s: float = 0.0
    replicas: int | None = None
    fixed: int = 0
    scaled_by: str = ""
    scaled_at_s: float | None = None
    zero_is_ours: bool = False
    zero: str = ""
    overrides: Overrides = NO_OVERRIDES


class Scaling:
    """Advances once a tick; ``changed`` wakes callers that wait for another recommendation."""

    def __init__(self, config: ScalingConfig) -> None:
        self._config = config
        self._state = ScalingState()
        self._current = 0
        self.cluster = ClusterView()
        self.changed = asyncio.Event()

    @property
    def run_file(self) -> ScalingConfig:
        """The run file's section, as it is without overrides."""
        return self._config

    @property
    def config(self) -> ScalingConfig:
        """The run file's section with the overrides applied; declared bounds stay inside the run file's.

        A declared number of replicas without bounds is clamped to the run file's bounds.
        """
        overrides, own = self.cluster.overrides, self._config
        low = own.min_replicas if overrides.min_replicas is None else overrides.min_replicas
        high = (
            own.max_replicas
            if overrides.max_replicas is None
            else min(overrides.max_replicas, own.max_replicas)
        )
        return msgspec.structs.replace(
            own, mode=overrides.mode or own.mode, min_replicas=min(low, high), max_replicas=max(1, high)
        )

    def change(self, config: ScalingConfig) -> None:
        """The run file's section changed; it holds from the next tick on."""
        self._config = config

    @property
    def recommendation(self) -> Recommendation | None:
        """The newest recommendation; None in the mode observe, and before the first tick."""
        return None if self.config.mode == "observe" else self._state.recommendation

    @property
    def decided_at_s(self) -> float:
        """When the recommendation was made, on the clock of the ticks."""
        return self._state.at_s

    def tick(
        self, signals: Signals, diagnosis: Diagnosis, *, paused: bool, now_s: float, wall_s: float
    ) -> None:
        """Advance by one tick. ``paused``: an operator or the TrainingRun paused the run, not the platform."""
        before = self.recommendation
        cluster = self.cluster
        known = cluster.replicas is not None and now_s - cluster.seen_at_s <= VIEW_AGE_MAX_S
        scaled_s_ago = None if cluster.scaled_at_s is None else max(0.0, wall_s - cluster.scaled_at_s)
        view = ScalingView(
            signals=signals,
            bottleneck=diagnosis.bottleneck,
            replicas=cluster.replicas if known else None,
            paused=paused,
            scaled_by=cluster.scaled_by,
            scaled_s_ago=scaled_s_ago if cluster.scaled_by else None,
            zero_is_ours=cluster.zero_is_ours,
            asked=cluster.overrides.replicas,
        )
        self._current = view.current()
        config = self.config
        if config.mode == "observe":
            self._state = ScalingState()
        else:
            self._state = advance(self._state, view, config, now_s=now_s)
        after = self.recommendation
        if (before.replicas if before else None) != (after.replicas if after else None):
            self.changed.set()
            self.changed = asyncio.Event()

    def sentence(self) -> str:
        """The recommendation as ``tidegate explain`` shows it; empty where there is none."""
        made = self.recommendation
        if made is None:
            return ""
        number = f"{made.replicas} actor{'' if made.replicas == 1 else 's'}"
        do = (
            f"keep {number}" if made.replicas == self._current else f"run {number} instead of {self._current}"
        )
        far = made.needed and made.needed != made.replicas and made.replicas != self._current
        towards = f", on the way to {made.needed}" if far else ""
        return f"{do}{towards}: {made.reason}"

    def statistics(self) -> dict[Counter | Gauge, float]:
        """What operators see of it; the recommendation is there only where one is made."""
        made = self.recommendation
        shown: dict[Counter | Gauge, float] = {
            statistics.SCALING_STEPS: float(self._state.steps),
            statistics.SCALING_CURRENT: float(self._current),
        }
        if made is not None:
            shown |= {
                statistics.SCALING_RECOMMENDED: float(made.replicas),
                statistics.SCALING_NEEDED: float(made.needed),
            }
        return shown

    def labels(self) -> dict[Text, str]:
        """Labels: the mode in force, the other manager that scaled last, and the sentence."""
        return {
            statistics.SCALING_MODE: self.config.mode,
            statistics.SCALING_OWNER: self.cluster.scaled_by,
            statistics.SCALING_SENTENCE: self.sentence(),
        }
