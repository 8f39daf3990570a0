"""The number of actors: what is recommended, from what the run and, where there is one, the cluster say.

Consumes: signals and diagnosis of each tick, the last view of the cluster. Produces: a recommendation, for people,
for KEDA and for the controller. Nothing here asks the cluster anything: an adapter leaves what it saw, and without one
the actors that report stand for those that were asked for.
"""

import asyncio

import msgspec

from tidegate.core.balance import Diagnosis, Signals
from tidegate.core.scaling import (
    Mode,
    Recommendation,
    ScalingConfig,
    ScalingState,
    ScalingView,
    advance,
)

# A view of the cluster that is older than this says nothing any more: the adapter looks several times as often.
VIEW_AGE_MAX_S = 60.0


class Overrides(msgspec.Struct, frozen=True):
    """What is declared for this run outside of its run file, and held until it is declared otherwise.

    ``pause``: why admission is to stop ("" when it is not). ``max_lag``: a budget inside the run file's.
    ``mode``, ``min_replicas``, ``max_replicas``, ``replicas``: of scaling; None leaves the run file's, or what is
    measured.
    """

    pause: str = ""
    max_lag: int | None = None
    mode: Mode | None = None
    min_replicas: int | None = None
    max_replicas: int | None = None
    replicas: int | None = None


NO_OVERRIDES = Overrides()


class ClusterView(msgspec.Struct, frozen=True):
    """What the adapter saw last. ``seen_at_s`` monotonic; ``scaled_at_s`` seconds since the epoch.

    ``replicas`` asked for; None where no adapter looks. ``fixed``: those of Deployments that are not the one patched.
    ``scaled_by`` is who else scaled last, "" when it was nobody or ourselves.
    """

    seen_at_s: float = 0.0
    replicas: int | None = None
    fixed: int = 0
    scaled_by: str = ""
    scaled_at_s: float | None = None
    zero_is_ours: bool = False
    overrides: Overrides = NO_OVERRIDES


class Scaling:
    """One tick a period; ``changed`` wakes who waits for another recommendation."""

    def __init__(self, config: ScalingConfig) -> None:
        """Nothing is recommended before the first tick."""
        self._config = config
        self._state = ScalingState()
        self._current = 0
        self.cluster = ClusterView()
        self.changed = asyncio.Event()

    @property
    def config(self) -> ScalingConfig:
        """The run file's section, with what was declared over it; a declared bound never leaves the run file's.

        Who declares a number of replicas and no bounds is bounded by the run file, as everything else is.
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

    @property
    def recommendation(self) -> Recommendation | None:
        """What to have now; None in the mode observe, and before the first tick."""
        return None if self.config.mode == "observe" else self._state.recommendation

    @property
    def decided_at_s(self) -> float:
        """When the recommendation was made, on the clock of the ticks."""
        return self._state.at_s

    def tick(
        self, signals: Signals, diagnosis: Diagnosis, *, paused: bool, now_s: float, wall_s: float
    ) -> None:
        """Advance by what is seen now. ``paused``: somebody stopped the run, the platform itself did not."""
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

    def statistics(self) -> dict[str, float]:
        """What operators see of it; the recommendation is there only where one is made."""
        made = self.recommendation
        shown = {"scaling_steps_total": float(self._state.steps), "scaling_current": float(self._current)}
        if made is not None:
            shown |= {
                "scaling_recommended": float(made.replicas),
                "scaling_needed": float(made.needed),
            }
        return shown

    def labels(self) -> dict[str, str]:
        """Texts beside them: the mode in force, who scaled, and the sentence."""
        return {
            "scaling_mode": self.config.mode,
            "scaling_owner": self.cluster.scaled_by,
            "scaling_sentence": self.sentence(),
        }
