"""Admission on this machine, acting on the real cluster with the rights of its Role and no others."""

import asyncio
import json
import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from tests.cluster.kube import ROOT, Namespace, run
from tests.support.broker import own_broker
from tests.support.reports import Services
from tests.support.service_harness import make_context
from tests.support.settings import make_settings
from tidegate.admission.kubernetes.rbac import rules
from tidegate.core.ids import RunId
from tidegate.runtime.bus import Bus
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.service import ServiceContext
from tidegate.wire.subjects import Topology

RELEASE, ACTORS, ACCOUNT = "t", "t-actor", "t-admission"
LEASE = "t-admission-leader"
LABELS = {"app.kubernetes.io/instance": RELEASE, "app.kubernetes.io/component": "actor"}
CRD = ROOT / "helm" / "tidegate" / "crds" / "trainingruns.yaml"


def role(*, mode: Any = "controller") -> dict[str, object]:
    """The Role of one mode, as the chart renders it."""
    granted = rules(mode=mode, deletion_cost=True, deployments=[ACTORS], lease=LEASE, run=RELEASE)
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": ACCOUNT},
        "rules": msgspec.to_builtins(granted),
    }


def deployment() -> dict[str, object]:
    """Pods that sleep and end at once, under the labels of actors; no replicas, as in the chart."""
    container = {
        "name": "actor",
        "image": "busybox:1.35",
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", "trap 'exit 0' TERM; while true; do sleep 1 & wait $!; done"],
        "resources": {"requests": {"cpu": "5m", "memory": "8Mi"}},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": ACTORS, "labels": LABELS},
        "spec": {
            "selector": {"matchLabels": LABELS},
            "template": {
                "metadata": {"labels": LABELS},
                "spec": {"containers": [container], "terminationGracePeriodSeconds": 5},
            },
        },
    }


@pytest.fixture
def release() -> Iterator[Namespace]:
    """A namespace with actors' pods and admission's ServiceAccount; gone afterwards."""
    name = f"tidegate-scaling-{uuid.uuid4().hex[:6]}"
    run("kubectl", "create", "namespace", name)
    release = Namespace(name, RELEASE)
    try:
        run("kubectl", "apply", "--server-side", "--filename", str(CRD))
        release.kubectl("create", "serviceaccount", ACCOUNT)
        release.kubectl("apply", "--server-side", "--filename", "-", given=json.dumps(role()))
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": LEASE}}
        release.kubectl("apply", "--server-side", "--filename", "-", given=json.dumps(lease))
        release.kubectl(
            "create", "rolebinding", ACCOUNT, "--role", ACCOUNT, "--serviceaccount", f"{name}:{ACCOUNT}"
        )
        yield release
    finally:
        run("kubectl", "delete", "namespace", name, "--wait=false")


@pytest.fixture
def kubeconfig(release: Namespace, tmp_path: Path) -> Path:
    """The cluster of KUBECONFIG, as the ServiceAccount."""
    config = yaml.safe_load(run("kubectl", "config", "view", "--raw", "--minify", "--flatten"))
    token = release.kubectl("create", "token", ACCOUNT).strip()
    config["users"] = [{"name": config["contexts"][0]["context"]["user"], "user": {"token": token}}]
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    broker = own_broker(tmp_path / "nats")
    topology = Topology(RunId("test-run"))
    bus = await Bus.connect(broker.url, name="test", topology=topology, clock=SystemClock())
    await bus.bootstrap(topology.streams(max_tasks=64))
    yield bus
    await bus.close()
    broker.kill()


@pytest.fixture
def make(
    tmp_path: Path, bus: Bus, release: Namespace, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], ServiceContext]:
    """An admission process with access to the cluster."""
    for name, value in {
        "TIDEGATE_KUBERNETES": "1",
        "TIDEGATE_RANK_ACTORS": "1",
        "TIDEGATE_NAMESPACE": release.namespace,
        "TIDEGATE_RELEASE": RELEASE,
        "TIDEGATE_POD_NAME": "t-admission-0",
        "TIDEGATE_ACTOR_DEPLOYMENTS": ACTORS,
        "TIDEGATE_CRD": "1",
    }.items():
        monkeypatch.setenv(name, value)
    settings = make_settings(tmp_path, broker_url="nats://unused", max_lag=2)
    account = str(kubeconfig)

    def made() -> ServiceContext:
        monkeypatch.setenv("KUBECONFIG", account)
        return make_context("admission", settings, bus=bus)

    return made


@pytest.fixture
def services() -> Services:
    return Services()


class Hands:
    """The operator's kubectl, in threads, so that it does not block the loops of admission."""

    def __init__(self, release: Namespace, kubeconfig: str) -> None:
        """``kubeconfig`` is the operator's."""
        self.release, self._kubeconfig = release, kubeconfig

    async def install(self, *, server_side: bool) -> None:
        """The actors, as Helm 4 and any server-side apply do it, or as Helm 3 does it."""
        how = ("apply", "--server-side") if server_side else ("create",)
        await self.kubectl(*how, "--filename", "-", given=deployment())

    async def kubectl(self, *arguments: str, given: object = None) -> str:
        """Run it in the namespace."""
        text = "" if given is None else json.dumps(given)
        return await asyncio.to_thread(
            self.release.kubectl, "--kubeconfig", self._kubeconfig, *arguments, given=text
        )

    async def get(self, kind: str, name: str = "") -> Any:
        """An object, or the items of a kind; None where there is no such object."""
        text = await self.kubectl(
            "get", kind, *([name] if name else []), "--ignore-not-found", "--output", "json"
        )
        found: Any = json.loads(text) if text.strip() else None
        return found if name or found is None else found["items"]

    async def until(self, what: str, holds: "Callable[[], Any]") -> None:
        """Poll until it holds; a hang fails the test."""
        try:
            async with asyncio.timeout(60.0):
                while not await holds():
                    await asyncio.sleep(0.2)
        except TimeoutError as error:
            raise AssertionError(f"{what}: not within a minute") from error

    async def replicas(self) -> int:
        """Requested replicas of the actors' Deployment."""
        return (await self.get("deployment", ACTORS))["spec"]["replicas"]

    async def pods(self) -> dict[str, dict[str, str]]:
        """Annotations of the remaining pods, by name."""
        return {
            pod["metadata"]["name"]: pod["metadata"].get("annotations", {})
            for pod in await self.get("pods")
            if "deletionTimestamp" not in pod["metadata"]
        }

    async def reasons(self) -> set[str]:
        """Reasons of all Events that admission wrote."""
        events = await self.get("events.events.k8s.io")
        return {
            event["reason"] for event in events if event["reportingController"] == "tidegate.dev/admission"
        }

    async def condition(self, kind: str) -> tuple[str, str] | None:
        """Status and reason of the TrainingRun's condition."""
        found = await self.get("trainingrun", RELEASE)
        conditions: list[Any] = found.get("status", {}).get("conditions", []) if found else []
        return next(((each["status"], each["reason"]) for each in conditions if each["type"] == kind), None)


@pytest.fixture
def hands(release: Namespace) -> Hands:
    return Hands(release, os.environ["KUBECONFIG"])
