"""A Kubernetes API server of a few paths: objects in a dict, resource versions, managed fields, and faults.

``requests`` keeps what admission sends, ``selectors`` by path the label selectors that it lists with. ``deny`` answers
403 to what begins with a path, ``hang`` never answers.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, cast

from aiohttp import web

from tests.support.broker import free_port
from tidegate.runtime.kubernetes_api import APPLY_PATCH

Json = dict[str, Any]
NAMESPACE = "rl"
APPS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
SETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
EVENTS = f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events"
AUTOSCALERS = f"/apis/autoscaling/v2/namespaces/{NAMESPACE}/horizontalpodautoscalers"
SCALED_OBJECTS = f"/apis/keda.sh/v1alpha1/namespaces/{NAMESPACE}/scaledobjects"
RUNS = f"/apis/tidegate.dev/v1alpha1/namespaces/{NAMESPACE}/trainingruns"
_KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: fake
clusters: [{{name: fake, cluster: {{server: "{server}"}}}}]
users: [{{name: fake, user: {{token: none}}}}]
contexts: [{{name: fake, context: {{cluster: fake, user: fake}}}}]
"""
LABELS = {"app.kubernetes.io/instance": "t", "app.kubernetes.io/component": "actor"}


class FakeApi:
    """The server and its objects by path."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.lists = {PODS, APPS, LEASES, EVENTS, AUTOSCALERS}
        self.requests: list[tuple[str, str, Json]] = []
        self.selectors: dict[str, set[str]] = {}
        self.denied: set[str] = set()
        self.hangs = False
        # Off: as for what was applied server-side without replicas.
        self.notes_scalers = True
        self.port = free_port()
        self._version = 0
        # What each manager applied last, by path and manager.
        self._applied_by: dict[tuple[str, str], Json] = {}
        # As the chart makes it: without a holder.
        self.put(f"{LEASES}/t-admission-leader", {"metadata": {"name": "t-admission-leader"}})

    @property
    def kubeconfig(self) -> str:
        """The text of a kubeconfig for this server."""
        return _KUBECONFIG.format(server=f"http://127.0.0.1:{self.port}")

    # -- what a test says ------------------------------------------------------------------------------------------

    def deployment(self, name: str, replicas: int) -> None:
        self.put(
            f"{APPS}/{name}",
            {
                "metadata": {"name": name, "uid": f"uid-{name}", "managedFields": []},
                "spec": {"replicas": replicas, "selector": {"matchLabels": LABELS}},
                "status": {"replicas": replicas, "readyReplicas": replicas},
            },
        )

    def stateful_set(self, name: str, replicas: int) -> None:
        self.put(f"{SETS}/{name}", {"metadata": {"name": name}, "spec": {"replicas": replicas}})

    def pod(self, name: str, **annotations: str) -> None:
        self.put(f"{PODS}/{name}", {"metadata": {"name": name, "labels": LABELS, "annotations": annotations}})

    def strange_pod(self, name: str) -> None:
        """A pod of the namespace that is no actor of the release."""
        labels = {**LABELS, "app.kubernetes.io/instance": "other"}
        self.put(f"{PODS}/{name}", {"metadata": {"name": name, "labels": labels, "annotations": {}}})

    def autoscaler(self, name: str, *, target: str) -> None:
        reference = {"kind": "Deployment", "name": target}
        self.put(f"{AUTOSCALERS}/{name}", {"metadata": {"name": name}, "spec": {"scaleTargetRef": reference}})

    def training_run(self, name: str, **spec: object) -> None:
        self.lists.add(RUNS)
        self.put(
            f"{RUNS}/{name}", {"metadata": {"name": name, "generation": 1, "uid": "uid-run"}, "spec": spec}
        )

    def scale(self, name: str, replicas: int, *, manager: str, seconds_ago: float = 0.0) -> None:
        """As ``kubectl scale`` or an autoscaler does it."""
        at = datetime.fromtimestamp(datetime.now(UTC).timestamp() - seconds_ago, UTC)
        path = next(path for path in (f"{APPS}/{name}", f"{SETS}/{name}") if path in self.objects)
        found = self.objects[path]
        found["spec"]["replicas"] = replicas
        noted: Json = {
            "manager": manager,
            "operation": "Update",
            "subresource": "scale",
            "time": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "fieldsV1": {"f:spec": {"f:replicas": {}}},
        }
        found["metadata"]["managedFields"] = [noted] if self.notes_scalers else []
        self.put(path, found)

    def put(self, path: str, body: Json) -> None:
        self._version += 1
        body["metadata"]["resourceVersion"] = str(self._version)
        self.objects[path] = body

    # -- what a test asks ------------------------------------------------------------------------------------------

    def replicas(self, name: str, *, kind: str = APPS) -> int:
        return self.objects[f"{kind}/{name}"]["spec"]["replicas"]

    def annotations(self, pod: str) -> dict[str, str]:
        return self.objects[f"{PODS}/{pod}"]["metadata"]["annotations"]

    def patches(self, end: str) -> list[Json]:
        return [body for method, path, body in self.requests if method == "PATCH" and path.endswith(end)]

    def reasons(self) -> list[str]:
        return [event["reason"] for path, event in self.objects.items() if path.startswith(EVENTS)]

    def notes(self, reason: str) -> str:
        """What the Events of a reason say."""
        events = [event for path, event in self.objects.items() if path.startswith(EVENTS)]
        return "; ".join(event["note"] for event in events if event["reason"] == reason)

    def status(self, run: str) -> Json:
        return self.objects[f"{RUNS}/{run}"].get("status", {})

    def conditions(self, run: str) -> dict[str, tuple[str, str]]:
        found = cast("list[Json]", self.status(run).get("conditions", []))
        return {condition["type"]: (condition["status"], condition["reason"]) for condition in found}

    # -- the server ------------------------------------------------------------------------------------------------

    async def answer(self, request: web.Request) -> web.Response:
        text = await request.text()
        body: Json = json.loads(text) if text and text != "null" else {}
        path = request.path
        self.requests.append((request.method, path, body))
        if self.hangs:
            await asyncio.Event().wait()
        if any(path.startswith(denied) for denied in self.denied):
            return self._failure(403, f"{path} is forbidden")
        match request.method:
            case "GET" if path in self.lists:
                selector = request.query.get("labelSelector", "")
                self.selectors.setdefault(path, set()).add(selector)
                inside = [
                    found
                    for name, found in self.objects.items()
                    if name.rpartition("/")[0] == path and selected(found, selector)
                ]
                return web.json_response({"items": inside, "metadata": {}})
            case "GET" if path.endswith("/scale") and path.removesuffix("/scale") in self.objects:
                found = self.objects[path.removesuffix("/scale")]
                wanted = {"replicas": found["spec"]["replicas"]} if found["spec"]["replicas"] else {}
                return web.json_response({"metadata": {"name": found["metadata"]["name"]}, "spec": wanted})
            case "GET" if path in self.objects:
                return web.json_response(self.objects[path])
            case "POST" if path in self.lists:
                name = f"{path}/{body['metadata']['name']}"
                if name in self.objects:
                    return self._failure(409, "it exists")
                self.put(name, body)
                return web.json_response(body, status=201)
            case "PUT" if path in self.objects:
                return self._changed(path, body, body)
            case "PATCH" if path.endswith("/scale") and path.removesuffix("/scale") in self.objects:
                return self._scaled(path.removesuffix("/scale"), body, request.query["fieldManager"])
            case "PATCH" if (
                request.content_type == APPLY_PATCH and path.removesuffix("/status") in self.objects
            ):
                path = path.removesuffix("/status")
                applied = self._applied(path, body, request.query["fieldManager"])
                return self._changed(path, {}, applied)
            case "PATCH" if path.removesuffix("/status") in self.objects:
                path = path.removesuffix("/status")
                return self._changed(path, body, merged(self.objects[path], body))
            case _:
                return self._failure(404, f"{path} is not here")

    def _applied(self, path: str, body: Json, manager: str) -> Json:
        mine: Json = body["status"]
        status = applied_status(
            self.objects[path].get("status", {}), self._applied_by.get((path, manager), {}), mine
        )
        self._applied_by[path, manager] = mine
        return {**self.objects[path], "status": status}

    def _scaled(self, path: str, body: Json, manager: str) -> web.Response:
        answer = self._changed(path, body, self.objects[path])
        if answer.status == 200:
            self.scale(path.rpartition("/")[2], body["spec"]["replicas"], manager=manager)
        return answer

    def _changed(self, path: str, sent: Json, wanted: Json) -> web.Response:
        version = sent.get("metadata", {}).get("resourceVersion")
        if version is not None and version != self.objects[path]["metadata"]["resourceVersion"]:
            return self._failure(409, "the object has been modified")
        self.put(path, wanted)
        return web.json_response(wanted)

    @staticmethod
    def _failure(code: int, message: str) -> web.Response:
        return web.json_response({"kind": "Status", "code": code, "message": message}, status=code)

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[str]:
        """Its address, while it serves."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port).start()
        try:
            yield f"http://127.0.0.1:{self.port}"
        finally:
            await runner.cleanup()


def selected(found: Json, selector: str) -> bool:
    """Whether an object has every label of a selector of equalities."""
    labels = found["metadata"].get("labels", {})
    wanted = (part.partition("=") for part in selector.split(",") if part)
    return all(labels.get(key) == value for key, _, value in wanted)


def applied_status(status: Json, before: Json, mine: Json) -> Json:
    """A status after a server-side apply of ``mine`` by a manager who had applied ``before``.

    What the manager leaves out now is removed, what others applied stays; conditions are merged by their type.
    """

    def by_type(part: Json) -> dict[str, Json]:
        return {each["type"]: each for each in part.get("conditions", [])}

    kept = {key: value for key, value in status.items() if key not in before}
    conditions = {kind: each for kind, each in by_type(status).items() if kind not in by_type(before)}
    conditions |= by_type(mine)
    return {**merged(kept, mine), "conditions": list(conditions.values())}


def merged(into: Json, patch: Json) -> Json:
    """A JSON merge patch."""
    result = dict(into)
    for key, value in patch.items():
        before: object = result.get(key)
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(before, dict):
            result[key] = merged(cast("Json", before), cast("Json", value))
        else:
            result[key] = value
    return result
