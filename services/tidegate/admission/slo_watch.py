"""Observes the objectives at each tick, reports breaches and recoveries, and keeps their state.

``core.slo`` decides; this module gathers, counts and writes. Publishing is best effort: an objective is judged whether
or not its events arrive.
"""

import msgspec

from tidegate.admission import indicators
from tidegate.admission.indicators import Counted, IndicatorState, Observation, Valued
from tidegate.admission.observations import Observations
from tidegate.admission.propagation import (
    Propagation,
    abandon,
    check_arrival,
    note,
    publication_of,
    seconds_waiting,
)
from tidegate.admission.slo_file import (
    EVENTS_FILE,
    STATE_FILE,
    SavedSlo,
    SloEvent,
    SloRecord,
    read_slos,
    restored,
    write_slos,
)
from tidegate.catalogue import admission as statistics
from tidegate.catalogue.telemetry import (
    ATTR_ENV,
    ATTR_SLO,
    ATTR_SLO_RESULT,
    METRIC_SLO_BOUND,
    METRIC_SLO_COVERAGE,
    METRIC_SLO_EVENTS,
    METRIC_SLO_TARGET,
)
from tidegate.core.balance import Diagnosis
from tidegate.core.slo import (
    CONDITIONS,
    Slo,
    SloState,
    Verdict,
    count,
    coverage,
    headline,
    observe,
    update_condition,
    verdict,
)
from tidegate.core.slo_catalogue import declared
from tidegate.runtime.json_lines_file import JsonLinesFile
from tidegate.runtime.service import ServiceContext
from tidegate.wire.stats import ServiceStats

PROPAGATION = "version_propagation_s"
# Some ten thousand events; of an objective that flaps the last ones suffice.
EVENTS_FILE_BYTES_MAX = 4 << 20
EVENTS_FILES_KEPT = 1
# A crash loses at most this much of the budgets' history.
SAVE_PERIOD_S = 10.0
# Between two ticks.
ARRIVALS_MAX = 16


class SloWatch:
    """All objectives of a run."""

    def __init__(self, context: ServiceContext) -> None:
        """Restore the saved budgets, and declare every series, so that a first breach counts as an increase."""
        settings = context.settings
        self._context = context
        self._slos = self._declared()
        self._group_size = settings.workload.num_samples if settings.workload.kind == "text" else 1
        self._path = context.data_dir / STATE_FILE
        clock = context.clock
        self._states = restored(
            read_slos(self._path), self._slos, now_s=clock.monotonic_s(), wall_s=clock.now_s()
        )
        self._events = JsonLinesFile(
            context.data_dir / EVENTS_FILE, bytes_max=EVENTS_FILE_BYTES_MAX, files_kept=EVENTS_FILES_KEPT
        )
        self._memory = IndicatorState()
        self._propagation = Propagation()
        self._arrived_s: list[float] = []
        self._saved_at_s = clock.monotonic_s()
        self._report_declared()

    def declare(self) -> None:
        """The run file's objectives, or the budget that they follow, changed.

        An objective that is declared otherwise begins again; the others keep their error budgets, as at a restart
        (``slo_file.restored``).
        """
        before, self._slos = self._slos, self._declared()
        self._states = {
            name: self._states[name] if before.get(name) == slo else SloState()
            for name, slo in self._slos.items()
        }
        self._report_declared()

    def _declared(self) -> dict[str, Slo]:
        live = self._context.live
        return declared(
            live.sections.slos, max_lag=live.staleness.max_lag, max_age_s=live.staleness.max_age_s
        )

    def _report_declared(self) -> None:
        env, telemetry = self._context.settings.workload.label, self._context.telemetry
        self._labels = {name: {ATTR_ENV: env, ATTR_SLO: name} for name in self._slos}
        for name, slo in self._slos.items():
            self._count(name, good=0.0, bad=0.0)
            telemetry.observe(METRIC_SLO_TARGET, slo.target, self._labels[name])
            telemetry.observe(METRIC_SLO_BOUND, slo.bound, self._labels[name])

    def receive(self, stats: ServiceStats, seen: Observations, *, now_s: float) -> None:
        """Handle one report, already part of ``seen``: propagation is followed per report, not per tick."""
        if PROPAGATION not in self._slos:
            return
        if stats.service == "learner":
            self._propagation = note(self._propagation, publication_of(stats, received_at_s=now_s))
        elif stats.service == "actor" and self._propagation.followed is not None:
            self._propagation, took_s = check_arrival(
                self._propagation,
                seen.serving(now_s=now_s),
                num_actors=seen.num_alive("actor", now_s=now_s),
                now_s=now_s,
            )
            if took_s is not None and len(self._arrived_s) < ARRIVALS_MAX:
                self._arrived_s.append(took_s)

    async def tick(
        self, seen: Observations, diagnosis: Diagnosis, *, paused: bool, declared_pause: bool, now_s: float
    ) -> None:
        """Observe and judge every objective, and publish the changes.

        ``paused``: admission is paused; ``declared_pause``: an operator paused the run.
        """
        if declared_pause:
            self._propagation = abandon(self._propagation)
        found, self._memory = indicators.observe_indicators(
            seen,
            self._memory,
            self._slos,
            group_size=self._group_size,
            paused=paused,
            declared_pause=declared_pause,
            now_s=now_s,
        )
        for name, observation in found.items():
            self._observe(name, observation, now_s=now_s)
        if PROPAGATION in self._slos:
            self._observe_propagation(now_s=now_s)
        changes = [
            event for name in self._slos if (event := self._judge(name, found, diagnosis, now_s=now_s))
        ]
        for event in changes:
            await self._publish_event(event)
        self._export(now_s=now_s)
        if changes or now_s - self._saved_at_s >= SAVE_PERIOD_S:
            self._save(now_s=now_s)

    def verdicts(self, *, now_s: float) -> list[Verdict]:
        """The verdict on each objective, in the order of the catalogue."""
        return [verdict(slo, self._states[name], now_s=now_s) for name, slo in self._slos.items()]

    def close(self) -> None:
        """Save the budgets and close the files."""
        self._save(now_s=self._context.clock.monotonic_s())
        self._events.close()

    def _observe(self, name: str, observation: Observation, *, now_s: float) -> None:
        slo, state = self._slos[name], self._states[name]
        match observation:
            case Valued(value=value):
                self._states[name] = observe(slo, state, value, at_s=now_s)
                if value is not None:
                    self._count(name, good=float(slo.holds(value)), bad=float(not slo.holds(value)))
            case Counted(good=good, bad=bad, value=value):
                self._states[name] = count(slo, state, good=good, bad=bad, value=value, at_s=now_s)
                self._count(name, good=good, bad=bad)

    def _observe_propagation(self, *, now_s: float) -> None:
        """Observe each version that arrived; an overdue one counts as bad at every tick, not only once it arrives."""
        waiting_s = seconds_waiting(self._propagation, now_s=now_s)
        values: list[float | None] = [*self._arrived_s]
        self._arrived_s.clear()
        if waiting_s is not None and not self._slos[PROPAGATION].holds(waiting_s):
            values.append(waiting_s)
        for value in values or [None]:
            self._observe(PROPAGATION, Valued(value), now_s=now_s)

    def _judge(
        self, name: str, found: dict[str, Observation], diagnosis: Diagnosis, *, now_s: float
    ) -> SloEvent | None:
        observation = found.get(name)
        detail = observation.detail if isinstance(observation, Valued) else ""
        attributed = f"{diagnosis.bottleneck}: {diagnosis.sentence}"
        self._states[name], change = update_condition(
            self._slos[name],
            self._states[name],
            now_s=now_s,
            cause=f"{detail}; {attributed}" if detail else attributed,
            wall_s=self._context.clock.now_s(),
        )
        if change is None or change.kind == "data":
            return None  # the first observation is no event
        return SloEvent(self._context.clock.now_s(), change.kind, change)

    async def _publish_event(self, event: SloEvent) -> None:
        context = self._context
        try:
            self._events.append(event.line())
        except OSError as error:
            self._context.log.warning("slo_event_not_written", error=str(error))
        fields = event.fields()
        log = context.log.warning if event.event in ("breach", "no_data") else context.log.info
        log("slo_changed", **{name: value for name, value in fields.items() if name != "event"})
        context.stats.add(statistics.SLO_EVENTS)
        # Without an acknowledgement: a tick must not wait for an unreachable broker. The file has every event.
        await context.bus.publish_core(
            context.topology.event("slo"), msgspec.json.encode({"kind": "slo", **fields})
        )

    def _export(self, *, now_s: float) -> None:
        verdicts = self.verdicts(now_s=now_s)
        if self._context.telemetry.enabled:
            for name, slo in self._slos.items():
                seen = coverage(slo, self._states[name], now_s=now_s)
                self._context.telemetry.observe(METRIC_SLO_COVERAGE, seen, self._labels[name])
        for condition in CONDITIONS:
            number = sum(each.condition == condition for each in verdicts)
            self._context.stats.set(statistics.SLOS_IN.member(condition), float(number))
        self._context.stats.label(statistics.SLOS, headline(verdicts))

    def _save(self, *, now_s: float) -> None:
        self._saved_at_s = now_s
        kept = {name: SavedSlo(slo, self._states[name]) for name, slo in self._slos.items()}
        try:
            write_slos(self._path, SloRecord(self._context.clock.now_s(), now_s, kept))
        except OSError as error:
            self._context.log.warning("slos_not_saved", error=str(error))

    def _count(self, name: str, *, good: float, bad: float) -> None:
        labels = self._labels[name]
        self._context.telemetry.count(METRIC_SLO_EVENTS, good, {**labels, ATTR_SLO_RESULT: "good"})
        self._context.telemetry.count(METRIC_SLO_EVENTS, bad, {**labels, ATTR_SLO_RESULT: "bad"})
