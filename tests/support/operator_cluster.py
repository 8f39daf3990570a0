"""A cluster for the operator of many runs: its API server in memory, helm, and the admission of each release."""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from tests.support.kubernetes import applied_status, merged, selected
from tidegate.core.errors import ConflictError, NotFoundError, UnavailableError
from tidegate.operator.helm import HelmResult
from tidegate.operator.objects import RunKey
from tidegate.runtime.kubernetes_api import APPLY_PATCH

Json = dict[str, Any]
APPS = "/apis/apps/v1"
RUNS = "/apis/tidegate.dev/v1alpha1"
EVENTS = "/apis/events.k8s.io/v1"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/system/leases/tidegate-operator"
# Services of every release, and the plural of what holds their pods.
SERVICES = {
    "nats": "statefulsets",
    "admission": "statefulsets",
    "trajectory-store": "statefulsets",
    "learner": "statefulsets",
    "actor": "deployments",
}
PATH = re.compile(
    r"(?P<group>/(?:api|apis/[^/]+)/[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[a-z]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<part>status|scale))?"
)
# A part of a label selector: `status in (a,b)`.
IN_SET = re.compile(r"(\w+) in \(([^)]*)\)")
UNKNOWN_KINDS = ("jobsets", "leaderworkersets")


class OperatorCluster:
    """Objects by path. ``down``: nothing answers. ``unreadable``: namespaces that are refused.

    ``never_ready``: a workload whose pods of a new revision do not get ready.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.sent: list[tuple[str, str, Any]] = []
        self.down = False
        self.unreadable: set[str] = set()
        self.never_ready = ""
        self._version = 0
        self._created = 0
        self._applied: dict[tuple[str, str], Json] = {}
        self.put(LEASE, {"metadata": {"name": "tidegate-operator", "namespace": "system"}})

    def put(self, path: str, body: Json) -> None:
        self._version += 1
        kept: Json = json.loads(json.dumps(body))
        kept["metadata"]["resourceVersion"] = str(self._version)
        self.objects[path] = kept

    # -- what people and admission do -----------------------------------------------------------------------------

    def create(self, key: RunKey, **spec: Any) -> None:
        self._created += 1
        meta = {"uid": f"uid-{key}", "creationTimestamp": f"2026-01-01T00:00:{self._created:02d}Z"}
        given = {"run": {"run": "cartpole"}, **spec}
        self.put(
            run_path(key),
            {
                "metadata": {"name": key.name, "namespace": key.namespace, "generation": 1, **meta},
                "spec": given,
            },
        )

    def edit(self, key: RunKey, **spec: Any) -> None:
        found = self.objects[run_path(key)]
        found["spec"] = {**found["spec"], **spec}
        found["metadata"]["generation"] += 1
        self.put(run_path(key), found)

    def delete(self, key: RunKey) -> None:
        found = self.objects[run_path(key)]
        found["metadata"]["deletionTimestamp"] = "2026-01-01T01:00:00Z"
        self._end_if_free(run_path(key))

    def admission_says(self, key: RunKey, at: str = "2026-01-01T00:30:00Z", **conditions: str) -> None:
        """As the admission of a release applies its part of the status."""
        generation = self.objects[run_path(key)]["metadata"]["generation"]
        dated = [
            {"type": kind, "status": status, "reason": "Test", "message": "", "lastTransitionTime": at,
             "observedGeneration": generation}
            for kind, status in conditions.items()
        ]  # fmt: skip
        self._apply_status(run_path(key), "tidegate-admission", {"phase": "Running", "conditions": dated})

    # -- what a test asks -----------------------------------------------------------------------------------------

    def release(self, key: RunKey) -> Json:
        return cast("Json", self.objects[run_path(key)].get("status", {}).get("release", {}))

    def conditions(self, key: RunKey) -> dict[str, tuple[str, str]]:
        found = self.objects[run_path(key)].get("status", {}).get("conditions", [])
        return {each["type"]: (each["status"], each["reason"]) for each in found}

    def message(self, key: RunKey, kind: str) -> str:
        found = self.objects[run_path(key)]["status"]["conditions"]
        return next(each["message"] for each in found if each["type"] == kind)

    def replicas(self, key: RunKey) -> dict[str, int]:
        return {
            name: self.objects[set_path(key, name)]["spec"]["replicas"]
            for name in SERVICES
            if set_path(key, name) in self.objects
        }

    def reasons(self) -> list[str]:
        return [each["reason"] for path, each in self.objects.items() if path.startswith(EVENTS)]

    # -- the server -----------------------------------------------------------------------------------------------

    async def send(
        self, method: str, path: str, query: Mapping[str, str], body: Any, content_type: str
    ) -> bytes:
        """As an API server answers."""
        await asyncio.sleep(0)
        self.sent.append((method, path, body))
        found = PATH.fullmatch(path)
        assert found is not None, path
        if self.down or found["namespace"] in self.unreadable:
            raise UnavailableError("The Kubernetes API does not answer")
        if found["plural"] in UNKNOWN_KINDS:
            raise NotFoundError(path)
        answer = self._answer(method, found, query, body, content_type)
        return json.dumps(answer).encode()

    async def close(self) -> None:
        """There is nothing to close."""

    def _answer(
        self, method: str, found: re.Match[str], query: Mapping[str, str], body: Any, content_type: str
    ) -> Json:
        path = found[0].removesuffix("/status").removesuffix("/scale")
        match method:
            case "GET" if found["name"] is None:
                return {"items": self._listed(found, query.get("labelSelector", ""))}
            case "POST":
                self.put(f"{path}/{body['metadata']['name']}", body)
                return cast("Json", body)
            case _ if path not in self.objects:
                raise NotFoundError(path)
            case "GET":
                return self.objects[path]
            case "PUT":
                self._check_version(path, body)
                self.put(path, body)
            case "DELETE":
                del self.objects[path]
                return {}
            case "PATCH" if content_type == APPLY_PATCH:
                assert query["force"] == "true"
                self._apply_status(path, query["fieldManager"], body["status"])
            case _:
                self._check_version(path, body)
                self.put(path, merged(self.objects[path], body))
                self._follow(path)
                self._end_if_free(path)
        return self.objects.get(path, {})

    def _listed(self, asked: re.Match[str], selector: str) -> list[Json]:
        equalities = ",".join(part for part in IN_SET.sub("", selector).split(",") if part)
        inside = list[Json]()
        for path, each in self.objects.items():
            found = PATH.fullmatch(path)
            assert found is not None
            same = (found["group"], found["plural"]) == (asked["group"], asked["plural"])
            if same and asked["namespace"] in (None, found["namespace"]) and selected(each, equalities):
                inside.append(each)
        for label, values in IN_SET.findall(selector):
            wanted = values.split(",")
            inside = [each for each in inside if each["metadata"]["labels"].get(label) in wanted]
        return inside

    def _check_version(self, path: str, body: Json) -> None:
        version = body.get("metadata", {}).get("resourceVersion")
        if version is not None and version != self.objects[path]["metadata"]["resourceVersion"]:
            raise ConflictError(path)

    def _apply_status(self, path: str, manager: str, mine: Json) -> None:
        found = self.objects[path]
        status = applied_status(found.get("status", {}), self._applied.get((path, manager), {}), mine)
        self._applied[path, manager] = mine
        self.put(path, {**found, "status": status})

    def _end_if_free(self, path: str) -> None:
        meta = self.objects[path]["metadata"]
        if meta.get("deletionTimestamp") and not meta.get("finalizers"):
            del self.objects[path]

    # -- workloads ------------------------------------------------------------------------------------------------

    def make_workload(self, key: RunKey, service: str, *, revision: str) -> None:
        """As helm applies it: with a new revision, which its pods have at once unless it is held."""
        path = set_path(key, service)
        labels = {
            "app.kubernetes.io/name": "tidegate",
            "app.kubernetes.io/instance": key.name,
            "app.kubernetes.io/component": service,
        }
        before = self.objects.get(path, {})
        meta = {
            "name": f"{key.name}-{service}",
            "namespace": key.namespace,
            "labels": labels,
            "generation": 1,
        }
        spec = {"replicas": 1, **before.get("spec", {})}
        if service == "learner":
            spec["replicas"] = 1
        self.put(
            path,
            {"metadata": meta, "spec": {**spec, "revision": revision}, "status": before.get("status", {})},
        )
        self._follow(path)

    def _follow(self, path: str) -> None:
        """The controller of a workload: pods that are not held have the newest revision, and are ready."""
        found = self.objects[path]
        if not path.startswith(APPS):
            return
        spec, status = found["spec"], found.get("status", {})
        partition = spec.get("updateStrategy", {}).get("rollingUpdate", {}).get("partition", 0)
        revision, before = spec["revision"], status.get("currentRevision") or spec["revision"]
        held = spec.get("paused") or partition
        current = before if held else revision
        fails = found["metadata"]["name"] == self.never_ready and not held
        found["status"] = {
            "replicas": spec["replicas"],
            "readyReplicas": 0 if fails else spec["replicas"],
            "observedGeneration": found["metadata"]["generation"],
            "currentRevision": current,
            "updateRevision": revision,
            "updatedReplicas": spec["replicas"] if current == revision else 0,
        }


def run_path(key: RunKey) -> str:
    return f"{RUNS}/namespaces/{key.namespace}/trainingruns/{key.name}"


def set_path(key: RunKey, service: str) -> str:
    return f"{APPS}/namespaces/{key.namespace}/{SERVICES[service]}/{key.name}-{service}"


def secret_path(key: RunKey, revision: int) -> str:
    return f"/api/v1/namespaces/{key.namespace}/secrets/sh.helm.release.v1.{key.name}.v{revision}"


def values_of(path: str) -> Json:
    """The values in a file; none without a path."""
    return cast("Json", json.loads(Path(path).read_bytes())) if path else {}


class PretendedHelm:
    """In place of the program: it changes the cluster's objects at once. ``fails`` answers next, by name of release."""

    def __init__(self, cluster: OperatorCluster) -> None:
        self.cluster = cluster
        self.commands: list[list[str]] = []
        self.values: dict[RunKey, Json] = {}
        self.fails: dict[str, list[str]] = {}
        # Set: it works until it is set again.
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.working = 0
        self.working_max = 0

    async def __call__(self, command: Sequence[str], home: Path, deadline_s: float) -> HelmResult:
        """Run one command."""
        self.commands.append(list(command))
        self.working += 1
        self.working_max = max(self.working_max, self.working)
        try:
            flags = dict(part.split("=", 1) for part in command if part.startswith("--") and "=" in part)
            key = RunKey(flags["--namespace"], command[2])
            given = values_of(flags.get("--values", ""))
            await self.may_end.wait()
            return self._run(command[1], key, given)
        finally:
            self.working -= 1

    def _run(self, verb: str, key: RunKey, given: Json) -> HelmResult:
        failures = self.fails.get(key.name, [])
        if failures:
            return HelmResult(1, failures.pop(0))
        if verb == "uninstall":
            for service in SERVICES:
                self.cluster.objects.pop(set_path(key, service), None)
            self.values.pop(key, None)
            return HelmResult(0, "")
        self.values[key] = given
        revision = json.dumps(given["run"], sort_keys=True)
        for service in SERVICES:
            self.cluster.make_workload(key, service, revision=revision)
        return HelmResult(0, "")

    def of(self, verb: str) -> list[str]:
        """The releases that a verb was run for."""
        return [command[2] for command in self.commands if command[1] == verb]
