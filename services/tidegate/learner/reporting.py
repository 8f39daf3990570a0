"""Reports each step: statistics, a line in ``steps.jsonl``, spans and metrics.

Spans and metrics cost nothing while telemetry is off. Each trajectory's consumption is a span in its own trace; the
step is a trace of its own, linked to the traces of its trajectories.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from tidegate.catalogue import learner as statistics
from tidegate.catalogue.telemetry import (
    ATTR_AGE,
    ATTR_BATCH_COUNT,
    ATTR_CAUSE,
    ATTR_ENV,
    ATTR_LAG,
    ATTR_LAG_MAX,
    ATTR_LOSS,
    ATTR_PHASE,
    ATTR_RESPONSE_TIER,
    ATTR_SLO_VIOLATION,
    ATTR_STAGE,
    ATTR_TRAJECTORY,
    ATTR_VERSION_END,
    ATTR_VERSION_LEARNER,
    ATTR_VERSION_START,
    METRIC_AGE,
    METRIC_CONSUMED,
    METRIC_LAG,
    METRIC_LAG_WINDOW_MAX,
    METRIC_LEARNER_WAIT,
    METRIC_PROVENANCE_INCOMPLETE,
    METRIC_REWARD,
    METRIC_STEP_DURATION,
    METRIC_VERSION_SPAN,
    SPAN_CONSUME,
    SPAN_GENERATE,
    SPAN_LEARNER_STEP,
    SPAN_TASK_LEASE,
)
from tidegate.core.ids import PolicyVersion
from tidegate.core.records import Trajectory
from tidegate.core.response import Response
from tidegate.core.slo import Slo
from tidegate.core.slo_catalogue import declared
from tidegate.core.staleness import Fresh
from tidegate.learner.committing import CommitTimes
from tidegate.learner.environment_figures import by_environment
from tidegate.learner.optim.token_gaps import TokenGaps
from tidegate.learner.state import JudgedTrajectory, LagWindow, OutdatedTrajectory, TrainingProgress
from tidegate.learner.steps_log import OWN_FIELDS, StepLine, StepsLog
from tidegate.learner.token_gaps_log import TokenGapsLog
from tidegate.learner.training_batch import TrainingBatch
from tidegate.runtime.service import ServiceContext
from tidegate.runtime.telemetry import is_sampled

# Without these a trajectory's provenance is incomplete and cannot be repaired (I5).
STAGES_EXPECTED = (SPAN_TASK_LEASE, SPAN_GENERATE)
# Objectives that are judged per trajectory; admission sums the counts.
LAG_OBJECTIVES = ("lag_p95", "lag_max")
AGE_OBJECTIVES = ("age_p95",)
# An update may take three times the longest one before it. A process' first one compiles kernels, and has no measure.
PATIENCE_UPDATES = 3.0
FIRST_UPDATE_S_MAX = 3600.0
WaitCause: TypeAlias = Literal["empty", "stale", "weights"]


class Step(msgspec.Struct, frozen=True, eq=False):
    """One update to report. Times in seconds since the epoch, durations in seconds.

    ``gaps``: of its completions that are furthest off. ``response``: the graded response to its lag.
    """

    progress: TrainingProgress
    batch: TrainingBatch
    gaps: list[TokenGaps]
    metrics: Mapping[str, float]
    response: Response
    started_at_s: float
    finished_at_s: float
    wait_s: float
    trace_parent: str


class StepReporter:
    """Reports steps in their order."""

    def __init__(self, context: ServiceContext, log: StepsLog, gaps_log: TokenGapsLog) -> None:
        """Declares every objective that is judged here, so that a first violation counts as an increase."""
        self._context = context
        self._log = log
        self._gaps_log = gaps_log
        self._lags = LagWindow()
        workload = context.settings.workload
        self._labels = {ATTR_ENV: workload.label}
        self._envs = tuple(workload.mixture)
        self.newest: dict[str, float] = {}
        self._longest_s = 0.0
        context.stats.set(statistics.UPDATE_DUE_AT_S, 0.0)
        self._declare_objectives()
        # The objectives in force when the newest batch was judged: a change during its update is of the next one.
        self._judged_by = self._slos
        context.live.on_change(self._declare_objectives)
        for stage in STAGES_EXPECTED:
            context.telemetry.count(METRIC_PROVENANCE_INCOMPLETE, 0, {**self._labels, ATTR_STAGE: stage})
        for cause in ("empty", "stale", "weights"):
            context.telemetry.count(METRIC_LEARNER_WAIT, 0, {**self._labels, ATTR_CAUSE: cause})

    def _declare_objectives(self) -> None:
        live = self._context.live
        slos = declared(
            live.sections.slos, max_lag=live.staleness.max_lag, max_age_s=live.staleness.max_age_s
        )
        self._slos = [slo for name, slo in slos.items() if name in (*LAG_OBJECTIVES, *AGE_OBJECTIVES)]
        for slo in self._slos:
            self._count_objective(slo, [])

    def progress(self, progress: TrainingProgress) -> None:
        """Report the progress of training, also before the first step of this process."""
        stats = self._context.stats
        stats.set(statistics.VERSION_STEP, progress.version.step)
        stats.label(statistics.VERSION, str(progress.version))
        stats.set(statistics.TRAINED_TRAJECTORIES, progress.consumed_trajectories)
        stats.set(statistics.TRAINED_STEPS, progress.consumed_steps)
        stats.set(statistics.EPISODES, progress.episodes.total)
        stats.set(statistics.SAMPLED_UNITS, progress.sampled_units)
        mean_return = progress.episodes.mean()
        if mean_return is not None:
            stats.set(statistics.MEAN_RETURN, mean_return)

    def published(self, version: PolicyVersion) -> None:
        """Report that a version is published. Admission measures from here how long actors take to serve it."""
        self._context.stats.label(statistics.PUBLISHED_VERSION, str(version))
        self._context.stats.set(statistics.PUBLISHED_AT_S, self._context.clock.now_s())

    def forget(self) -> None:
        """Forget what was measured of the newest updates: they are on a branch that a rollback abandoned."""
        self._lags = LagWindow()
        self.newest.clear()
        for statistic in (statistics.MEAN_RETURN, statistics.MEAN_REWARD):
            self._context.stats.clear(statistic)

    def waited(self, seconds: float, *, cause: WaitCause = "empty") -> None:
        """Report idle seconds: no batch came, it was too old, or the previous version was not acknowledged."""
        if cause != "weights":
            self._context.stats.add(statistics.WAIT_BATCH_S, seconds)
        self._context.telemetry.count(METRIC_LEARNER_WAIT, seconds, {**self._labels, ATTR_CAUSE: cause})

    def outdated(self, item: OutdatedTrajectory) -> None:
        """Report a leased batch that left the budget before the loss and was released."""
        self._context.log.warning(
            "batch_outdated", trajectory=item.trajectory_id, reason=item.reason, detail=item.detail
        )
        self._context.stats.add(statistics.OUTDATED_BATCHES)

    @contextlib.contextmanager
    def updating(self) -> Generator[None]:
        """Report that an update is in progress, and by when it should end, so that no alert pages before."""
        stats, clock = self._context.stats, self._context.clock
        self._judged_by = self._slos
        started_s = clock.monotonic_s()
        patience_s = PATIENCE_UPDATES * self._longest_s if self._longest_s else FIRST_UPDATE_S_MAX
        stats.set(statistics.UPDATE_DUE_AT_S, clock.now_s() + patience_s)
        try:
            yield
        finally:
            stats.set(statistics.UPDATE_DUE_AT_S, 0.0)
            self._longest_s = max(self._longest_s, clock.monotonic_s() - started_s)

    def trained(self, step: Step) -> None:
        """Report an update that is not acknowledged yet."""
        stats = self._context.stats
        stats.add(statistics.BUSY_S, step.finished_at_s - step.started_at_s)
        lags = step.batch.lags
        self._lags.add(lags)
        for statistic, value in (
            (statistics.LAG_LAST_MAX, max(lags)),
            (statistics.LAG_MEAN, self._lags.mean()),
            (statistics.LAG_P95, self._lags.quantile(0.95)),
            (statistics.AGE_LAST_P95_S, _p95([item.verdict.age_s for item in step.batch.judged])),
            *((statistics.diagnostic(name), value) for name, value in step.metrics.items()),
            (statistics.RESPONSE_TIER, float(step.response.tier)),
            (statistics.RESPONSE_DRAIN, float(step.response.drain)),
        ):
            stats.set(statistic, value)
            self.newest[statistic] = value
        mean_reward = _mean_reward(step.batch.trajectories)
        if mean_reward is not None:
            stats.set(statistics.MEAN_REWARD, mean_reward)
            self.newest["mean_reward"] = mean_reward
        mean_return = step.progress.episodes.mean()
        if mean_return is not None:
            self.newest["mean_return"] = mean_return
        verdicts = [item.verdict for item in step.batch.judged]
        for slo in self._judged_by:
            self._count_objective(slo, verdicts)
        self.progress(step.progress)
        if self._context.telemetry.enabled:
            self._trace(step, lags)

    def committed(self, step: Step, times: CommitTimes) -> None:
        """Report a committed and published update."""
        stats = self._context.stats
        stats.add(statistics.COMMIT_S, times.commit_s)
        stats.add(statistics.PUBLISH_S, times.publish_s)
        self.published(step.progress.version)
        judged = step.batch.judged
        lags = step.batch.lags
        metrics = step.metrics
        line = StepLine(
            step=step.progress.version.step,
            lineage=step.progress.version.lineage,
            at_s=step.finished_at_s,
            samples=len(lags),
            env_steps=step.progress.consumed_steps,
            lag_mean=sum(lags) / len(lags),
            lag_max=max(lags),
            by_lag=dict(sorted(Counter(lags).items())) if step.batch.trajectories else {},
            age_mean_s=sum(item.verdict.age_s for item in judged) / len(judged),
            mean_return=step.progress.episodes.mean(),
            mean_reward=_mean_reward(step.batch.trajectories),
            loss=metrics.get("loss"),
            ess=metrics.get("ess"),
            clipped_fraction=metrics.get("clipped_fraction"),
            wait_s=step.wait_s,
            train_s=step.finished_at_s - step.started_at_s,
            publish_s=times.publish_s,
            response=step.response.figures(),
            updates=int(metrics.get("updates", 1)),
            metrics={
                **{name: value for name, value in metrics.items() if name not in OWN_FIELDS},
                **by_environment(step.batch.trajectories, self._envs),
            },
        )
        try:
            self._log.append(line)
        except OSError as error:  # a full disk must not end training; reports lack the step
            stats.add(statistics.STEP_LINES_LOST)
            self._context.log.warning("step_not_written", error=str(error))
        gaps = [(step.batch.trajectories[each.sample].trajectory_id, each.gaps_T) for each in step.gaps]
        try:
            self._gaps_log.append(step.progress.version, gaps)
        except OSError as error:  # the page lacks them
            self._context.log.warning("token_gaps_not_written", error=str(error))

    def _trace(self, step: Step, lags: Sequence[int]) -> None:
        telemetry = self._context.telemetry
        labels = self._labels
        if not step.batch.trajectories:
            for item in step.batch.judged:
                self._observe(item.verdict)
        for trajectory, item in zip(step.batch.trajectories, step.batch.judged, strict=False):
            verdict = item.verdict
            violates = any(not _holds(slo, verdict) for slo in self._slos)
            span = ""
            if violates or is_sampled(trajectory.trace_parent):
                span = self._emit_consume(step, trajectory, item, violates=violates)
            self._observe(verdict, trace_parent=span)
            if trajectory.reward is not None:
                of_env = {ATTR_ENV: trajectory.env_id} if self._envs else labels
                telemetry.observe(METRIC_REWARD, trajectory.reward, of_env, trace_parent=span)
            known = [stage.stage for stage in trajectory.stages]
            for stage in STAGES_EXPECTED:
                if stage not in known:
                    telemetry.count(METRIC_PROVENANCE_INCOMPLETE, 1, {**labels, ATTR_STAGE: stage})
        telemetry.count(METRIC_CONSUMED, step.batch.num_consumed, labels)
        telemetry.observe(METRIC_LAG_WINDOW_MAX, max(lags), labels)
        took_s = step.finished_at_s - step.started_at_s
        telemetry.observe(METRIC_STEP_DURATION, took_s, {**labels, ATTR_PHASE: "update"})
        telemetry.emit(
            SPAN_LEARNER_STEP,
            parent=step.trace_parent,
            started_at_s=step.started_at_s,
            finished_at_s=step.finished_at_s,
            attributes={
                ATTR_VERSION_LEARNER: str(step.progress.version),
                ATTR_BATCH_COUNT: len(lags),
                ATTR_LAG_MAX: max(lags),
                ATTR_LOSS: step.metrics.get("loss", 0.0),
                ATTR_RESPONSE_TIER: step.response.tier,
            },
            links=[
                (trajectory.trace_parent, {ATTR_LAG: lag})
                for trajectory, lag in zip(step.batch.trajectories, lags, strict=False)
            ],
            as_root=True,
        )

    def _observe(self, verdict: Fresh, *, trace_parent: str = "") -> None:
        telemetry, labels = self._context.telemetry, self._labels
        telemetry.observe(METRIC_LAG, verdict.lag, labels, trace_parent=trace_parent)
        telemetry.observe(METRIC_AGE, verdict.age_s, labels, trace_parent=trace_parent)
        telemetry.observe(METRIC_VERSION_SPAN, verdict.span, labels)

    def _emit_consume(
        self, step: Step, trajectory: Trajectory, item: JudgedTrajectory, *, violates: bool
    ) -> str:
        """The last span of a trajectory's trace; that of a violation is exported whole even if it was not sampled."""
        telemetry, parent = self._context.telemetry, trajectory.trace_parent
        deferred = violates and not is_sampled(parent)
        if deferred:
            if not telemetry.may_defer():
                return ""
            identity = {**self._labels, ATTR_TRAJECTORY: str(trajectory.trajectory_id)}
            parent = telemetry.rebuild(trajectory.stages, parent=parent, attributes=identity)
        return telemetry.emit(
            SPAN_CONSUME,
            parent=parent,
            started_at_s=step.started_at_s,
            finished_at_s=step.finished_at_s,
            attributes={
                **self._labels,
                ATTR_TRAJECTORY: str(trajectory.trajectory_id),
                ATTR_VERSION_START: str(trajectory.spans[0].version),
                ATTR_VERSION_END: str(trajectory.spans[-1].version),
                ATTR_VERSION_LEARNER: str(step.progress.version),
                ATTR_LAG: item.verdict.lag,
                ATTR_AGE: item.verdict.age_s,
                **({ATTR_SLO_VIOLATION: True} if violates else {}),
            },
            links=[(step.trace_parent, {})],
            kind="consumer",
            deferred=deferred,
        )

    def _count_objective(self, slo: Slo, verdicts: Sequence[Fresh]) -> None:
        bad = sum(not _holds(slo, verdict) for verdict in verdicts)
        self._context.stats.add(statistics.SLO_GOOD.member(slo.name), len(verdicts) - bad)
        self._context.stats.add(statistics.SLO_BAD.member(slo.name), bad)


def _holds(slo: Slo, verdict: Fresh) -> bool:
    return slo.holds(verdict.age_s if slo.name in AGE_OBJECTIVES else verdict.lag)


def _p95(values: Sequence[float]) -> float:
    """The smallest value that 95 % of them do not exceed."""
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]


def _mean_reward(trajectories: Sequence[Trajectory]) -> float | None:
    rewards = [trajectory.reward for trajectory in trajectories if trajectory.reward is not None]
    return sum(rewards) / len(rewards) if rewards else None
