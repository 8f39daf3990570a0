"""Admission with access to a cluster: a fake API server over HTTP, everything else as its process runs it."""

import asyncio
import errno
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.broker import Broker
from tests.support.kubernetes import APPS, AUTOSCALERS, LEASES, PODS, RUNS, FakeApi
from tests.support.reports import Services
from tests.support.service_harness import channel_of_test, make_context, running, until
from tests.support.settings import make_settings
from tidegate.admission.config import AdmissionConfig, KubernetesConfig
from tidegate.admission.kept_files import SCALE_FILE
from tidegate.admission.main import build
from tidegate.catalogue import admission as statistics
from tidegate.core.admission import Limits
from tidegate.core.scaling import Mode, ScalingConfig
from tidegate.runtime.bus import Bus
from tidegate.runtime.files import replace_file
from tidegate.runtime.service import ServiceContext
from tidegate.wire.clients.admission import AdmissionClient

pytestmark = pytest.mark.integration

ACTORS = "t-actor"
COST = "controller.kubernetes.io/pod-deletion-cost"
# No windows: each observation counts at once. By one actor at a time, however long the learner seems to wait between
# two reports that a busy machine delays; the second one never reports, so there is no third.
SCALING = ScalingConfig(
    max_replicas=9, step_s=1.0, step_replicas=1, stabilise_out_s=0.0, stabilise_in_s=0.0, settle_s=0.0
)
CLUSTER = KubernetesConfig(sync_s=0.05, relist_s=0.1, deadline_s=1.0, backoff_s_max=0.2, status_s=0.2)


@pytest.fixture
def api() -> FakeApi:
    api = FakeApi()
    api.deployment(ACTORS, 1)
    return api


@pytest.fixture
def make(
    tmp_path: Path, nats: Broker, bus: Bus, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], ServiceContext]:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(api.kubeconfig)
    for name, value in {
        "TIDEGATE_KUBERNETES": "1",
        "TIDEGATE_RANK_ACTORS": "1",
        "TIDEGATE_NAMESPACE": "rl",
        "TIDEGATE_RELEASE": "t",
        "TIDEGATE_POD_NAME": "t-admission-0",
        "TIDEGATE_ACTOR_DEPLOYMENTS": ACTORS,
        "TIDEGATE_CRD": "1",
        "KUBECONFIG": str(kubeconfig),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    settings = make_settings(tmp_path, broker_url=nats.url, max_lag=2)
    return lambda: make_context("admission", settings, bus=bus)


def config(mode: Mode = "observe", **scaling: Any) -> AdmissionConfig:
    chosen = msgspec.structs.replace(SCALING, mode=mode, **scaling)
    return AdmissionConfig(tick_s=0.05, window_s=2.0, scaling=chosen, kubernetes=CLUSTER)


@pytest.fixture
def services() -> Services:
    services = Services()
    services.actors["t-actor-0"] = {"serving_step": 10.0}
    return services


@asynccontextmanager
async def admission(
    make: Callable[[], ServiceContext], api: FakeApi, services: Services, config: AdmissionConfig
) -> AsyncGenerator[ServiceContext]:
    async with api.serving(), running(build, config, make()) as context, services.reporting(context):
        yield context


async def until_reported(context: ServiceContext, services: Services) -> None:
    """Wait until admission knows every actor; the learner reports before them."""
    client = AdmissionClient(channel_of_test(context, "admission"))
    async with asyncio.timeout(60.0):
        while (await client.diagnose()).signals["num_actors"] < len(services.actors):
            await asyncio.sleep(0.05)


def label(context: ServiceContext, name: str) -> str:
    return context.stats.snapshot(at_s=0.0).labels.get(name, "")


def condition(api: FakeApi, kind: str) -> tuple[str, str] | None:
    return api.conditions("t").get(kind)


async def test_pods_are_ranked_by_the_work_they_hold_and_others_ranks_are_left_alone(
    make: Callable[[], ServiceContext], api: FakeApi, services: Services
) -> None:
    services.actors = {
        "t-actor-idle": {"serving_step": 9.0},
        "t-actor-stale": {"serving_step": 7.0, "busy_tasks": 1.0, "work_invested_s": 500.0},
        "t-actor-busy": {"serving_step": 10.0, "busy_tasks": 2.0, "work_invested_s": 1.0},
        "t-actor-deep": {"serving_step": 10.0, "busy_tasks": 2.0, "work_invested_s": 500.0},
        "t-actor-karpenter": {"serving_step": 10.0},
    }
    async with admission(make, api, services, config()) as context:
        await until(lambda: context.stats.value(statistics.KUBERNETES_LEADER) == 1.0)
        await until_reported(context, services)
        for name in (*services.actors, "t-actor-silent"):
            api.pod(name, **({COST: "7"} if name == "t-actor-karpenter" else {}))
        pods = (*services.actors, "t-actor-silent")
        await until(lambda: all(COST in api.annotations(name) for name in pods))
        costs = {name: api.annotations(name).get(COST) for name in pods}
        assert costs == {
            "t-actor-idle": "0",
            "t-actor-stale": "-100",
            "t-actor-busy": "10",
            "t-actor-deep": "40",
            "t-actor-karpenter": "7",
            "t-actor-silent": "-100",
        }
        services.actors["t-actor-idle"] = {"serving_step": 10.0, "busy_tasks": 1.0, "work_invested_s": 50.0}
        requests = len(api.requests)
        await until(lambda: len(api.requests) > requests + 25)
        assert len(api.patches("/pods/t-actor-idle")) == 1, "one patch a minute"
        assert context.stats.value(statistics.FOREIGN_POD_COSTS) == 1.0


async def test_full_disk_ends_no_round_and_what_was_seen_is_saved_later(
    make: Callable[[], ServiceContext], api: FakeApi, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_full = True

    def replaced(path: Path, data: bytes) -> None:
        if is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace_file(path, data)

    monkeypatch.setattr("tidegate.admission.state_file.replace_file", replaced)
    async with admission(make, api, services, config()) as context:
        await until(lambda: context.stats.value(statistics.KUBERNETES_LEADER) == 1.0)
        requests = len(api.requests)
        await until(lambda: len(api.requests) > requests + 25)
        is_full = False
        await until((context.data_dir / SCALE_FILE).is_file)


async def test_pods_are_listed_by_the_labels_of_the_releases_actors_and_others_are_left_alone(
    make: Callable[[], ServiceContext], api: FakeApi, services: Services
) -> None:
    async with admission(make, api, services, config()) as context:
        await until(lambda: context.stats.value(statistics.KUBERNETES_LEADER) == 1.0)
        await until_reported(context, services)
        api.strange_pod("other-actor-0")
        api.pod("t-actor-0")
        await until(lambda: COST in api.annotations("t-actor-0"))
        assert api.selectors[PODS] == {"app.kubernetes.io/instance=t,app.kubernetes.io/component=actor"}
        assert api.annotations("other-actor-0") == {}


async def test_no_pod_is_listed_where_none_is_ranked_or_counted(
    make: Callable[[], ServiceContext],
    api: FakeApi,
    services: Services,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The chart grants the list under the same condition.
    monkeypatch.setenv("TIDEGATE_RANK_ACTORS", "0")
    monkeypatch.setenv("TIDEGATE_CRD", "0")
    async with admission(make, api, services, config("controller")):
        await until(lambda: AUTOSCALERS in api.selectors)
        asked = len(api.requests)
        await until(lambda: len(api.requests) > asked + 10)
    assert PODS not in api.selectors


async def test_the_controller_scales_to_what_is_recommended_and_signs_it(
    make: Callable[[], ServiceContext], api: FakeApi, services: Services
) -> None:
    async with admission(make, api, services, config("controller")) as context:
        await until(lambda: api.replicas(ACTORS) == 2)
        (fields,) = api.objects[f"{APPS}/{ACTORS}"]["metadata"]["managedFields"]
        assert (fields["manager"], fields["subresource"]) == ("tidegate-admission", "scale")
        await until(lambda: "Scaled" in api.reasons())
        assert {"LeaderElected", "Scaled"} <= set(api.reasons())
        assert context.stats.value(statistics.FOREIGN_SCALES) == 0.0


async def test_manual_scale_is_recorded_held_and_never_reverted(
    make: Callable[[], ServiceContext], api: FakeApi, services: Services
) -> None:
    async with admission(make, api, services, config("controller")) as context:
        await until(lambda: api.replicas(ACTORS) == 2)
        api.scale(ACTORS, 7, manager="kubectl")
        await until(lambda: "ExternalScaleDetected" in api.reasons())
        patched = len(api.patches("/scale"))
        requests = len(api.requests)
        await until(lambda: len(api.requests) > requests + 25)
        assert api.replicas(ACTORS) == 7
        assert len(api.patches("/scale")) == patched
        assert (
            "held" in (await AdmissionClient(channel_of_test(context, "admission")).diagnose()).recommendation
        )
        assert label(context, "scaling_owner") == "kubectl"


async def test_after_the_hold_scaling_continues_from_the_manual_number(
    make: Callable[[], ServiceContext], api: FakeApi, services: Services
) -> None:
    async with admission(make, api, services, config("controller", hold_s=1.0)) as context:
        await until(lambda: api.replicas(ACTORS) == 2)
        api.scale(ACTORS, 1, manager="kubectl")
        await until(lambda: context.stats.value(statistics.FOREIGN_SCALES) == 1.0)
        await until(lambda: api.replicas(ACTORS) == 2)


async def test_manual_scale_is_held_where_kubernetes_does_not_record_the_manager(
    make: Callable[[], ServiceContext], api: FakeApi, services: Services
) -> None:
    api.notes_scalers = False
    async with admission(make, api, services, config("controller")) as context:
        await until(lambda: api.replicas(ACTORS) == 2)
        api.scale(ACTORS, 7, manager="kubectl")
        await until(lambda: label(context, "scaling_owner") == "an unknown manager")
        requests = len(api.requests)
        await until(lambda: len(api.requests) > requests + 25)
        assert api.replicas(ACTORS) == 7
    async with admission(make, api, services, config("controller")) as context:
        await until(lambda: label(context, "scaling_owner") == "an unknown manager")
        requests = len(api.requests)
        await until(lambda: len(api.requests) > requests + 25)
        assert api.replicas(ACTORS) == 7, "held on after a restart"


@pytest.mark.parametrize("mode", ["observe", "advise", "external"])
async def test_nothing_is_scaled_in_the_other_modes(
    make: Callable[[], ServiceContext], api: FakeApi, services: Services, mode: Mode
) -> None:
    async with admission(make, api, services, config(mode)) as context:
        api.scale(ACTORS, 3, manager="kubectl")
        await until(lambda: context.stats.value(statistics.SCALING_CURRENT) == 3.0)
        requests = len(api.requests)
        await until(lambda: len(api.requests) > requests + 25)
        assert api.patches("/scale") == []
        assert label(context, "scaling_owner") == "kubectl"


async def test_an_autoscaler_of_the_same_deployment_is_a_conflict_and_goes_first(
    make: Callable[[], ServiceContext], api: FakeApi, services: Services
) -> None:
    api.training_run("t")
    api.autoscaler("theirs", target=ACTORS)
    api.autoscaler("other", target="unrelated")
    async with admission(make, api, services, config("controller")):
        await until(lambda: condition(api, "ScalingActive") == ("False", "ConflictingScaler"))
        assert api.patches("/scale") == []
        del api.objects[f"{AUTOSCALERS}/theirs"]
        await until(lambda: api.replicas(ACTORS) == 2)
        await until(lambda: condition(api, "ScalingActive") == ("True", "Controlling"))


async def test_zero_while_paused_is_taken_back_after_it(
    make: Callable[[], ServiceContext], api: FakeApi, services: Services
) -> None:
    async with admission(make, api, services, config("controller", zero_when_paused=True)) as context:
        await until(lambda: api.replicas(ACTORS) == 2)
        client = AdmissionClient(channel_of_test(context, "admission"))
        await client.set_paused(paused=True, reason="night")
        await until(lambda: api.replicas(ACTORS) == 0)
        services.actors.clear()
        await client.set_paused(paused=False, reason="")
        await until(lambda: api.replicas(ACTORS) == 2)


async def test_zero_by_a_person_is_a_declared_pause_and_admission_goes_on(
    make: Callable[[], ServiceContext], api: FakeApi, services: Services
) -> None:
    async with admission(make, api, services, config()) as context:
        client = AdmissionClient(channel_of_test(context, "admission"))
        await until_reported(context, services)
        assert context.stats.value(statistics.PAUSED) == 0.0
        api.scale(ACTORS, 0, manager="kubectl")
        services.actors.clear()
        await until(lambda: context.stats.value(statistics.PAUSED) == 1.0)
        assert label(context, statistics.PAUSE).startswith("0 actors are asked for since ")
        assert label(context, statistics.PAUSE).endswith("by kubectl")
        found = await client.diagnose()
        assert (found.bottleneck, found.fix) == ("idle", "scale the actors to 1 or more")
        assert not (await client.limits())[0].paused
        api.scale(ACTORS, 1, manager="kubectl")
        await until(lambda: context.stats.value(statistics.PAUSED) == 0.0)


async def test_zero_by_an_autoscaler_is_no_declared_pause(
    make: Callable[[], ServiceContext], api: FakeApi, services: Services
) -> None:
    api.scale(ACTORS, 0, manager="keda-operator")
    async with admission(make, api, services, config()) as context:
        await until(lambda: label(context, "scaling_owner") == "keda-operator")
        decisions = context.stats.value(statistics.DECISIONS)
        await until(lambda: context.stats.value(statistics.DECISIONS) > decisions + 2)
        assert context.stats.value(statistics.PAUSED) == 0.0


@pytest.mark.parametrize("fault", ["denied", "hangs", "away"])
async def test_admission_works_without_access_and_reports_once_what_it_lacks(
    make: Callable[[], ServiceContext], api: FakeApi, services: Services, fault: str
) -> None:
    api.denied = {"/api"} if fault == "denied" else set()
    api.hangs = fault == "hangs"

    async def work(context: ServiceContext) -> None:
        await until(lambda: context.stats.value(statistics.KUBERNETES_FAILURES) >= 2)
        ticks = context.stats.value(statistics.DECISIONS)
        await until(lambda: context.stats.value(statistics.DECISIONS) > ticks + 5)
        client = AdmissionClient(channel_of_test(context, "admission"))
        await client.set_paused(paused=True, reason="still possible")
        assert (await client.limits())[0].paused
        assert context.stats.value(statistics.KUBERNETES_LEADER) == 0.0
        assert "renew the Lease" in label(context, "kubernetes_troubles")

    if fault == "away":
        async with running(build, config("controller"), make()) as context, services.reporting(context):
            await work(context)
    else:
        async with admission(make, api, services, config("controller")) as context:
            await work(context)


async def test_revoked_and_restored_access_is_used_again(
    make: Callable[[], ServiceContext], api: FakeApi, services: Services
) -> None:
    async with admission(make, api, services, config("controller", hold_s=0.5)) as context:
        await until(lambda: api.replicas(ACTORS) == 2)
        api.denied = {"/apis/apps", "/api/v1"}
        await until(lambda: "read Deployment" in label(context, "kubernetes_troubles"))
        api.scale(ACTORS, 1, manager="kubectl")
        api.denied = set()
        await until(lambda: api.replicas(ACTORS) == 2)
        await until(lambda: label(context, "kubernetes_troubles") == "")


async def test_without_the_right_to_scale_a_condition_reports_it(
    make: Callable[[], ServiceContext], api: FakeApi, services: Services
) -> None:
    api.training_run("t")
    api.denied = {f"{APPS}/{ACTORS}/scale"}
    async with admission(make, api, services, config("controller")):
        await until(lambda: condition(api, "ScalingActive") == ("False", "AccessDenied"))
        assert api.replicas(ACTORS) == 1


async def test_training_run_suspends_narrows_and_releases(
    make: Callable[[], ServiceContext], api: FakeApi, services: Services
) -> None:
    api.training_run("t", suspend=True, objective={"maxStalenessVersions": 1}, actors={"max": 3})
    async with admission(make, api, services, config("controller")) as context:
        client = AdmissionClient(channel_of_test(context, "admission"))

        async def eventually(*, paused: bool, max_lag: int) -> str:
            async with asyncio.timeout(60.0):
                while True:
                    limits, _ = await client.limits()
                    if (limits.paused, limits.max_lag) == (paused, max_lag):
                        return limits.reason
                    await asyncio.sleep(0.05)

        assert "spec.suspend" in await eventually(paused=True, max_lag=1)
        await until(lambda: condition(api, "Suspended") == ("True", "Paused"))
        assert api.status("t")["phase"] == "Suspended"
        assert api.replicas(ACTORS) == 1, "suspended without zero_when_paused: the actors stay"
        api.training_run("t", objective={"maxStalenessVersions": 99}, actors={"replicas": 8, "max": 3})
        await eventually(paused=False, max_lag=2)
        await until(lambda: api.replicas(ACTORS) == 3)
        await until(lambda: api.status("t")["phase"] == "Running")
        await until(lambda: api.status("t")["actors"]["recommended"] == 3)
        status = api.status("t")
        assert status["policyVersion"] == "main@10"
        assert status["staleness"]["budget"] == 2
        assert status["actors"]["selector"].startswith("app.kubernetes.io/component=actor")
        assert api.conditions("t")["LearnerAvailable"] == ("True", "Reporting")
        await until(lambda: condition(api, "Accepted") == ("False", "BeyondRunFile"))
        await until(lambda: {"AdmissionResumed", "Scaled", "BeyondRunFile"} <= set(api.reasons()))
        api.training_run("t", stop={"maxVersions": 10})
        assert "complete" in await eventually(paused=True, max_lag=2)
        await until(lambda: api.status("t").get("phase") == "Completed")
        del api.objects[f"{RUNS}/t"]
        await eventually(paused=False, max_lag=2)


async def test_a_suspended_run_stays_so_when_admission_restarts_without_the_cluster(
    make: Callable[[], ServiceContext], api: FakeApi, services: Services
) -> None:
    api.training_run("t", suspend=True)
    async with admission(make, api, services, config()) as context:
        client = AdmissionClient(channel_of_test(context, "admission"))
        async with asyncio.timeout(60.0):
            while not (await client.limits())[0].paused:
                await asyncio.sleep(0.05)
    heard: list[bool] = []

    async def receive(data: bytes, _headers: dict[str, str]) -> None:
        heard.append(msgspec.json.decode(data, type=Limits).paused)

    context = make()
    await context.bus.subscribe(context.topology.control("task_queue"), receive)
    async with running(build, config(), context), services.reporting(context):
        await until(lambda: context.stats.value(statistics.KUBERNETES_FAILURES) >= 2)
        await until(lambda: len(heard) >= 1)
    assert set(heard) == {True}, "from the first limits on"


async def test_a_status_is_written_on_a_change_and_otherwise_not_often(
    make: Callable[[], ServiceContext], api: FakeApi, services: Services
) -> None:
    api.training_run("t")
    slow = msgspec.structs.replace(config(), kubernetes=msgspec.structs.replace(CLUSTER, status_s=600.0))
    async with admission(make, api, services, slow):
        await until(lambda: condition(api, "LearnerAvailable") == ("True", "Reporting"))
        await until(lambda: condition(api, "ActorsAvailable") == ("True", "Reporting"))
        requests, written = len(api.requests), len(api.patches("/status"))
        await until(lambda: len(api.requests) > requests + 25)
        assert len(api.patches("/status")) <= written + 2
        services.actors.clear()
        await until(lambda: condition(api, "ActorsAvailable") == ("False", "NotReporting"))


async def test_only_the_lease_holder_acts_and_a_clean_shutdown_releases_the_lease(
    make: Callable[[], ServiceContext], api: FakeApi, services: Services
) -> None:
    holder = {"holderIdentity": "t-admission-other", "leaseDurationSeconds": 600}
    api.put(
        f"{LEASES}/t-admission-leader", {"metadata": {"name": "t-admission-leader"}, "spec": dict(holder)}
    )
    async with admission(make, api, services, config("controller")) as context:
        api.pod("t-actor-0")
        await until(lambda: context.stats.value(statistics.SCALING_CURRENT) == 1.0)
        requests = len(api.requests)
        await until(lambda: len(api.requests) > requests + 25)
        assert api.replicas(ACTORS) == 1
        assert COST not in api.annotations("t-actor-0")
        api.put(
            f"{LEASES}/t-admission-leader",
            {"metadata": {"name": "t-admission-leader"}, "spec": {"holderIdentity": ""}},
        )
        await until(lambda: api.replicas(ACTORS) == 2)
        await until(lambda: COST in api.annotations("t-actor-0"))
    assert api.objects[f"{LEASES}/t-admission-leader"]["spec"].get("holderIdentity", "") == ""
