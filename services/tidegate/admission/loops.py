"""The loops of admission.

``observe``: consumes statistics; waits for nothing, keeps the last window of each instance.
``tick``: once a period gathers one snapshot, decides, and acts: publishes limits, sets the bound on rollouts in
flight, judges the objectives, writes a sample and the diagnosis. Level-triggered: a failed or missed action is repeated
at the next tick.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tidegate.admission.actor_problems import ActorProblems
from tidegate.admission.backup_reports import report_backups
from tidegate.admission.batch_refusals import BatchRefusals
from tidegate.admission.completion import RunCompletion
from tidegate.admission.config import AdmissionConfig
from tidegate.admission.curriculum_problem import CurriculumProblem
from tidegate.admission.kept_files import KeptFiles
from tidegate.admission.learner_starts import starts_sentence
from tidegate.admission.limits_subject import LimitsSubject
from tidegate.admission.loop_stalls import LoopStalls
from tidegate.admission.observations import SILENT_AFTER_S, Observations
from tidegate.admission.samples import SystemSample
from tidegate.admission.scaling import Scaling
from tidegate.admission.slo_watch import SloWatch
from tidegate.admission.staleness_controller import StalenessController
from tidegate.admission.state import Decision, StreamBacklog, decide, flow_of, mean_backlog, signals_of
from tidegate.admission.state_file import StateFile
from tidegate.admission.verifier_problems import VerifierProblems
from tidegate.catalogue import admission as statistics
from tidegate.catalogue import process
from tidegate.catalogue import replication as replication_stats
from tidegate.catalogue import trajectory_store as store_stats
from tidegate.core.admission import RUN_ENDS, Flow, Limits, capacity
from tidegate.core.balance import Diagnosis, Signals, diagnose
from tidegate.core.errors import RecordError, TidegateError
from tidegate.core.pauses import Pause, declared_pause, explanation, request_pause, way_out
from tidegate.core.slo import Verdict
from tidegate.runtime.disk import disk_problem
from tidegate.runtime.json_lines_file import JsonLinesFile
from tidegate.runtime.races import is_set_within
from tidegate.runtime.service import ServiceContext
from tidegate.runtime.stats_reports import follow_stats
from tidegate.wire.stats import ServiceStats
from tidegate.wire.subjects import POOL

# They judge staleness, each by the budget that it has taken over from the run file.
JUDGES = ("trajectory_store", "learner")


class Admission:
    """State shared by the loops and the servicer: the observations, the pause, and the limits in force."""

    def __init__(
        self,
        context: ServiceContext,
        config: AdmissionConfig,
        *,
        run_file: Limits,
        group_size: int,
        pause_file: StateFile[Pause],
        kept: KeptFiles,
        samples: JsonLinesFile,
        slos: SloWatch,
        staleness: StalenessController,
        scaling: Scaling,
        completion: RunCompletion,
        subject: LimitsSubject,
    ) -> None:
        """``run_file``: the configured limits, the widest that are ever published. ``subject``: taken over already."""
        self.context = context
        self._config = config
        self._run_file = run_file
        self._group_size = group_size
        self._pause_file = pause_file
        self._kept = kept
        self._samples = samples
        self._slos = slos
        self._staleness = staleness
        self.scaling = scaling
        self.completion = completion
        self._subject = subject
        self._pause = pause_file.read()
        self._seen = Observations(window_s=config.window_s)
        self._problems = ActorProblems()
        self._verifiers = VerifierProblems()
        self._curriculum = CurriculumProblem()
        self._batch_refusals = BatchRefusals()
        self._loop_stalls = LoopStalls()
        # One sample for each tick of the window.
        self._backlogs: deque[StreamBacklog] = deque(maxlen=max(1, round(config.window_s / config.tick_s)))
        # A decision of before a pause must not arrive behind the pause: one at a time, each what is in force then.
        self._publishing = asyncio.Lock()
        self._published: Limits | None = None
        self._published_at_s = 0.0
        self._max_ack_pending = 0
        self._woken = asyncio.Event()

    async def observe(self) -> None:
        """Receive every service's statistics until draining."""
        await follow_stats(
            self.context.bus, self.context.topology, self._receive, on_refused=self._count_refused
        )
        await self.context.drain.wait()
        self._woken.set()

    async def tick(self) -> None:
        """Observe, decide and act once a period, and immediately on an operator's request."""
        while not self.context.drain.requested:
            self._woken.clear()
            await self._sample_streams()
            flow = self.flow()
            paused = self.decision().limits.paused
            self._staleness.tick(self._seen, flow, paused=paused, now_s=self._now_s())
            await self.completion.tick(
                self._seen, flow, now_s=self._now_s(), wall_s=self.context.clock.now_s()
            )
            decision = self.decision()
            try:
                await self._act(decision)
            except TidegateError as error:
                if not error.retryable:
                    raise
                self.context.stats.add(statistics.PUBLISH_FAILURES)
                self.context.log.warning("limits_not_published", error=str(error))
            await self._record(decision.limits, flow)
            await self._kept.publish()
            await is_set_within(self._woken, timeout_s=self._config.tick_s)

    def decision(self) -> Decision:
        """The decision in force now."""
        resident = self._seen.latest("trajectory_store", now_s=self._now_s())
        action, overrides = self._staleness.action(), self.scaling.cluster.overrides
        asked = overrides.max_lag
        return decide(
            self._run_file,
            self._pause,
            resident_bytes=sum(stats.values.get(store_stats.RESIDENT_BYTES, 0.0) for stats in resident),
            resident_bytes_high=self._config.resident_bytes_high,
            group_size=self._group_size,
            budget=min([action.max_lag, *self._taken_over(), *(() if asked is None else (asked,))]),
            hold=overrides.pause or self.completion.state.reason() or action.pause,
        )

    def declared_pause(self) -> str:
        """Why an operator paused the run, since when and by whom; empty without a declared pause."""
        cluster = self.scaling.cluster
        complete = self.completion.state.reason()
        return declared_pause(self._pause, others=(cluster.overrides.pause, complete, cluster.zero))

    def _taken_over(self) -> list[int]:
        """The budgets of the services that judge: more than the tightest admits would be dropped as stale."""
        return [
            int(stats.values[process.BUDGET_MAX_LAG])
            for service in JUDGES
            for stats in self.reports(service)
            if process.BUDGET_MAX_LAG in stats.values
        ]

    def change_run_file(self, limits: Limits) -> None:
        """The run file's limits changed: what is published from now on is inside the new ones."""
        self._run_file = limits
        self._staleness.change_budget(limits.max_lag, now_s=self._now_s())
        self._slos.declare()
        self._woken.set()

    def flow(self) -> Flow:
        """The work in flight, as the task queue reported it last."""
        return flow_of(self._seen, now_s=self._now_s())

    def diagnosis(self) -> tuple[Diagnosis, Signals]:
        """The bottleneck of the last window, and the signals that it is attributed from."""
        return self._diagnose(self.decision().limits)

    def _diagnose(self, limits: Limits) -> tuple[Diagnosis, Signals]:
        signals = signals_of(
            self._seen,
            limits,
            mean_backlog(self._backlogs),
            group_size=self._group_size,
            now_s=self._now_s(),
        )
        now_s = self._now_s()
        signals = msgspec.structs.replace(
            signals,
            stuck_actors=self._problems.num_stuck(now_s=now_s, silent_after_s=SILENT_AFTER_S),
            actor_problem=self._problems.newest(now_s=now_s),
            batches_refused=self._batch_refusals.blocking(),
        )
        declared = self.declared_pause()
        if declared and (not limits.paused or self.completion.state.target):
            # By 0 actors, while admission itself goes on; or complete, when no learner need report.
            return Diagnosis("idle", explanation(declared), way_out(declared)), signals
        return diagnose(signals, self.context.settings.workloads), signals

    def problems(self) -> list[str]:
        """What is wrong beside the bottleneck, the disk first and the problems of actors last."""
        now_s = self._now_s()
        known = (
            disk_problem(self.context.data_dir),
            *(
                starts_sentence(stats.labels.get(store_stats.HEAD, ""))
                for stats in self.reports("trajectory_store")
            ),
            *self._replica_problems(),
            self._batch_refusals.sentence(now_s=now_s),
            self.verifier_problem(),
            self.curriculum_problem(),
            self._loop_stalls.sentence(),
        )
        return [*filter(None, known), *self._problems.sentences(self._seen.totals("actor"), now_s=now_s)]

    def _replica_problems(self) -> list[str]:
        found = (
            (service, stats.labels.get(replication_stats.REPLICA_PROBLEM, ""))
            for service in ("trajectory_store", "task_queue")
            for stats in self.reports(service)
        )
        return [f"{service} holds its answers back: {problem}" for service, problem in found if problem]

    def curriculum_problem(self) -> str:
        """How often a curriculum of one's own failed, and why; empty without one."""
        return self._curriculum.sentence(self._seen.totals("task_queue"))

    def verifier_problem(self) -> str:
        """How many verdicts of verifiers failed, and why; empty without one."""
        return self._verifiers.sentence(self._seen.totals("environment"))

    def reports(self, service: str) -> list[ServiceStats]:
        """The newest report of each live instance of a service."""
        return self._seen.latest(service, now_s=self._now_s())

    def slos(self) -> list[Verdict]:
        """The verdict on each objective of the run."""
        return self._slos.verdicts(now_s=self._now_s())

    async def set_paused(self, *, paused: bool, reason: str, by: str) -> None:
        """Set or end a pause; publishes the limits before it returns, or at the next tick when that fails.

        Raises:
            SupersededError: another admission leads.
            UnavailableError: the broker is unreachable; the pause is in force all the same.
        """
        now_s = self.context.clock.now_s()
        pause = request_pause(self._pause, paused=paused, reason=reason, by=by, now_s=now_s)
        self._pause = pause
        try:
            # It survives every restart but the end of the run: a run that is started again admits work.
            if pause.paused and pause.reason != RUN_ENDS:
                self._pause_file.write(pause)
            else:
                self._pause_file.clear()
        except OSError as error:  # it holds until a restart, which is all that a full disk allows
            self.context.log.warning("pause_not_saved", error=str(error))
        self.context.log.info("pause_set", paused=pause.paused, reason=pause.reason, by=by)
        self._woken.set()
        # Before the limits: who takes over reads the limits first, and so knows each pause that was acknowledged.
        await self._kept.publish()
        await self._publish()
        await self._event("pause", {"paused": pause.paused, "reason": pause.reason, "by": by})

    async def _act(self, decision: Decision) -> None:
        since_s = self.context.clock.monotonic_s() - self._published_at_s
        if decision.limits != self._published or since_s >= self._config.limits_refresh_s:
            await self._publish()
            # As often as the limits: a recreated consumer has the run file's value.
            self._max_ack_pending = 0
        if decision.max_ack_pending != self._max_ack_pending:
            await self._bound_rollouts(decision.max_ack_pending)

    async def _publish(self) -> None:
        context = self.context
        async with self._publishing:
            limits = self.decision().limits
            await self._subject.publish(msgspec.json.encode(limits))
            changed = limits != self._published
            self._published, self._published_at_s = limits, context.clock.monotonic_s()
        if changed:
            fields = msgspec.structs.asdict(limits)
            context.log.info("limits_published", **fields)
            await self._event("limits", fields)

    async def _event(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Publish an event for operators, or count it as lost."""
        try:
            await self.context.bus.event(kind, fields)
        except TidegateError as error:
            if not error.retryable:
                raise
            self.context.stats.add(statistics.EVENTS_LOST)

    async def _bound_rollouts(self, max_ack_pending: int) -> None:
        context = self.context
        try:
            await context.bus.set_max_ack_pending(context.topology.task_durable(POOL), max_ack_pending)
        except TidegateError as error:
            if not error.retryable:
                raise
            # No actor has started yet, so there is no consumer to bound: the next tick retries.
            context.stats.add(statistics.BOUNDS_NOT_SET)
            return
        self._max_ack_pending = max_ack_pending

    async def _sample_streams(self) -> None:
        """Sample the backlog of each stage; the last sample stays in force while the broker does not answer."""
        bus, topology = self.context.bus, self.context.topology
        try:
            tasks = await bus.stream_state(topology.stream("TASKS"))
            rollouts = await bus.stream_state(topology.stream("ROLLOUTS"))
            trajectories = await bus.stream_state(topology.stream("TRAJECTORIES"))
        except TidegateError as error:
            if not error.retryable:
                raise
            return
        self._backlogs.append(StreamBacklog(tasks.messages, rollouts.messages, trajectories.messages))

    async def _record(self, limits: Limits, flow: Flow) -> None:
        """Record the objectives, this tick's sample and statistics, and the diagnosis as labels."""
        context = self.context
        diagnosis, signals = self._diagnose(limits)
        stats = context.stats
        stats.add(statistics.DECISIONS)
        stats.set(statistics.MAX_RUNNING, limits.max_running)
        stats.set(statistics.MAX_LAG, limits.max_lag)
        stats.set(statistics.CAPACITY, capacity(limits, flow))
        declared = self.declared_pause()
        stats.set(statistics.PAUSED, float(limits.paused or bool(declared)))
        stats.label(statistics.PAUSE, declared)
        for statistic, value in self._staleness.statistics().items():
            stats.set(statistic, value)
        backlog = self._backlogs[-1] if self._backlogs else StreamBacklog()
        stats.set(statistics.TASKS_WAITING, backlog.tasks)
        report_backups(Path(context.settings.data_dir), stats, now_s=context.clock.now_s())
        self._scale(signals, diagnosis)
        stats.label(statistics.BOTTLENECK, diagnosis.bottleneck)
        stats.label(statistics.BOTTLENECK_SENTENCE, diagnosis.sentence)
        stats.label(statistics.BOTTLENECK_FIX, diagnosis.fix)
        problems = self.problems()
        stats.label(statistics.ACTOR_PROBLEMS, "; ".join(problems[:2]))
        stats.label(statistics.VERIFIER_PROBLEM, self.verifier_problem())
        stats.label(statistics.CURRICULUM_PROBLEM, self.curriculum_problem())
        await self._slos.tick(
            self._seen, diagnosis, paused=limits.paused, declared_pause=bool(declared), now_s=self._now_s()
        )
        values = self._seen.merged(now_s=self._now_s())
        values |= {f"stream.{name}": float(count) for name, count in msgspec.structs.asdict(backlog).items()}
        sample = SystemSample(context.clock.now_s(), diagnosis.bottleneck, signals, values, problems)
        try:
            self._samples.append(sample.line())
        except OSError as error:  # limits matter more than their plot
            stats.add(statistics.SAMPLES_LOST)
            context.log.warning("sample_not_written", error=str(error))

    def _scale(self, signals: Signals, diagnosis: Diagnosis) -> None:
        """Update the recommended number of actors; the cluster loop, KEDA or an operator acts on it."""
        scaling, stats = self.scaling, self.context.stats
        scaling.tick(
            signals,
            diagnosis,
            paused=self._pause.paused
            or bool(scaling.cluster.overrides.pause)
            or bool(self.completion.state.target),
            now_s=self._now_s(),
            wall_s=self.context.clock.now_s(),
        )
        for statistic, value in scaling.statistics().items():
            stats.set(statistic, value)
        for text, value in scaling.labels().items():
            stats.label(text, value)

    def _count_refused(self, _error: RecordError) -> None:
        self.context.stats.add(statistics.STATS_REFUSED)

    def _receive(self, stats: ServiceStats) -> None:
        now_s = self._now_s()
        self._seen.put(stats, now_s=now_s)
        self._problems.receive(stats, now_s=now_s)
        self._verifiers.receive(stats)
        self._curriculum.receive(stats)
        self._batch_refusals.receive(stats, now_s=now_s)
        self._loop_stalls.receive(stats)
        self._slos.receive(stats, self._seen, now_s=now_s)

    def _now_s(self) -> float:
        return self.context.clock.monotonic_s()

    async def close(self) -> None:
        """Save the objectives' budgets and close the files."""
        await self.completion.close()
        self._samples.close()
        self._slos.close()
