"""The operator's loop with its jobs: a pretended cluster and helm, everything else as its process runs it."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.operator_cluster import (
    SERVICES,
    OperatorCluster,
    PretendedHelm,
    run_path,
    secret_path,
    set_path,
)
from tidegate.admission.kubernetes.access import Access
from tidegate.catalogue import operator as statistics
from tidegate.operator.cluster import RunCluster
from tidegate.operator.config import HelmConfig, OperatorConfig, QuotaConfig, QuotaLimits
from tidegate.operator.helm import BUSY, LABEL
from tidegate.operator.jobs import ReleaseJobs
from tidegate.operator.loop import OperatorLoop
from tidegate.operator.objects import FINALIZER, RunKey
from tidegate.operator.restarts import ORDER
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.drain import Drain
from tidegate.runtime.kubernetes_api import Api
from tidegate.runtime.stats_board import StatsBoard

RL, OTHER, THIRD = RunKey("team-a", "rl"), RunKey("team-b", "other"), RunKey("team-b", "third")
HELM = HelmConfig(attempts=3, backoff_s=0.01, backoff_s_max=0.02, retry_s=3600.0)
CONFIG = OperatorConfig(helm=HELM)


class Operator:
    """One instance of the operator, round by round."""

    def __init__(self, cluster: OperatorCluster, helm: PretendedHelm, folder: Path, **also: Any) -> None:
        config = also.get("config", CONFIG)
        access = Access(
            namespace="system", identity=also.get("identity", "one"), release="", deployments=(),
            lease="tidegate-operator", selector="",
        )  # fmt: skip
        api = Api(cluster, field_manager="tidegate-operator")
        clock = SystemClock()
        self.stats = StatsBoard(service="operator", instance="one", started_at_s=0.0)
        self.jobs = ReleaseJobs(
            RunCluster(api, config.namespaces), config.helm, clock, folder=folder, run=helm
        )
        self.loop = OperatorLoop(
            config, api=api, access=access, jobs=self.jobs, clock=clock, stats=self.stats, chart="0.1.0"
        )

    async def rounds(self, number: int = 6) -> None:
        """Rounds with time between them for helm."""
        for _ in range(number):
            await self.loop.round()
            for _ in range(40):
                await asyncio.sleep(0)
            await asyncio.sleep(0.005)


@pytest.fixture
def cluster() -> OperatorCluster:
    return OperatorCluster()


@pytest.fixture
def helm(cluster: OperatorCluster) -> PretendedHelm:
    return PretendedHelm(cluster)


@asynccontextmanager
async def operating(
    cluster: OperatorCluster, helm: PretendedHelm, folder: Path, **also: Any
) -> AsyncGenerator[Operator]:
    operator = Operator(cluster, helm, folder, **also)
    try:
        yield operator
    finally:
        await operator.jobs.close()


async def test_a_run_is_created_with_its_run_file_and_reported(
    cluster: OperatorCluster, helm: PretendedHelm, tmp_path: Path
) -> None:
    cluster.create(RL, values={"images": {"tag": "2"}})
    async with operating(cluster, helm, tmp_path) as operator:
        await operator.rounds()
        assert helm.of("upgrade") == ["rl"]
        assert helm.values[RL]["run"] == {"run": "cartpole"}
        assert helm.values[RL]["images"] == {"tag": "2"}
        assert cluster.objects[run_path(RL)]["metadata"]["finalizers"] == [FINALIZER]
        assert cluster.release(RL)["state"] == "Installed"
        assert cluster.conditions(RL) == {
            "Admitted": ("True", "WithinQuota"),
            "Released": ("True", "Installed"),
            "Reconciling": ("True", "WaitsForAdmission"),
            "Stalled": ("False", "Progressing"),
        }
        cluster.admission_says(RL, Ready="True")
        await operator.rounds(2)
        assert cluster.conditions(RL)["Reconciling"] == ("False", "Installed")
        assert cluster.conditions(RL)["Ready"] == ("True", "Test")
        assert cluster.objects[run_path(RL)]["status"]["observedGeneration"] == 1
        assert cluster.objects[run_path(RL)]["status"]["phase"] == "Running"
        assert {"Applying", "Installed"} <= set(cluster.reasons())
        assert operator.stats.value(statistics.RUNS_IN.member("installed")) == 1.0
        assert os.listdir(tmp_path) == [], "values are removed"


async def test_a_training_run_without_a_run_file_is_none_of_the_operators(
    cluster: OperatorCluster, helm: PretendedHelm, tmp_path: Path
) -> None:
    cluster.create(RL, run=None)
    async with operating(cluster, helm, tmp_path) as operator:
        await operator.rounds(3)
    assert helm.commands == []
    assert "status" not in cluster.objects[run_path(RL)]


async def test_a_round_that_finds_nothing_to_do_writes_nothing(
    cluster: OperatorCluster, helm: PretendedHelm, tmp_path: Path
) -> None:
    cluster.create(RL)
    async with operating(cluster, helm, tmp_path) as operator:
        await operator.rounds()
        cluster.sent.clear()
        await operator.rounds(1)
    written = [path for method, path, _ in cluster.sent if method != "GET"]
    assert written == ["/apis/coordination.k8s.io/v1/namespaces/system/leases/tidegate-operator"]


async def test_two_namespaces_wait_for_each_other_in_one_quota_and_start_in_their_order(
    cluster: OperatorCluster, helm: PretendedHelm, tmp_path: Path
) -> None:
    for key in (RL, OTHER, THIRD):
        cluster.create(key)
    config = OperatorConfig(
        namespaces=["team-a", "team-b"], quota=QuotaConfig(total=QuotaLimits(runs=2)), helm=HELM
    )
    async with operating(cluster, helm, tmp_path, config=config) as operator:
        await operator.rounds()
        assert helm.of("upgrade") == ["rl", "other"]
        assert cluster.conditions(THIRD)["Admitted"] == ("False", "QuotaExceeded")
        assert cluster.message(THIRD, "Admitted") == "2 of 2 runs of all namespaces are taken"
        assert cluster.release(THIRD)["state"] == "Queued"
        assert cluster.conditions(THIRD)["Reconciling"][0] == "True"
        cluster.delete(RL)
        await operator.rounds()
        assert run_path(RL) not in cluster.objects
        assert helm.of("upgrade") == ["rl", "other", "third"]
        assert cluster.release(THIRD)["state"] == "Installed"


async def test_helm_works_for_a_bounded_number_of_runs_at_a_time(
    cluster: OperatorCluster, helm: PretendedHelm, tmp_path: Path
) -> None:
    for number in range(6):
        cluster.create(RunKey("team-a", f"run-{number}"))
    helm.may_end.clear()
    async with operating(cluster, helm, tmp_path) as operator:
        await operator.rounds(3)
        assert helm.working == HELM.processes
        helm.may_end.set()
        await operator.rounds()
        assert len(helm.of("upgrade")) == 6
    assert helm.working_max == HELM.processes


async def test_suspending_scales_to_0_once_idle_and_resuming_restores(
    cluster: OperatorCluster, helm: PretendedHelm, tmp_path: Path
) -> None:
    cluster.create(RL)
    async with operating(cluster, helm, tmp_path) as operator:
        await operator.rounds()
        cluster.objects[set_path(RL, "actor")]["spec"]["replicas"] = 3  # kubectl scale
        cluster.edit(RL, suspend=True)
        cluster.admission_says(RL, Suspended="False", Ready="True")
        await operator.rounds(2)
        assert cluster.release(RL)["state"] == "Suspending"
        assert cluster.replicas(RL)["actor"] == 3
        cluster.admission_says(RL, Suspended="True", Ready="True")
        await operator.rounds(4)
        assert cluster.replicas(RL) == {**dict.fromkeys(SERVICES, 1), "actor": 0, "learner": 0}
        assert cluster.release(RL)["state"] == "Suspended"
        assert cluster.release(RL)["replicas"] == {"rl-actor": 3, "rl-learner": 1}
        assert cluster.conditions(RL)["Reconciling"] == ("False", "Suspended")
        cluster.edit(RL, suspend=False)
        await operator.rounds(4)
        assert cluster.replicas(RL) == {**dict.fromkeys(SERVICES, 1), "actor": 3}
        assert "replicas" not in cluster.release(RL)
        assert len(helm.of("upgrade")) == 1


async def test_a_change_restarts_one_service_after_another(
    cluster: OperatorCluster, helm: PretendedHelm, tmp_path: Path
) -> None:
    cluster.create(RL)
    async with operating(cluster, helm, tmp_path) as operator:
        await operator.rounds()
        cluster.sent.clear()
        cluster.edit(RL, run={"run": "cartpole", "seed": 2})
        await operator.rounds(12)
        assert cluster.release(RL)["state"] == "Installed"
    patches = [
        (path.rpartition("/rl-")[2], body["spec"])
        for method, path, body in cluster.sent
        if method == "PATCH" and path.startswith("/apis/apps/")
    ]
    assert sorted(name for name, spec in patches if spec in HELD) == sorted(SERVICES)
    assert [name for name, spec in patches if spec in LET_GO] == sorted(SERVICES, key=ORDER.index)
    assert helm.values[RL]["run"]["seed"] == 2


HELD: list[Any] = [{"paused": True}, {"updateStrategy": {"rollingUpdate": {"partition": 1}}}]
LET_GO: list[Any] = [{"paused": False}, {"updateStrategy": {"rollingUpdate": {"partition": 0}}}]


async def test_a_service_that_does_not_restart_leaves_the_others_as_they_are(
    cluster: OperatorCluster, helm: PretendedHelm, tmp_path: Path
) -> None:
    cluster.create(RL)
    config = OperatorConfig(helm=HELM, restart_s=1.0)
    async with operating(cluster, helm, tmp_path, config=config) as operator:
        await operator.rounds()
        cluster.never_ready = "rl-admission"
        cluster.edit(RL, run={"run": "cartpole", "seed": 2})
        await operator.rounds(8)
        await asyncio.sleep(2.5)
        await operator.rounds(2)
        assert cluster.conditions(RL)["Stalled"] == ("True", "RestartStuck")
        assert "rl-admission is not ready" in cluster.message(RL, "Stalled")
        assert cluster.objects[set_path(RL, "actor")]["spec"]["paused"] is True


SCHEMA = """Error: values don't meet the specifications of the schema(s) in the following chart(s):
tidegate:
- at '/run': additional properties 'stalenes' not allowed
"""


async def test_a_run_file_that_the_schema_refuses_is_reported_once_with_its_sentence(
    cluster: OperatorCluster, helm: PretendedHelm, tmp_path: Path
) -> None:
    cluster.create(RL)
    helm.fails["rl"] = [SCHEMA]
    async with operating(cluster, helm, tmp_path) as operator:
        await operator.rounds()
        assert helm.of("upgrade") == ["rl"]
        assert cluster.conditions(RL)["Stalled"] == ("True", "RunRefused")
        assert cluster.message(RL, "Stalled") == "- at '/run': additional properties 'stalenes' not allowed"
        assert cluster.conditions(RL)["Reconciling"][0] == "False"
        assert cluster.conditions(RL)["Admitted"] == ("False", "NotAsking")
        cluster.edit(RL, run={"run": "cartpole", "seed": 3})
        await operator.rounds()
        assert cluster.release(RL)["state"] == "Installed"
        assert cluster.conditions(RL)["Stalled"][0] == "False"


async def test_the_sentence_of_a_refused_check_is_that_of_its_pod(
    cluster: OperatorCluster, helm: PretendedHelm, tmp_path: Path
) -> None:
    cluster.create(RL)
    labels = {"app.kubernetes.io/instance": "rl", "app.kubernetes.io/component": "check"}
    ended = {"state": {"terminated": {"exitCode": 2, "message": "workload.env: there is no Cart-v9\n"}}}
    cluster.put(
        "/api/v1/namespaces/team-a/pods/rl-check-x",
        {"metadata": {"name": "rl-check-x", "labels": labels}, "status": {"containerStatuses": [ended]}},
    )
    helm.fails["rl"] = ["Error: failed pre-install: job rl-check failed: BackoffLimitExceeded"]
    async with operating(cluster, helm, tmp_path) as operator:
        await operator.rounds()
        assert cluster.message(RL, "Stalled") == "workload.env: there is no Cart-v9"
        assert cluster.conditions(RL)["Released"] == ("False", "RunRefused")
        cluster.put("/apis/batch/v1/namespaces/team-a/jobs/rl-check", {"metadata": {"name": "rl-check"}})
        cluster.delete(RL)
        await operator.rounds()
    assert run_path(RL) not in cluster.objects
    assert not [path for path in cluster.objects if path.endswith("jobs/rl-check")], (
        "hooks are no objects of a release"
    )


async def test_a_failing_helm_is_tried_again_and_then_reported(
    cluster: OperatorCluster, helm: PretendedHelm, tmp_path: Path
) -> None:
    cluster.create(RL)
    helm.fails["rl"] = ["Error: etcdserver: request timed out"]
    async with operating(cluster, helm, tmp_path) as operator:
        await operator.rounds(12)
        assert helm.of("upgrade") == ["rl", "rl"]
        assert cluster.release(RL)["state"] == "Installed"
        helm.fails["rl"] = ["Error: etcdserver: request timed out"] * 9
        cluster.edit(RL, run={"run": "cartpole", "seed": 2})
        await operator.rounds(25)
        assert len(helm.of("upgrade")) == 2 + HELM.attempts
        assert cluster.conditions(RL)["Stalled"] == ("True", "HelmFailed")
        assert "etcdserver: request timed out" in cluster.message(RL, "Stalled")
        assert cluster.conditions(RL)["Admitted"][0] == "True", "the old release works on"


async def test_a_release_in_the_middle_of_an_operation_is_taken_up_again(
    cluster: OperatorCluster, helm: PretendedHelm, tmp_path: Path
) -> None:
    cluster.create(RL)
    labels = {"owner": "helm", "name": "rl", "status": "pending-install", LABEL: "true"}
    cluster.put(secret_path(RL, 1), {"metadata": {"name": "sh.helm.release.v1.rl.v1", "labels": labels}})
    helm.fails["rl"] = [f"Error: {BUSY}"]
    async with operating(cluster, helm, tmp_path) as operator:
        await operator.rounds(12)
        assert cluster.release(RL)["state"] == "Installed"
    assert secret_path(RL, 1) not in cluster.objects


async def test_a_release_of_another_owner_is_not_taken_over(
    cluster: OperatorCluster, helm: PretendedHelm, tmp_path: Path
) -> None:
    cluster.create(RL)
    labels = {"owner": "helm", "name": "rl", "status": "deployed"}
    cluster.put(secret_path(RL, 1), {"metadata": {"name": "sh.helm.release.v1.rl.v1", "labels": labels}})
    async with operating(cluster, helm, tmp_path) as operator:
        await operator.rounds()
        assert helm.commands == []
        assert "that this operator did not make" in cluster.message(RL, "Stalled")
        cluster.delete(RL)
        await operator.rounds()
        assert run_path(RL) not in cluster.objects
    assert helm.of("uninstall") == [], "nor removed"


async def test_a_complete_run_is_uninstalled_after_its_time_and_keeps_its_status(
    cluster: OperatorCluster, helm: PretendedHelm, tmp_path: Path
) -> None:
    cluster.create(RL, ttlSecondsAfterFinished=0)
    async with operating(cluster, helm, tmp_path) as operator:
        await operator.rounds()
        # An upgrade of long ago: five minutes after one a completion does not count.
        found = cluster.objects[run_path(RL)]
        found["status"]["release"]["appliedAt"] = "2026-01-01T00:00:00Z"
        cluster.put(run_path(RL), found)
        cluster.admission_says(RL, Completed="True", Ready="True")
        await operator.rounds()
        assert helm.of("uninstall") == ["rl"]
        assert cluster.release(RL)["state"] == "Expired"
        assert cluster.conditions(RL)["Completed"] == ("True", "Test")
        assert cluster.conditions(RL)["Reconciling"][0] == cluster.conditions(RL)["Stalled"][0] == "False"
        await operator.rounds(3)
        assert helm.of("upgrade") == ["rl"], "it does not start again by itself"


async def test_another_instance_goes_on_from_the_records(
    cluster: OperatorCluster, helm: PretendedHelm, tmp_path: Path
) -> None:
    cluster.create(RL)
    async with (
        operating(cluster, helm, tmp_path) as first,
        operating(cluster, helm, tmp_path, identity="two") as second,
    ):
        await first.rounds()
        await second.rounds(2)
        assert second.stats.value(statistics.LEADER) == 0.0
        assert helm.of("upgrade") == ["rl"]
        drain = Drain()
        drain.request()
        await first.loop.run(drain)  # releases the Lease
        await second.rounds(2)
        assert second.stats.value(statistics.LEADER) == 1.0
        assert helm.of("upgrade") == ["rl"]
        cluster.delete(RL)
        await second.rounds()
    assert run_path(RL) not in cluster.objects


async def test_while_the_api_server_does_not_answer_nothing_is_decided(
    cluster: OperatorCluster, helm: PretendedHelm, tmp_path: Path
) -> None:
    cluster.create(RL)
    cluster.create(OTHER)
    config = OperatorConfig(
        namespaces=["team-a", "team-b"], quota=QuotaConfig(total=QuotaLimits(runs=2)), helm=HELM
    )
    async with operating(cluster, helm, tmp_path, config=config) as operator:
        await operator.rounds()
        cluster.down = True
        assert await operator.loop.round() is False
        cluster.down = False
        # Runs in a namespace that cannot be read hold their places.
        cluster.unreadable = {"team-a"}
        cluster.create(THIRD)
        await operator.rounds(4)
        assert cluster.release(THIRD)["state"] == "Queued"
        assert helm.of("upgrade") == ["rl", "other"]
        cluster.unreadable = set()
        cluster.delete(RL)
        await operator.rounds()
        assert cluster.release(THIRD)["state"] == "Installed"


async def test_without_its_run_file_a_training_run_gives_its_release_back(
    cluster: OperatorCluster, helm: PretendedHelm, tmp_path: Path
) -> None:
    cluster.create(RL)
    async with operating(cluster, helm, tmp_path) as operator:
        await operator.rounds()
        cluster.edit(RL, run=None)
        await operator.rounds()
        assert helm.of("uninstall") == ["rl"]
        assert cluster.objects[run_path(RL)]["metadata"]["finalizers"] == []
