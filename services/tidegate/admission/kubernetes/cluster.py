"""The loop between admission and the cluster: observe, store the view for the ticks, and act on their decisions.

Consumes: Deployments, the TrainingRun and the Lease each ``sync_s``; pods and autoscalers each ``relist_s``. Produces:
the view that scaling is decided from; as the leader also deletion costs of pods, the scale (mode controller), status,
Events. Waits for: time, and the API server at most ``deadline_s`` a request. A failing request is logged once until it
works again, is counted, and affects nothing else: the loop never ends before the service drains, or before another pod
of admission holds the Lease.
"""

from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

import msgspec

from tidegate.admission.config import KubernetesConfig
from tidegate.admission.kept_files import OVERRIDES_FILE, SCALE_FILE
from tidegate.admission.kubernetes.access import Access
from tidegate.admission.kubernetes.events import ClusterEvent, EventWriter, Regarding
from tidegate.admission.kubernetes.leader_label import LeaderLabel
from tidegate.admission.kubernetes.learner_workload import learner_workload
from tidegate.admission.kubernetes.lease import Election
from tidegate.admission.kubernetes.objects import Autoscaler, Deployment, Pod
from tidegate.admission.kubernetes.pod_costs import CostPatch, rank
from tidegate.admission.kubernetes.reporting import StatusReporter
from tidegate.admission.kubernetes.scalers import KnownScale, conflicting, declared_zero, observe_scale
from tidegate.admission.kubernetes.training_run import (
    RunSnapshot,
    TrainingRun,
    beyond_run_file,
    is_completed,
    overrides_of,
)
from tidegate.admission.limits_subject import SupersededError
from tidegate.admission.loops import Admission
from tidegate.admission.scaling import NO_OVERRIDES, ClusterView
from tidegate.admission.state_file import StateFile
from tidegate.catalogue import admission as statistics
from tidegate.catalogue import learner as learner_stats
from tidegate.core.completion import waits_for_backup, wanted_replicas
from tidegate.core.errors import ConflictError, NotFoundError, TidegateError, UnavailableError
from tidegate.runtime.backup_state import is_expected
from tidegate.runtime.kubernetes_api import FIELD_MANAGER, Api
from tidegate.runtime.service import ServiceContext

T = TypeVar("T")

AUTOSCALERS = (
    ("/apis/autoscaling/v2", "horizontalpodautoscalers"),
    ("/apis/keda.sh/v1alpha1", "scaledobjects"),
)
# Deletion costs written in one round; the next round writes the rest.
PATCHES_MAX = 50
BACKOFF_DOUBLINGS_MAX = 10


class ClusterLoop:
    """Runs one round after another; each decides from its own observations."""

    def __init__(
        self,
        context: ServiceContext,
        admission: Admission,
        config: KubernetesConfig,
        *,
        access: Access,
        api: Api,
    ) -> None:
        """``api`` is closed by the caller."""
        self._context, self._admission, self._config = context, admission, config
        self._access, self._api = access, api
        self._election = Election(api, access, lease_s=config.lease_s)
        self._label = LeaderLabel(api, access)
        self._events = EventWriter(api, access)
        self._learner = learner_workload(context, admission, access=access, api=api, patch=self._patched)
        self._reporter = StatusReporter(api, access, status_s=config.status_s)
        self._failures: dict[str, str] = {}
        self._deployments: list[Deployment] = []
        self._scale_file = StateFile(context.data_dir / SCALE_FILE, KnownScale())
        self._scale_seen = self._scale_file.read()
        self._overrides_file = StateFile(context.data_dir / OVERRIDES_FILE, NO_OVERRIDES)
        # Set before the first tick: a suspended run stays suspended until the cluster was read.
        self._overrides = self._overrides_file.read() if access.run else NO_OVERRIDES
        admission.scaling.cluster = ClusterView(overrides=self._overrides)
        admission.completion.waits_for_run = bool(access.run)
        self._run: TrainingRun | None = None
        self._pods: list[Pod] = []
        self._conflicts: tuple[str, ...] = ()
        self._listed_at_s: float | None = None
        self._patched_at_s: dict[str, float] = {}
        # Of the newest version that a learner reported in this life.
        self._step: int | None = None
        self._led = False
        # Of admission's pods, where there are several, this one alone has the leader's label.
        self._is_marked = not access.pods
        self._unreachable = False
        self._unsaved = set[str]()

    def _ranks(self) -> bool:
        return self._access.ranks_actors and self._admission.scaling.config.deletion_cost

    async def run(self) -> None:
        """Run rounds until draining.

        Raises:
            SupersededError: another pod of admission holds the Lease.
        """
        drain, config = self._context.drain, self._config
        failures = 0
        while not drain.requested:
            failures = 0 if await self.round() else failures + 1
            wait_s = config.sync_s * 2 ** min(failures, BACKOFF_DOUBLINGS_MAX)
            if await drain.sleep(min(wait_s, max(config.sync_s, config.backoff_s_max))):
                break

    async def close(self) -> None:
        """Release the Lease, so that the next admission need not wait for it; it may act from now on."""
        await self._attempt("release the Lease", self._election.release(wall_s=self._context.clock.now_s()))

    async def round(self) -> bool:
        """Observe and act once; returns whether the API server answered."""
        context = self._context
        now_s, wall_s = self._now_s(), context.clock.now_s()
        self._unreachable = False
        # A leader that lost the broker lets the Lease grow old: another pod may have the broker.
        if context.bus.connected or not self._access.pods:
            await self._attempt("renew the Lease", self._election.renew(now_s=now_s, wall_s=wall_s))
        if self._unreachable:
            return self._record_round(leads=False)  # one timeout is enough: skip the other requests
        if self._access.pods and (other := self._election.other):
            raise SupersededError(f"{other} holds the Lease {self._access.lease}")
        leads = self._election.leads(now_s=self._now_s())
        if leads and not self._is_marked:
            self._is_marked = bool(await self._attempt("label the leader", self._label.take()))
        if leads:
            await self._scale()  # from the last observation, on which the ticks have decided since
        if self._listed_at_s is None or now_s - self._listed_at_s >= self._config.relist_s:
            self._listed_at_s = now_s
            await self._relist(leads=leads)
        await self._observe()
        if leads and not self._led:
            await self._emit_event(
                "LeaderElected", f"{self._access.identity} acts on the cluster for this release"
            )
        self._led = leads
        if leads:
            await self._end_run()
            await self._report()
            await self._attempt("count Events", self._events.flush(now_s=self._now_s(), wall_s=wall_s))
        return self._record_round(leads=leads)

    def _record_round(self, *, leads: bool) -> bool:
        stats = self._context.stats
        stats.set(statistics.KUBERNETES_LEADER, float(leads))
        stats.set(statistics.KUBERNETES_REQUESTS, float(self._api.num_requests))
        stats.set(statistics.KUBERNETES_EVENTS_DROPPED, float(self._events.num_dropped))
        stats.label(statistics.KUBERNETES_TROUBLES, "; ".join(sorted(self._failures)))
        return not self._unreachable

    # -- observe ------------------------------------------------------------------------------------------------------

    async def _observe(self) -> None:
        """Store the view for the ticks of admission; an unreadable object keeps its last observed state."""
        admission, access = self._admission, self._access
        found: list[Deployment] = []
        for name in access.deployments:
            deployment = await self._attempt(
                f"read Deployment {name}", self._api.get(self._path_of(name), Deployment)
            )
            if deployment is not None:
                found.append(deployment)
        if access.run:
            await self._observe_run()
        whole = len(found) == len(access.deployments)
        if not whole:
            admission.scaling.cluster = msgspec.structs.replace(
                admission.scaling.cluster, overrides=self._overrides
            )
            return
        self._deployments = found
        target, *others = found
        await self._note_scale(observe_scale(self._scale_seen, target, wall_s=self._context.clock.now_s()))
        known = self._scale_seen
        fixed = sum(deployment.spec.replicas for deployment in others)
        admission.scaling.cluster = ClusterView(
            seen_at_s=self._now_s(),
            replicas=target.spec.replicas + fixed,
            fixed=fixed,
            scaled_by=known.by if known.is_foreign else "",
            scaled_at_s=known.at_s if known.is_foreign else None,
            zero_is_ours=target.spec.replicas == 0 and known.by == FIELD_MANAGER,
            zero=declared_zero(known, replicas=target.spec.replicas + fixed),
            overrides=self._overrides,
        )

    async def _observe_run(self) -> None:
        """Update the overrides: a deleted TrainingRun has none, an unreadable one keeps its last."""
        try:
            self._run = await self._api.get(self._reporter.path, TrainingRun)
        except NotFoundError:
            self._run = None
        except TidegateError as error:
            self._record_failure("read the TrainingRun", error)
            return
        self._failures.pop("read the TrainingRun", None)
        completion = self._admission.completion
        completion.max_versions = self._run.spec.stop.max_versions if self._run is not None else None
        completion.waits_for_run = False
        learner = next(iter(self._admission.reports("learner")), None)
        if learner is not None:
            self._step = int(learner.values.get(learner_stats.VERSION_STEP, 0.0))
        if self._step is None and self._run is not None and self._run.spec.stop.max_versions is not None:
            return  # only the learner knows whether the run is complete: keep the last overrides
        overrides = overrides_of(self._run, version_step=self._step or 0)
        self._overrides = overrides
        self._save(OVERRIDES_FILE, self._overrides_file.keep(overrides))

    def _set_scale(self, known: KnownScale) -> None:
        self._scale_seen = known
        self._save(SCALE_FILE, self._scale_file.keep(known))

    def _save(self, name: str, problem: str) -> None:
        """Log once that the disk is full: what was seen holds until a restart, and the next round writes it."""
        if problem and name not in self._unsaved:
            self._context.log.warning("cluster_not_saved", file=name, error=problem)
        (self._unsaved.add if problem else self._unsaved.discard)(name)

    async def _note_scale(self, known: KnownScale) -> None:
        """Report once that another manager scaled; a scale seen on the first sync is not attributed."""
        before = self._scale_seen
        self._set_scale(known)
        if known == before or not known.is_foreign or before.deployment != known.deployment:
            return
        self._context.stats.add(statistics.FOREIGN_SCALES)
        self._context.log.info("scaled_by_other", manager=known.by, replicas=known.replicas)
        hold_s = self._admission.scaling.config.hold_s
        note = f"{known.by} scaled to {known.replicas}; admission leaves it alone for {hold_s:.0f} s"
        await self._emit_event("ExternalScaleDetected", note)

    async def _relist(self, *, leads: bool) -> None:
        """List the actors' pods where they are ranked or counted, and in the mode controller autoscalers; then rank."""
        access, scaling = self._access, self._admission.scaling
        pods = None
        if access.run or self._ranks():
            pods = await self._attempt(
                "list pods", self._api.list_all(f"{self._core()}/pods", Pod, selector=access.selector)
            )
        if pods is not None:
            self._pods = pods
        self._conflicts = tuple(await self._autoscalers()) if scaling.config.mode == "controller" else ()
        if leads and pods is not None and self._ranks():
            await self._rank()

    async def _autoscalers(self) -> list[str]:
        """Autoscalers of the same Deployments; a kind that the cluster does not know has none."""
        names: list[str] = []
        for group, plural in AUTOSCALERS:
            path = f"{group}/namespaces/{self._access.namespace}/{plural}"
            what = f"list {plural}"
            try:
                found = await self._api.list_all(path, Autoscaler)
            except NotFoundError:
                found = []
            except TidegateError as error:
                self._record_failure(what, error)
                continue
            self._failures.pop(what, None)
            names += [f"{plural}/{name}" for name in conflicting(found, self._access.deployments)]
        return names

    # -- act -------------------------------------------------------------------------------------------------------

    async def _rank(self) -> None:
        """Write the deletion costs that changed. Without any actor's report we are disconnected: keep all costs."""
        admission, now_s = self._admission, self._now_s()
        actors = {stats.instance: stats for stats in admission.reports("actor")}
        if not actors:
            return
        learner = next(iter(admission.reports("learner")), None)
        ranked = rank(
            self._pods,
            actors,
            self._patched_at_s,
            head_step=learner.values.get(learner_stats.VERSION_STEP, 0.0) if learner is not None else 0.0,
            max_lag=admission.decision().limits.max_lag,
            period_s=self._config.pod_patch_s,
            now_s=now_s,
        )
        present = {pod.metadata.name for pod in self._pods}
        self._patched_at_s = {name: at_s for name, at_s in self._patched_at_s.items() if name in present}
        self._context.stats.set(statistics.FOREIGN_POD_COSTS, float(len(ranked.foreign)))
        for patch in ranked.patches[:PATCHES_MAX]:
            self._patched_at_s[patch.pod] = now_s
            if await self._attempt("rank pods", self._write_cost(patch)) is None:
                return

    async def _scale(self) -> None:
        """In the mode controller, apply the recommendation to the Deployment.

        Another manager's change between our read and our write is a conflict on the resourceVersion: theirs is kept
        and observed first.
        """
        scaling, context = self._admission.scaling, self._context
        made, config, cluster = scaling.recommendation, scaling.config, scaling.cluster
        if config.mode != "controller" or made is None or self._conflicts or cluster.replicas is None:
            return
        if self._admission.completion.state.target:
            return  # actors end with the run
        old = self._now_s() - cluster.seen_at_s > self._config.sync_s + self._config.deadline_s
        if not self._deployments or old or scaling.decided_at_s < cluster.seen_at_s:
            return
        held_s = context.clock.now_s() - (cluster.scaled_at_s or 0.0)
        if cluster.scaled_by and held_s < config.hold_s:
            return
        target = self._deployments[0]
        wanted = max(0, made.replicas - cluster.fixed)
        if wanted == target.spec.replicas:
            return
        if wanted < target.spec.replicas and self._ranks():
            await self._rank()  # so that the actors with the least work are deleted
        name = target.metadata.name
        self._set_scale(msgspec.structs.replace(self._scale_seen, writing=wanted))
        body = {
            "metadata": {"resourceVersion": target.metadata.resource_version},
            "spec": {"replicas": wanted},
        }
        if (
            await self._attempt("patch the scale", self._patched(f"{self._path_of(name)}/scale", body))
            is None
        ):
            return
        self._set_scale(KnownScale(name, wanted, FIELD_MANAGER, context.clock.now_s()))
        # The ticks must see the new scale before the next observation.
        scaling.cluster = msgspec.structs.replace(
            cluster,
            replicas=wanted + cluster.fixed,
            scaled_by="",
            scaled_at_s=None,
            zero_is_ours=wanted == 0,
            zero=declared_zero(self._scale_seen, replicas=wanted + cluster.fixed),
        )
        context.log.info("scaled", deployment=name, replicas=wanted, reason=made.reason)
        await self._emit_event("Scaled", f"{target.spec.replicas} to {wanted} actors: {made.reason}")

    async def _end_run(self) -> None:
        """Scale actors and then learner to 0 once the run is complete, and back once its target is another one.

        What they had is on disk before it is written to the cluster.
        """
        completion, learner = self._admission.completion, self._access.learner
        state = completion.state
        if not learner or not (state.checkpointed or (state.replicas and not state.target)):
            return
        num_learners = await self._attempt("read the learner's scale", self._learner.replicas())
        if num_learners is None or len(self._deployments) != len(self._access.deployments):
            return
        found = {each.metadata.name: each.spec.replicas for each in self._deployments}
        found[learner] = num_learners
        # The last backup asks the learner for its files.
        is_due = num_learners > 0 and is_expected(Path(self._context.settings.data_dir))
        keeps_last = waits_for_backup(state, is_due=is_due, now_s=self._context.clock.now_s())
        wanted = wanted_replicas(state, found, last=[learner], keeps_last=keeps_last)
        if wanted.get(learner) and self._learner.restart:
            await self._emit_event("LearnerEnded", self._learner.restart, is_warning=True)
            del wanted[learner]
        if state.checkpointed and wanted:
            kept = state.replicas | {name: found[name] for name in wanted}
            completion.keep(msgspec.structs.replace(state, replicas=kept))
        elif not wanted and not state.target:
            completion.keep(msgspec.structs.replace(state, replicas={}))
        why = state.reason() or "its target is another one"
        for name, count in wanted.items():
            if name == self._access.deployments[0]:
                self._set_scale(msgspec.structs.replace(self._scale_seen, writing=count))
            body = {"spec": {"replicas": count}}
            scaling = (
                self._learner.scale(count, reason=why)
                if name == learner
                else self._patched(f"{self._path_of(name)}/scale", body)
            )
            if await self._attempt("scale with the run's end", scaling) is None:
                return
            self._context.log.info("scaled", workload=name, replicas=count, reason=why)
            await self._emit_event("Scaled", f"{name}: {found[name]} to {count}: {why}")

    async def _write_cost(self, patch: CostPatch) -> bool:
        try:
            return await self._patched(f"{self._core()}/pods/{patch.pod}", patch.body())
        except NotFoundError:
            return True  # deleted meanwhile

    async def _patched(self, path: str, body: object) -> bool:
        await self._api.patch(path, body)
        self._context.stats.add(statistics.KUBERNETES_PATCHES)
        return True

    async def _report(self) -> None:
        """Emit Events for changed conditions and write the TrainingRun's status."""
        snapshot = self._snapshot()
        for reason, note, is_warning in self._reporter.changes(snapshot):
            await self._emit_event(reason, note, is_warning=is_warning)
        run = self._run
        if run is not None and self._reporter.is_due(run, snapshot, now_s=self._now_s()):
            await self._attempt("write the status", self._write_status(run, snapshot))

    async def _write_status(self, run: TrainingRun, snapshot: RunSnapshot) -> bool:
        try:
            await self._reporter.write(run, snapshot, now_s=self._now_s(), wall_s=self._context.clock.now_s())
        except NotFoundError:
            self._run = None  # deleted since the observation
        return True

    def _snapshot(self) -> RunSnapshot:
        """The snapshot that conditions and status are derived from."""
        admission, scaling = self._admission, self._admission.scaling
        diagnosis, signals = admission.diagnosis()
        learner = next(iter(admission.reports("learner")), None)
        values, labels = (learner.values, learner.labels) if learner is not None else ({}, {})
        run = self._run
        return RunSnapshot(
            signals=signals,
            limits=admission.decision().limits,
            verdicts=tuple(admission.slos()),
            bottleneck=diagnosis.bottleneck,
            version=labels.get(learner_stats.VERSION, ""),
            lag_p95=values.get(learner_stats.LAG_P95, 0.0),
            checkpoint=labels.get(learner_stats.CHECKPOINTED, ""),
            replicas=scaling.cluster.replicas,
            ready=sum(deployment.status.ready_replicas for deployment in self._deployments),
            draining=sum(bool(pod.metadata.deletion_timestamp) for pod in self._pods),
            selector=self._deployments[0].spec.selector.text() if self._deployments else "",
            mode=scaling.config.mode,
            recommendation=scaling.recommendation,
            scale_owner=self._scale_seen.by,
            conflicts=self._conflicts,
            denied=self._failures.get("patch the scale", ""),
            beyond=beyond_run_file(run, self._context.live.staleness.max_lag, scaling.run_file),
            completed=admission.completion.state.checkpointed
            or (run is not None and is_completed(run, version_step=self._step or 0)),
            target=admission.completion.state.target,
            suspended=run is not None and run.spec.suspend,
        )

    # -- failures ---------------------------------------------------------------------------------------------------

    async def _attempt(self, what: str, request: Awaitable[T]) -> T | None:
        """The answer, or None after a recorded failure."""
        try:
            answer = await request
        except ConflictError:
            self._context.stats.add(statistics.KUBERNETES_CONFLICTS)
            return None  # another writer was first: the next round observes the result
        except TidegateError as error:
            self._record_failure(what, error)
            return None
        if self._failures.pop(what, None) is not None:
            self._context.log.info("kubernetes_recovered", what=what)
        return answer

    def _record_failure(self, what: str, error: TidegateError) -> None:
        self._context.stats.add(statistics.KUBERNETES_FAILURES)
        self._unreachable |= isinstance(error, UnavailableError)
        if what not in self._failures:
            self._context.log.warning("kubernetes_failed", what=what, error=str(error))
        self._failures[what] = str(error)

    async def _emit_event(self, reason: str, note: str, *, is_warning: bool = False) -> None:
        """Write an Event about the TrainingRun, or about the Deployment without one."""
        if not self._election.leads(now_s=self._now_s()):
            return
        happened = ClusterEvent(reason, note, self._regarding(), "Warning" if is_warning else "Normal")
        wall_s = self._context.clock.now_s()
        await self._attempt("write Events", self._events.write(happened, now_s=self._now_s(), wall_s=wall_s))

    def _regarding(self) -> Regarding:
        access = self._access
        if self._run is not None:
            return self._reporter.reference(self._run)
        uid = self._deployments[0].metadata.uid if self._deployments else ""
        return Regarding("apps/v1", "Deployment", access.deployments[0], access.namespace, uid)

    def _path_of(self, deployment: str) -> str:
        return f"/apis/apps/v1/namespaces/{self._access.namespace}/deployments/{deployment}"

    def _core(self) -> str:
        return f"/api/v1/namespaces/{self._access.namespace}"

    def _now_s(self) -> float:
        return self._context.clock.monotonic_s()
