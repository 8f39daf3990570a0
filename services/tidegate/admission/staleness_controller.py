"""What admission changes by itself inside the run file's limits: the hard sync and the budget of best goodput.

Gathers the inputs of the two pure controllers in ``core`` and keeps their states. Both start fresh with the process: a
restart cancels a pending sync, and the budget starts at the run file's ``max_lag``.
"""

import msgspec

from tidegate.admission.observations import Observations
from tidegate.admission.state import running_of
from tidegate.catalogue import admission as statistics
from tidegate.catalogue import learner as learner_stats
from tidegate.catalogue.kinds import Counter, Gauge
from tidegate.core import goodput, hard_sync
from tidegate.core.admission import Flow
from tidegate.core.goodput import GoodputState
from tidegate.core.hard_sync import SyncState, SyncView
from tidegate.core.ids import PolicyVersion, parse_version
from tidegate.runtime.config import ResponseConfig
from tidegate.wire.stats import ServiceStats


class StalenessAction(msgspec.Struct, frozen=True):
    """The budget in force, and why admission is paused ("" while it is not)."""

    max_lag: int
    pause: str = ""


class StalenessController:
    """Advances once a tick and changes nothing in between."""

    def __init__(self, config: ResponseConfig, *, max_lag: int, batch_size: int, now_s: float) -> None:
        """``max_lag``: the upper bound of every budget. ``now_s`` is on the clock of the ticks."""
        self._config = config
        self._max_lag: int = max_lag
        self._batch_size = batch_size
        self.sync = SyncState()
        self.goodput = goodput.start(max_lag, now_s=now_s)
        # At the previous tick: the learner's count of trained trajectories, its start time, and the time of the tick.
        self._trained: tuple[float, float, float] | None = None

    def tick(self, seen: Observations, flow: Flow, *, paused: bool, now_s: float) -> None:
        """Advance both controllers by one tick. ``paused``: whether admission is, for whatever reason."""
        learner = next(iter(seen.latest("learner", now_s=now_s)), None)
        self.sync = hard_sync.advance(
            self.sync,
            SyncView(
                head=_version(learner),
                running=running_of(seen, flow, now_s=now_s),
                in_flight=flow.in_flight,
                unannounced=flow.unannounced,
                serving=tuple(seen.serving(now_s=now_s)),
                drain_asked=learner is not None
                and learner.values.get(learner_stats.RESPONSE_DRAIN, 0.0) > 0.0,
            ),
            self._config.hard_sync,
            batch_size=self._batch_size,
            now_s=now_s,
        )
        if self._config.goodput.enabled:
            measured = self._measure(learner, now_s=now_s)
            self.goodput = goodput.advance(
                self.goodput,
                # While admission is paused, throughput does not depend on the budget.
                goodput=None if paused or self.sync.pauses else measured,
                max_lag=self._max_lag,
                config=self._config.goodput,
                now_s=now_s,
            )

    def change_budget(self, max_lag: int, *, now_s: float) -> None:
        """The run file's budget changed; the search for the best one begins again at it."""
        if max_lag != self._max_lag:
            self._max_lag = max_lag
            self.goodput = goodput.start(max_lag, now_s=now_s)

    def action(self) -> StalenessAction:
        """The action in force until the next tick."""
        return StalenessAction(
            max_lag=self.goodput.lag if self._config.goodput.enabled else self._max_lag,
            pause=self.sync.reason() if self.sync.pauses else "",
        )

    def statistics(self) -> dict[Counter | Gauge, float]:
        """Statistics of both controllers."""
        state: GoodputState = self.goodput
        return {
            statistics.HARD_SYNCS: float(self.sync.completed),
            statistics.HARD_SYNCS_ABORTED: float(self.sync.aborted),
            statistics.BUDGET_MOVES: float(state.moves),
            statistics.BUDGET: float(self.action().max_lag),
            statistics.GOODPUT: state.base_goodput or 0.0,
        }

    def _measure(self, learner: ServiceStats | None, *, now_s: float) -> float | None:
        """Samples/s since the last tick times the effective sample size of the newest batch."""
        before, self._trained = self._trained, None
        if learner is None:
            return None
        trained = learner.values.get(learner_stats.TRAINED_TRAJECTORIES, 0.0)
        self._trained = (trained, learner.started_at_s, now_s)
        if before is None or before[1] != learner.started_at_s or now_s <= before[2] or trained < before[0]:
            return None
        return (trained - before[0]) / (now_s - before[2]) * learner.values.get(learner_stats.ESS, 1.0)


def _version(learner: ServiceStats | None) -> PolicyVersion | None:
    try:
        return parse_version(learner.labels[learner_stats.VERSION]) if learner is not None else None
    except (KeyError, ValueError):
        return None
