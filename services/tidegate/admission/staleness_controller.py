"""What admission changes by itself inside of the run file's limits: the hard sync and the budget of best goodput.

Gathers what the two pure controllers of ``core`` look at, and keeps their states. Both begin anew with the process: a
sync is never owed to a former life, and the budget starts as wide as the run file has it.
"""

import msgspec

from tidegate.admission.observations import Observations
from tidegate.core import goodput, hard_sync
from tidegate.core.admission import Flow
from tidegate.core.goodput import GoodputState
from tidegate.core.hard_sync import SyncState, SyncView
from tidegate.core.ids import PolicyVersion, parse_version
from tidegate.runtime.config import ResponseConfig
from tidegate.wire.stats import ServiceStats


class StalenessAction(msgspec.Struct, frozen=True):
    """What holds beside the run file: the budget in force, and why admission is stopped ("" when it is not)."""

    max_lag: int
    pause: str = ""


class StalenessController:
    """One tick a period; between two of them nothing changes."""

    def __init__(self, config: ResponseConfig, *, max_lag: int, batch_size: int, now_s: float) -> None:
        """``max_lag``: the bound that nothing here ever leaves. ``now_s`` on the clock of the ticks."""
        self._config = config
        self._max_lag = max_lag
        self._batch_size = batch_size
        self.sync = SyncState()
        self.goodput = goodput.start(max_lag, now_s=now_s)
        # The learner's count of trained trajectories at the tick before, its life, and when that was.
        self._trained: tuple[float, float, float] | None = None

    def tick(self, seen: Observations, flow: Flow, *, now_s: float) -> None:
        """Advance both controllers by what is seen now."""
        learner = next(iter(seen.latest("learner", now_s=now_s)), None)
        self.sync = hard_sync.advance(
            self.sync,
            SyncView(
                head=_version(learner),
                running=flow.running,
                in_flight=flow.in_flight,
                unpublished=flow.unpublished,
                serving=tuple(seen.serving(now_s=now_s)),
                drain_asked=learner is not None and learner.values.get("response_drain", 0.0) > 0.0,
            ),
            self._config.hard_sync,
            batch_size=self._batch_size,
            now_s=now_s,
        )
        if self._config.goodput.enabled:
            measured = self._measure(learner, now_s=now_s)
            self.goodput = goodput.advance(
                self.goodput,
                # While admission is stopped throughput says nothing of the budget.
                goodput=None if self.sync.pauses else measured,
                max_lag=self._max_lag,
                config=self._config.goodput,
                now_s=now_s,
            )

    def action(self) -> StalenessAction:
        """What holds until the next tick."""
        return StalenessAction(
            max_lag=self.goodput.lag if self._config.goodput.enabled else self._max_lag,
            pause=self.sync.reason() if self.sync.pauses else "",
        )

    def statistics(self) -> dict[str, float]:
        """What operators see of it."""
        state: GoodputState = self.goodput
        return {
            "hard_syncs_total": float(self.sync.completed),
            "hard_syncs_given_up_total": float(self.sync.given_up),
            "budget_moves_total": float(state.moves),
            "budget": float(self.action().max_lag),
            "goodput": state.base_goodput or 0.0,
        }

    def _measure(self, learner: ServiceStats | None, *, now_s: float) -> float | None:
        """Samples/s since the last tick times the effective sample size of the newest batch."""
        before, self._trained = self._trained, None
        if learner is None:
            return None
        trained = learner.values.get("trained_trajectories_total", 0.0)
        self._trained = (trained, learner.started_at_s, now_s)
        if before is None or before[1] != learner.started_at_s or now_s <= before[2] or trained < before[0]:
            return None
        return (trained - before[0]) / (now_s - before[2]) * learner.values.get("ess", 1.0)


def _version(learner: ServiceStats | None) -> PolicyVersion | None:
    try:
        return parse_version(learner.labels["version"]) if learner is not None else None
    except (KeyError, ValueError):
        return None
