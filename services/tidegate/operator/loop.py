"""The loop of the operator: observe, decide once for all runs, write what was decided, and carry it out.

Consumes: the Lease, TrainingRuns and workloads each ``sync_s``; outcomes of helm. Produces: status, finalizers,
helm's jobs, numbers of pods, Events. Waits for: time, and the API server at most ``deadline_s`` a request. A request
that fails is logged once until it works again, is counted, and costs its own run a round.
"""

from collections.abc import Awaitable, Iterable

import msgspec
import structlog

from tidegate.admission.kubernetes.access import Access
from tidegate.admission.kubernetes.events import ClusterEvent, EventWriter, Regarding
from tidegate.admission.kubernetes.lease import Election
from tidegate.admission.kubernetes.scalers import seconds_of
from tidegate.admission.kubernetes.training_run import COMPLETED, KIND
from tidegate.catalogue import operator as statistics
from tidegate.core.errors import ConflictError, NotFoundError, TidegateError, UnavailableError
from tidegate.operator.cluster import EVERYWHERE, ClusterObjects, RunCluster
from tidegate.operator.conditions import FAILED, applied_status, is_written
from tidegate.operator.config import OperatorConfig
from tidegate.operator.decisions import (
    Action,
    AddFinalizer,
    ApplyRelease,
    LetRestart,
    RemoveFinalizer,
    RunObservation,
    RunStep,
    ScaleWorkload,
    StopJob,
    UninstallRelease,
    decide,
    gives_back,
    takes_more,
)
from tidegate.operator.jobs import JobOutcome, ReleaseJobs
from tidegate.operator.objects import API_VERSION, FINALIZER, ManagedRun, RunKey, WorkloadKind, is_managed
from tidegate.operator.plans import ReleasePlan, plan_of
from tidegate.operator.quotas import QuotaDemand
from tidegate.runtime.clock import Clock
from tidegate.runtime.drain import Drain
from tidegate.runtime.kubernetes_api import Api
from tidegate.runtime.stats_board import StatsBoard

CONTROLLER = "tidegate.dev/operator"
BACKOFF_DOUBLINGS_MAX = 4
# Writers of Events, one for each namespace; beyond this they begin their counts again.
WRITERS_MAX = 256


class ManagedView(msgspec.Struct, frozen=True):
    """One managed TrainingRun of a round: as it was read, and what it asks for."""

    run: ManagedRun
    plan: ReleasePlan
    observation: RunObservation


class OperatorLoop:
    """Runs one round after another; each decides from its own observations."""

    def __init__(
        self,
        config: OperatorConfig,
        *,
        api: Api,
        access: Access,
        jobs: ReleaseJobs,
        clock: Clock,
        stats: StatsBoard,
        chart: str,
    ) -> None:
        """``access``: the namespace and name of the Lease, and who holds it. ``chart``: the version of the chart."""
        self._config, self._api, self._access, self._jobs = config, api, access, jobs
        self._clock, self._stats, self._chart = clock, stats, chart
        self._cluster = RunCluster(api, config.namespaces)
        self._election = Election(api, access, lease_s=config.lease_s)
        self._log = structlog.get_logger("operator")
        self._failures: dict[str, str] = {}
        self._outcomes: dict[RunKey, JobOutcome] = {}
        self._writers: dict[str, EventWriter] = {}
        self._kinds: set[WorkloadKind] = {"Deployment", "StatefulSet"}
        self._held: list[QuotaDemand] = []
        self._unreachable = False

    async def run(self, drain: Drain) -> None:
        """Run rounds until draining; then end helm, and release the Lease."""
        config, failures = self._config, 0
        try:
            while not drain.requested:
                failures = 0 if await self.round() else failures + 1
                if await drain.sleep(config.sync_s * 2 ** min(failures, BACKOFF_DOUBLINGS_MAX)):
                    break
        finally:
            await self._jobs.close()
        await self._attempt("release the Lease", self._election.release(wall_s=self._clock.now_s()))

    async def round(self) -> bool:
        """Observe and act once; returns whether the API server answered."""
        self._unreachable = False
        now_s, wall_s = self._clock.monotonic_s(), self._clock.now_s()
        await self._attempt("renew the Lease", self._election.renew(now_s=now_s, wall_s=wall_s))
        leads = self._election.leads(now_s=self._clock.monotonic_s())
        self._stats.set(statistics.LEADER, float(leads))
        if not leads:
            await self._jobs.close()  # another instance works on the same releases from now on
            return not self._unreachable
        self._outcomes.update(self._jobs.ended())
        observed = await self._cluster.observe(sorted(self._kinds))
        self._note_unread(observed)
        views = self._views(observed)
        observations = [view.observation for view in views]
        absent = self._absent(observed)
        steps = decide(observations, self._config, now_s=wall_s, chart=self._chart, absent=absent)
        # Runs that give back a part of the quota come first; where that cannot be written, no run takes it.
        views.sort(key=lambda view: not gives_back(view.run.status.release, steps[view.run.key].record))
        all_given = True
        for view in views:
            before, step = view.run.status.release, steps[view.run.key]
            if all_given or not takes_more(before, step.record):
                written = await self._carry_out(view, step)
                all_given = all_given and (written or not gives_back(before, step.record))
        # What the runs hold after this round, for one in which their namespace cannot be read.
        self._held = absent + [
            QuotaDemand(key, 0.0, None, step.record.admitted, step.record.gpus) for key, step in steps.items()
        ]
        self._count(steps.values())
        for writer in self._writers.values():
            await self._attempt("count Events", writer.flush(now_s=self._clock.monotonic_s(), wall_s=wall_s))
        return not self._unreachable

    # -- observe ------------------------------------------------------------------------------------------------------

    def _views(self, observed: ClusterObjects) -> list[ManagedView]:
        managed = [run for run in observed.runs if is_managed(run)]
        views = list[ManagedView]()
        for run in managed:
            plan = plan_of(run, self._config, chart=self._chart)
            self._kinds |= {each.kind for each in plan.scaled}
            views.append(ManagedView(run, plan, self._observation(run, plan, observed)))
        present = {view.run.key for view in views}
        self._outcomes = {key: each for key, each in self._outcomes.items() if key in present}
        return views

    def _observation(self, run: ManagedRun, plan: ReleasePlan, observed: ClusterObjects) -> RunObservation:
        record, meta = run.status.release, run.metadata
        outcome = self._outcomes.get(run.key)
        if outcome is not None:
            record = outcome.into(record)
        completed = run.condition(COMPLETED)
        return RunObservation(
            key=run.key,
            created_at_s=seconds_of(meta.creation_timestamp),
            plan=plan,
            record=record,
            is_deleting=bool(meta.deletion_timestamp) or run.spec.run is None,
            is_finalized=FINALIZER in meta.finalizers,
            is_suspended=run.spec.suspend,
            is_idle=run.holds("Suspended"),
            completed_at_s=seconds_of(completed.last_transition_time)
            if completed is not None and run.holds(COMPLETED)
            else None,
            failed_at_s=seconds_of(record.failed_at),
            applied_at_s=seconds_of(record.applied_at),
            restarted_at_s=seconds_of(record.restarted_at),
            ttl_s=run.spec.ttl_seconds_after_finished,
            workloads=observed.workloads.get(run.key, ()),
            job=self._jobs.in_flight(run.key),
        )

    def _absent(self, observed: ClusterObjects) -> list[QuotaDemand]:
        """What runs held, in namespaces that could not be read this time."""
        unread = observed.unread
        return [each for each in self._held if each.key.namespace in unread or EVERYWHERE in unread]

    def _note_unread(self, observed: ClusterObjects) -> None:
        for namespace, reason in observed.unread.items():
            self._record_failure(f"read {namespace}", reason)
        read = [what for what in self._failures if what.startswith("read ")]
        for what in read:
            if what.removeprefix("read ") not in observed.unread:
                self._recovered(what)

    # -- act ----------------------------------------------------------------------------------------------------------

    async def _carry_out(self, view: ManagedView, step: RunStep) -> bool:
        """Write the record, then do what was decided; a record that cannot be written costs the run this round.

        Returns whether it is written, or its run is gone.
        """
        run = view.run
        body = applied_status(run, view.plan, step, wall_s=self._clock.now_s())
        if not is_written(run, body):
            try:
                await self._cluster.write_status(run.key, body)
            except NotFoundError:
                return True  # deleted since it was read
            except TidegateError as error:
                self._record_failure(f"write the status of {run.key}", error)
                return False
            self._recovered(f"write the status of {run.key}")
        self._outcomes.pop(run.key, None)
        await self._announce(view, step)
        for action in step.actions:
            done = await self._attempt(f"act on {run.key}", self._act(view, step, action))
            if done is None:
                break
        return True

    async def _act(self, view: ManagedView, step: RunStep, action: Action) -> bool:
        run, key = view.run, view.run.key
        self._log.info("operator_acts", training_run=str(key), action=type(action).__name__)
        match action:
            case AddFinalizer():
                await self._cluster.add_finalizer(run)
            case RemoveFinalizer():
                await self._cluster.remove_finalizer(run)
            case ApplyRelease(hold):
                self._jobs.apply(key, view.plan, hold, is_new=not step.record.digest)
            case UninstallRelease():
                self._jobs.uninstall(key, is_new=not step.record.digest)
            case StopJob():
                self._jobs.stop(key)
            case ScaleWorkload(workload, replicas):
                await self._cluster.scale(key, workload, replicas)
            case LetRestart(workload):
                await self._cluster.let_restart(key, workload)
        return True

    async def _announce(self, view: ManagedView, step: RunStep) -> None:
        """An Event for each change of the release's state, and for each new sentence of a failure."""
        before, after, run = view.run.status.release, step.record, view.run
        changed = before.state != after.state
        if not changed and (after.state not in FAILED or before.message == after.message):
            return
        self._log.info("release", training_run=str(run.key), state=after.state, message=after.message)
        if after.state in FAILED:
            self._stats.add(statistics.FAILURES)
        meta = run.metadata
        regarding = Regarding(API_VERSION, KIND, meta.name, meta.namespace, meta.uid)
        event = ClusterEvent(
            after.state,
            after.message or f"the release is {after.state}",
            regarding,
            "Warning" if after.state in FAILED else "Normal",
        )
        await self._attempt(
            "write Events",
            self._writer(meta.namespace).write(
                event, now_s=self._clock.monotonic_s(), wall_s=self._clock.now_s()
            ),
        )

    def _writer(self, namespace: str) -> EventWriter:
        if namespace not in self._writers:
            if len(self._writers) >= WRITERS_MAX:
                self._writers.clear()
            access = msgspec.structs.replace(self._access, namespace=namespace)
            self._writers[namespace] = EventWriter(self._api, access, controller=CONTROLLER)
        return self._writers[namespace]

    # -- statistics and failures --------------------------------------------------------------------------------------

    def _count(self, steps: Iterable[RunStep]) -> None:
        stats = self._stats
        states: dict[str, int] = dict.fromkeys(statistics.STATES, 0)
        gpus = 0
        for step in steps:
            states[step.record.state] += 1
            gpus += step.record.gpus if step.record.admitted else 0
        for state, number in states.items():
            stats.set(statistics.RUNS_IN.member(state.lower()), float(number))
        stats.set(statistics.GPUS, float(gpus))
        stats.add(statistics.ROUNDS)
        stats.set(statistics.REQUESTS, float(self._api.num_requests))

    async def _attempt(self, what: str, request: Awaitable[object]) -> bool | None:
        """True, or None after a failure, which is recorded."""
        try:
            await request
        except ConflictError:
            return None  # another writer was first: the next round observes the result
        except TidegateError as error:
            self._record_failure(what, error)
            return None
        self._recovered(what)
        return True

    def _recovered(self, what: str) -> None:
        if self._failures.pop(what, None) is not None:
            self._log.info("kubernetes_recovered", what=what)

    def _record_failure(self, what: str, error: TidegateError | str) -> None:
        self._stats.add(statistics.REQUEST_FAILURES)
        self._unreachable |= isinstance(error, UnavailableError)
        if what not in self._failures:
            self._log.warning("kubernetes_failed", what=what, error=str(error))
        self._failures[what] = str(error)
