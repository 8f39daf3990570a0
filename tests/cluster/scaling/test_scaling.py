"""Admission against a real API server: its writes are accepted, and requests beyond its Role are refused."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from tests.cluster.kube import CommandError
from tests.cluster.scaling.conftest import ACCOUNT, ACTORS, RELEASE, Hands, role
from tests.support.reports import Services
from tests.support.service_harness import channel_of_test, running, until
from tidegate.admission.config import AdmissionConfig, KubernetesConfig
from tidegate.admission.kubernetes.scalers import UNKNOWN_MANAGER
from tidegate.admission.main import build
from tidegate.catalogue import admission as statistics
from tidegate.core.scaling import Mode, ScalingConfig
from tidegate.runtime.service import ServiceContext
from tidegate.wire.clients.admission import AdmissionClient

pytestmark = pytest.mark.cluster

COST = "controller.kubernetes.io/pod-deletion-cost"
SCALING = ScalingConfig(
    max_replicas=4, step_s=1.0, step_replicas=4, stabilise_out_s=0.0, stabilise_in_s=0.0, settle_s=0.0
)
CLUSTER = KubernetesConfig(
    sync_s=0.3, relist_s=0.6, deadline_s=5.0, backoff_s_max=1.0, status_s=0.5, pod_patch_s=0.0
)


def config(mode: Mode) -> AdmissionConfig:
    scaling = msgspec.structs.replace(SCALING, mode=mode)
    return AdmissionConfig(tick_s=0.1, window_s=2.0, scaling=scaling, kubernetes=CLUSTER)


@asynccontextmanager
async def admission(
    make: Callable[[], ServiceContext], services: Services, mode: Mode
) -> AsyncGenerator[ServiceContext]:
    async with running(build, config(mode), make()) as context, services.reporting(context):
        yield context


def troubles(context: ServiceContext) -> str:
    return context.stats.snapshot(at_s=0.0).labels.get("kubernetes_troubles", "")


async def test_manual_scale_in_removes_the_least_invested_actor_and_is_recorded(
    make: Callable[[], ServiceContext], services: Services, hands: Hands
) -> None:
    await hands.install(server_side=False)
    await hands.kubectl("scale", "deployment", ACTORS, "--replicas=3")
    await hands.kubectl("rollout", "status", f"deployment/{ACTORS}", "--timeout=60s")
    first, second, third = sorted(await hands.pods())
    services.actors = {
        first: {"serving_step": 10.0, "busy_tasks": 1.0, "work_invested_s": 40.0},
        second: {"serving_step": 10.0},
        third: {"serving_step": 10.0, "busy_tasks": 1.0, "work_invested_s": 400.0},
    }
    async with admission(make, services, "observe") as context:

        async def ranked() -> bool:
            costs = {name: notes.get(COST) for name, notes in (await hands.pods()).items()}
            return costs == {first: "30", second: "0", third: "40"}

        await hands.until("pods are ranked", ranked)
        await until(lambda: context.stats.snapshot(at_s=0.0).labels["scaling_owner"] == "kubectl")
        await hands.kubectl("scale", "deployment", ACTORS, "--replicas=2")

        async def went() -> bool:
            return second not in await hands.pods()

        await hands.until("the idle actor goes", went)
        assert set(await hands.pods()) == {first, third}
        await until(lambda: context.stats.value(statistics.FOREIGN_SCALES) == 1.0)
        await hands.kubectl("scale", "deployment", ACTORS, "--replicas=1")

        async def next_went() -> bool:
            return set(await hands.pods()) == {third}

        await hands.until("then the less invested one", next_went)
        await until(lambda: context.stats.value(statistics.FOREIGN_SCALES) == 2.0)

        async def reported() -> bool:
            return {"LeaderElected", "ExternalScaleDetected"} <= await hands.reasons()

        await hands.until("Events report it", reported)
        assert await hands.replicas() == 1
        assert troubles(context) == ""


@pytest.mark.parametrize("server_side", [True, False])
async def test_controller_scales_holds_a_manual_scale_and_yields_to_an_autoscaler(
    make: Callable[[], ServiceContext], services: Services, hands: Hands, server_side: bool
) -> None:
    """Kubernetes records the scaler only where a manager owned the number before; a hold must not depend on that."""
    await hands.install(server_side=server_side)
    await hands.kubectl("apply", "--filename", "-", given=training_run())
    services.actors = {f"{ACTORS}-0": {"serving_step": 10.0}}
    async with admission(make, services, "controller") as context:

        async def scaled() -> bool:
            return await hands.replicas() == 2

        await hands.until("scaled to what is recommended", scaled)
        shown = json.loads(
            await hands.kubectl("get", "deployment", ACTORS, "--show-managed-fields", "--output", "json")
        )
        owners = {
            each["manager"]: each.get("subresource", "")
            for each in shown["metadata"]["managedFields"]
            if "f:replicas" in each["fieldsV1"].get("f:spec", {})
        }
        assert owners == ({} if server_side else {"tidegate-admission": "scale"})
        assert await hands.condition("ScalingActive") == ("True", "Controlling")

        await hands.kubectl("scale", "deployment", ACTORS, "--replicas=4")
        await until(lambda: context.stats.value(statistics.FOREIGN_SCALES) == 1.0)
        num_requests = context.stats.value(statistics.KUBERNETES_REQUESTS)
        await until(lambda: context.stats.value(statistics.KUBERNETES_REQUESTS) > num_requests + 15)
        assert await hands.replicas() == 4, "held"
        owner = context.stats.snapshot(at_s=0.0).labels["scaling_owner"]
        assert owner == (UNKNOWN_MANAGER if server_side else "kubectl")

        await hands.kubectl("autoscale", "deployment", ACTORS, "--min=1", "--max=3", "--cpu-percent=80")

        async def conflicts() -> bool:
            return await hands.condition("ScalingActive") == ("False", "ConflictingScaler")

        await hands.until("a conflict is a condition", conflicts)

        async def reported() -> bool:
            return {"Scaled", "ExternalScaleDetected", "ConflictingScaler"} <= await hands.reasons()

        await hands.until("Events report it", reported)
        described = await hands.kubectl("describe", "trainingrun", RELEASE)
        assert "ConflictingScaler" in described
        assert troubles(context) == ""


def training_run(**spec: object) -> dict[str, object]:
    return {
        "apiVersion": "tidegate.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": RELEASE},
        "spec": spec,
    }


async def test_training_run_is_observed_applied_and_reported(
    make: Callable[[], ServiceContext], services: Services, hands: Hands
) -> None:
    await hands.install(server_side=True)
    services.actors = {f"{ACTORS}-0": {"serving_step": 10.0}}
    await hands.kubectl("apply", "--filename", "-", given=training_run(suspend=True))
    async with admission(make, services, "observe") as context:
        client = AdmissionClient(channel_of_test(context, "admission"))

        async def limits(*, paused: bool, max_lag: int) -> bool:
            now = (await client.limits())[0]
            return (now.paused, now.max_lag) == (paused, max_lag)

        await hands.until("suspended", lambda: limits(paused=True, max_lag=2))
        assert "spec.suspend" in (await client.limits())[0].reason

        async def shown() -> bool:
            return "Suspended" in await hands.kubectl("get", "trainingrun")

        await hands.until("kubectl get shows it", shown)
        header, row = (await hands.kubectl("get", "trainingrun")).splitlines()
        assert header.split()[:5] == ["NAME", "PHASE", "RELEASE", "VERSION", "P95STALE"]
        assert "main@10" in row
        spec = training_run(
            suspend=False,
            objective={"maxStalenessVersions": 1},
            actors={"scaling": {"mode": "controller"}, "max": 3},
        )
        await hands.kubectl("apply", "--filename", "-", given=spec)
        await hands.until("resumed with the smaller budget", lambda: limits(paused=False, max_lag=1))
        # The scale subresource: kubectl, and any autoscaler, can speak to the run instead of to the Deployment.
        await hands.kubectl("scale", "trainingrun", RELEASE, "--replicas=3")

        async def scaled() -> bool:
            return await hands.replicas() == 3

        await hands.until("the run's replicas are the Deployment's", scaled)

        async def says_so() -> bool:
            found = await hands.get("trainingrun", RELEASE)
            return found["status"]["actors"].get("recommended") == 3 and found["status"]["phase"] == "Running"

        await hands.until("the status reports it", says_so)
        await hands.kubectl("delete", "trainingrun", RELEASE, "--timeout=20s")
        await hands.until("nothing is asked any more", lambda: limits(paused=False, max_lag=2))
        assert troubles(context) == ""


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"actors": {"min": 5, "max": 2}}, "min is above max"),
        ({"actors": {"replicas": 500, "max": 3, "scaling": {"mode": "controller"}}}, "replicas is above max"),
        ({"actors": {"replicas": 1, "min": 2, "scaling": {"mode": "controller"}}}, "replicas is below min"),
        ({"actors": {"replicas": 3}}, "scaling.mode controller only"),
        ({"actors": {"replicas": 3, "scaling": {"mode": "advise"}}}, "scaling.mode controller only"),
        ({"actors": {"scaling": {"mode": "autopilot"}}}, "Unsupported value"),
        ({"objective": {"maxStalenessVersion": 1}}, "unknown field"),
    ],
)
async def test_invalid_training_run_is_refused_by_the_api_server(
    hands: Hands, spec: dict[str, object], why: str
) -> None:
    with pytest.raises(CommandError, match=why):
        await hands.kubectl("apply", "--filename", "-", "--validate=strict", given=training_run(**spec))


async def test_admission_continues_without_its_role_and_uses_it_once_restored(
    make: Callable[[], ServiceContext], services: Services, hands: Hands
) -> None:
    await hands.install(server_side=True)
    services.actors = {f"{ACTORS}-0": {"serving_step": 10.0}}
    await hands.kubectl("delete", "role", ACCOUNT)
    async with admission(make, services, "controller") as context:
        await until(lambda: "renew the Lease" in troubles(context))
        client = AdmissionClient(channel_of_test(context, "admission"))
        await client.set_paused(paused=True, reason="still possible")
        assert (await client.limits())[0].paused
        await client.set_paused(paused=False, reason="")
        assert context.stats.value(statistics.KUBERNETES_LEADER) == 0.0
        await hands.kubectl("apply", "--server-side", "--filename", "-", given=role())

        async def scaled() -> bool:
            return await hands.replicas() == 2

        await hands.until("the role is back, and so is the controller", scaled)
        await until(lambda: troubles(context) == "")


@pytest.mark.parametrize("mode", ["observe", "controller"])
async def test_the_role_grants_what_is_needed_and_nothing_else(hands: Hands, mode: Mode) -> None:
    await hands.kubectl("apply", "--server-side", "--filename", "-", given=role(mode=mode))
    account = f"--as=system:serviceaccount:{hands.release.namespace}:{ACCOUNT}"

    async def may(*what: str) -> bool:
        try:
            return (await hands.kubectl("auth", "can-i", account, *what)).strip() == "yes"
        except CommandError:
            return False

    assert await may("list", "pods")
    assert await may("get", f"deployments.apps/{ACTORS}")
    assert await may("patch", f"deployments.apps/{ACTORS}", "--subresource=scale") == (mode == "controller")
    for refused in (
        ("get", "secrets"),
        ("list", "configmaps"),
        ("delete", "pods"),
        ("patch", f"deployments.apps/{ACTORS}"),
        ("patch", "deployments.apps/other", "--subresource=scale"),
        ("update", "leases.coordination.k8s.io/other"),
        ("patch", f"trainingruns.tidegate.dev/{RELEASE}"),
        ("list", "nodes"),
        ("list", "pods", "--namespace=kube-system"),
    ):
        assert not await may(*refused), refused
