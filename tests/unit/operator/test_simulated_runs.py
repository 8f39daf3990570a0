"""Seeded histories of many runs: whatever happens, the invariants hold, and every run comes to rest."""

import random
from dataclasses import dataclass, field
from datetime import datetime

import pytest

from tidegate.operator.config import HelmConfig, OperatorConfig, QuotaConfig, QuotaLimits
from tidegate.operator.decisions import (
    AddFinalizer,
    ApplyRelease,
    JobInFlight,
    LetRestart,
    RemoveFinalizer,
    RunObservation,
    RunStep,
    ScaleWorkload,
    StopJob,
    UninstallRelease,
    decide,
    gives_back,
)
from tidegate.operator.jobs import JobOutcome
from tidegate.operator.objects import ReleaseRecord, RunKey, WorkloadKind, WorkloadState
from tidegate.operator.plans import ActorPool, ReleasePlan, ScaledWorkload

GPUS, RUNS = 8, 4
CONFIG = OperatorConfig(
    quota=QuotaConfig(
        total=QuotaLimits(runs=RUNS, gpus=GPUS),
        namespaces={"a": QuotaLimits(runs=2), "b": QuotaLimits(gpus=6)},
    ),
    helm=HelmConfig(retry_s=20.0),
)
SERVICES: dict[str, WorkloadKind] = {
    "nats": "StatefulSet",
    "trajectory-store": "StatefulSet",
    "learner": "StatefulSet",
    "actor": "Deployment",
}
ROUND_S = 5.0
# A refusal that the operator did not live to write is met again.
LOSSES_MAX = 25


@dataclass
class Pods:
    """A workload: what is wanted, the spec that its pods are of, and rounds until they are ready."""

    replicas: int
    digest: str
    newest: str
    held: bool = False
    starts_in: int = 2

    @property
    def settled(self) -> bool:
        return self.replicas == 0 or (self.digest == self.newest and self.starts_in == 0)


@dataclass
class SimulatedRun:
    """A TrainingRun, and its release where there is one."""

    created_at_s: float
    spec: int
    gpus: int
    ttl_s: float | None = None
    suspended: bool = False
    deleting: bool = False
    finalized: bool = False
    completed_at_s: float | None = None
    record: ReleaseRecord = field(default_factory=ReleaseRecord)
    pods: dict[str, Pods] = field(default_factory=dict[str, Pods])
    job: JobInFlight | None = None
    job_plan: ReleasePlan | None = None

    def plan(self, name: str) -> ReleasePlan:
        return ReleasePlan(
            digest=f"spec-{self.spec}",
            learner_gpus=self.gpus,
            pools=(ActorPool(f"{name}-actor", 0, 1),),
            scaled=(
                ScaledWorkload("Deployment", f"{name}-actor"),
                ScaledWorkload("StatefulSet", f"{name}-learner", is_last=True),
            ),
        )


class World:
    """The cluster, with helms that may fail or refuse, and operators that may end between any two steps."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_s = 1_000_000.0
        self.runs: dict[RunKey, SimulatedRun] = {}
        self.outcomes: dict[RunKey, JobOutcome] = {}
        self.refused: set[str] = set()
        self.attempts: dict[tuple[RunKey, float, str], int] = {}
        self.faults = True
        self.specs = 0

    # -- what people do -------------------------------------------------------------------------------------------

    def create(self) -> None:
        key = RunKey(self.random.choice("abc"), f"run-{self.random.randrange(4)}")
        if key not in self.runs:
            ttl_s = self.random.choice([None, None, 0.0, 50.0])
            self.runs[key] = SimulatedRun(self.now_s, self._spec(), self.random.randrange(6), ttl_s)

    def _spec(self) -> int:
        self.specs += 1
        if self.random.random() < 0.15:
            self.refused.add(f"spec-{self.specs}")
        return self.specs

    def disturb(self) -> None:
        self.random.choice(
            [self.create, self.create, self.edit, self.suspend, self.resume, self.delete, self.complete]
        )()

    def _some(self) -> SimulatedRun | None:
        return self.random.choice(list(self.runs.values())) if self.runs else None

    def edit(self) -> None:
        if (run := self._some()) is not None and not run.deleting:
            run.spec, run.gpus, run.completed_at_s = self._spec(), self.random.randrange(6), None

    def suspend(self) -> None:
        if (run := self._some()) is not None:
            run.suspended = True

    def resume(self) -> None:
        if (run := self._some()) is not None:
            run.suspended = False

    def delete(self) -> None:
        if (run := self._some()) is not None:
            run.deleting = True

    def complete(self) -> None:
        """As admission ends a run: it scales its own pods to 0."""
        run = self._some()
        if run is not None and run.record.state == "Installed" and not run.suspended and run.pods:
            run.completed_at_s = self.now_s
            for name, pods in run.pods.items():
                if name.endswith(("-actor", "-learner")):
                    pods.replicas = 0

    # -- what the cluster does ------------------------------------------------------------------------------------

    def pass_time(self) -> None:
        self.now_s += ROUND_S
        for key, run in list(self.runs.items()):
            for pods in run.pods.values():
                if not pods.held and pods.digest != pods.newest:
                    pods.digest, pods.starts_in = pods.newest, 2
                elif pods.starts_in:
                    pods.starts_in -= 1
            if run.job is not None and self.random.random() < 0.6:
                self._end_job(key, run)
            if run.deleting and not run.finalized:
                assert not run.pods, f"{key} is gone and its pods are not"
                del self.runs[key]
                self.outcomes.pop(key, None)

    def _end_job(self, key: RunKey, run: SimulatedRun) -> None:
        job, plan = run.job, run.job_plan
        assert job is not None
        run.job = None
        if job.kind == "uninstall":
            failed = self.faults and self.random.random() < 0.2
            run.pods = run.pods if failed else {}
            self.outcomes[key] = JobOutcome("failed" if failed else "uninstalled", "", self.now_s)
        elif job.digest in self.refused:
            self.outcomes[key] = JobOutcome("refused", job.digest, self.now_s, "refused")
        elif self.faults and self.random.random() < 0.25:
            self.outcomes[key] = JobOutcome("failed", job.digest, self.now_s, "failed")
        else:
            assert plan is not None
            for service in SERVICES:
                name = f"{key.name}-{service}"
                pods = run.pods.setdefault(name, Pods(1, plan.digest, plan.digest))
                pods.newest = plan.digest
                # As the chart renders a learner; and admission gives actors of a completed run their number back.
                if service == "learner" or (service == "actor" and not run.record.replicas):
                    pods.replicas = pods.replicas or 1
            self.outcomes[key] = JobOutcome("applied", job.digest, self.now_s)

    def lose_operator(self) -> None:
        """Its helms end with it, and what it had not written is lost."""
        self.outcomes.clear()
        for run in self.runs.values():
            run.job = None

    # -- what the operator does -----------------------------------------------------------------------------------

    def observe(self) -> list[RunObservation]:
        return [self._observation(key, run) for key, run in self.runs.items()]

    def _observation(self, key: RunKey, run: SimulatedRun) -> RunObservation:
        record = run.record
        if key in self.outcomes:
            record = self.outcomes[key].into(record)
        states = tuple(
            WorkloadState(SERVICES[name.removeprefix(f"{key.name}-")], name, name.removeprefix(f"{key.name}-"),
                          pods.replicas, is_settled=pods.settled, is_held=pods.held)
            for name, pods in run.pods.items()
        )  # fmt: skip
        failed_at = record.failed_at
        failed = datetime.fromisoformat(failed_at).timestamp() if failed_at else 0.0
        return RunObservation(
            key=key,
            created_at_s=run.created_at_s,
            plan=run.plan(key.name),
            record=record,
            is_deleting=run.deleting,
            is_finalized=run.finalized,
            is_suspended=run.suspended,
            is_idle=run.suspended and self.random.random() < 0.7,
            completed_at_s=run.completed_at_s,
            failed_at_s=failed,
            ttl_s=run.ttl_s,
            workloads=states,
            job=run.job,
        )

    def round(self) -> None:
        observed = self.observe()
        steps = decide(observed, CONFIG, now_s=self.now_s, chart="0.1.0")
        if self.random.random() < 0.1:
            assert decide(observed, CONFIG, now_s=self.now_s, chart="0.1.0") == steps
        for key, step in sorted(
            steps.items(), key=lambda item: not gives_back(self.runs[item[0]].record, item[1].record)
        ):
            if self.faults and self.random.random() < 0.05:
                return  # the operator ends, or the API server does not answer
            run = self.runs[key]
            run.record = step.record
            self.outcomes.pop(key, None)
            self._act(key, run, step)
        self.check()

    def _act(self, key: RunKey, run: SimulatedRun, step: RunStep) -> None:
        for action in step.actions:
            match action:
                case AddFinalizer():
                    run.finalized = not run.deleting
                case RemoveFinalizer():
                    run.finalized = False
                case ApplyRelease(hold):
                    assert run.job is None
                    for each in hold:
                        run.pods[each.name].held = True
                    run.job_plan = run.plan(key.name)
                    run.job = JobInFlight("apply", run.job_plan.digest)
                    attempt = (key, run.created_at_s, run.job.digest)
                    self.attempts[attempt] = self.attempts.get(attempt, 0) + 1
                case UninstallRelease():
                    assert run.job is None
                    run.job = JobInFlight("uninstall")
                case StopJob():
                    run.job = None
                case ScaleWorkload(workload, replicas):
                    run.pods[workload.name].replicas = replicas
                case LetRestart(workload):
                    run.pods[workload.name].held = False

    # -- what must hold -------------------------------------------------------------------------------------------

    def check(self) -> None:
        working = [
            (key, run)
            for key, run in self.runs.items()
            if run.pods and any(pods.replicas for name, pods in run.pods.items() if name.endswith("-learner"))
        ]
        places = [run for run in self.runs.values() if run.record.admitted]
        assert len(places) <= RUNS
        assert sum(run.record.gpus for run in places) <= GPUS
        assert sum(run.record.admitted for key, run in self.runs.items() if key.namespace == "a") <= 2
        for key, run in working:
            restarting = [
                name
                for name, pods in run.pods.items()
                if not pods.held and not pods.settled and pods.replicas
            ]
            if any(pods.held for pods in run.pods.values()) and run.record.state == "Restarting":
                assert len(restarting) <= 1, f"{key}: {restarting} restart at the same time"

    def settle(self) -> None:
        """No more faults and no more changes: everything that can end does."""
        self.faults = False
        for _ in range(80):
            self.pass_time()
            self.round()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_invariants_hold_and_every_run_comes_to_rest(seed: int) -> None:
    world = World(seed)
    for _ in range(80):
        for _ in range(world.random.randrange(3)):
            world.disturb()
        world.pass_time()
        if world.random.random() < 0.05:
            world.lose_operator()
        world.round()
    world.settle()
    for key, run in world.runs.items():
        record, plan = run.record, run.plan(key.name)
        assert not run.deleting, key
        zero = [name for name, pods in run.pods.items() if not pods.replicas]
        if record.state == "Installed":
            assert record.digest == plan.digest, key
            assert all(pods.digest == plan.digest and not pods.held for pods in run.pods.values()), key
            assert not zero or run.completed_at_s is not None, key
        elif record.state == "Suspended":
            assert run.suspended, key
            assert not run.pods or len(zero) == 2, key
        elif record.state == "Refused":
            assert plan.digest in world.refused, key
        elif record.state == "Expired":
            assert not run.pods, key
        else:
            assert record.state == "Queued", (key, record)
    if any(run.record.state == "Queued" for run in world.runs.values()):
        # Another run holds the quota that they wait for.
        assert any(run.record.admitted for run in world.runs.values())
    refusals = {attempt: count for attempt, count in world.attempts.items() if attempt[2] in world.refused}
    assert all(count <= 1 + LOSSES_MAX for count in refusals.values()), refusals
