"""A Kubernetes API server for sandbox pods: create, get, list, delete, attach, with faults that a test sets.

It serves from a thread of its own. ``Runner`` is what a pod's container does: ``Obliging`` answers from a function;
``Contained`` runs the real runner on this machine.
"""

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from aiohttp import WSMsgType, web

from tests.support.broker import free_port
from tests.support.kubernetes import Json
from tidegate.environment.sandbox.zygote import frames

NAMESPACE = "sandboxes"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
MAIN = "program.run("
# As on a kernel without Landlock, such as gVisor's.
WITHOUT_LANDLOCK = "in_pod.landlock.version = lambda: 0\nprogram.run("
Reply = Callable[[dict[str, Any], str], bytes]


def result(stdout: str = "", **head: object) -> bytes:
    """A runner's answer."""
    ended = {"exit_status": 0, "limit": None, "stdout_bytes": len(stdout), "stderr_bytes": 0}
    return frames.packed(ended | {"cpu_s": 0.1, "wall_s": 0.1} | head, (stdout.encode(), b""))


def oblige(head: dict[str, Any], code: str) -> bytes:
    """Pass the self-test, and let every other program print "ran"."""
    if "reach" in head:
        return frames.packed({"reached": False}, ())
    if "breaches" in code:
        return result("[]")
    if "time.sleep(600)" in code:
        return result(exit_status=-9, limit="wall" if "setsid" in code else "memory")
    return result("ran")


class Runner(Protocol):
    """One container."""

    async def write(self, data: bytes) -> None:
        """To its stdin."""
        ...

    def output(self) -> AsyncIterator[bytes]:
        """Its stdout, until it ends."""
        ...

    async def close(self) -> None:
        """End its stdin, and it with that."""
        ...


class Obliging:
    """Answers once by a function, when the request is complete."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._received = b""
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()

    async def write(self, data: bytes) -> None:
        self._received += data
        parsed = frames.parse(self._received, part_bytes_max=1 << 20)
        if parsed is not None:
            head, (code, _) = parsed
            self._answers.put_nowait(await asyncio.to_thread(self._reply, head, code.decode()))

    async def output(self) -> AsyncIterator[bytes]:
        while data := await self._answers.get():
            yield data

    async def close(self) -> None:
        self._answers.put_nowait(b"")


class Contained:
    """The command of the pod, in namespaces on this machine."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout

    @classmethod
    async def start(cls, pod: Json, *, landlock: bool) -> "Contained":
        (container,) = pod["spec"]["containers"]
        scratch = next(each for each in pod["spec"]["volumes"] if each["name"] == "scratch")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.support.contained_runner",
            str(container["securityContext"]["runAsUser"]), str(scratch["emptyDir"]["sizeLimit"]),
            *(part if landlock else part.replace(MAIN, WITHOUT_LANDLOCK) for part in container["command"]),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        return cls(process)

    async def write(self, data: bytes) -> None:
        self._stdin.write(data)
        await self._stdin.drain()

    async def output(self) -> AsyncIterator[bytes]:
        while data := await self._stdout.read(1 << 16):
            yield data

    async def close(self) -> None:
        self._stdin.close()
        try:
            async with asyncio.timeout(10):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()


async def _others_end() -> None:
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)


class SandboxCluster:
    """The server. What a test sets: ``start_s`` of a pod, ``refusal`` of a request by its method and end, ``stuck``."""

    def __init__(self, *, reply: Reply | None = oblige) -> None:
        """``reply``: of each pod's runner; None runs the real one."""
        self.reply = reply
        self.start_s = 0.05
        self.refusals: dict[tuple[str, str], tuple[int, str]] = {}
        # Why pods stay pending: a condition and a container's state.
        self.stuck = ""
        # How a container ends whose runner gives no answer.
        self.end_reason = "Error"
        self.landlock = True
        self.pods: dict[str, Json] = {}
        self.created: list[Json] = []
        self.deleted: list[str] = []
        self.attached: list[str] = []
        self.detached: list[str] = []
        self.port = free_port()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._runner: web.AppRunner | None = None

    # -- what a test says and asks ---------------------------------------------------------------------------------

    def leave_behind(
        self, name: str, labels: dict[str, str], *, phase: str = "Running", age_s: float = 0.0
    ) -> None:
        made = datetime.fromtimestamp(time.time() - age_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        metadata = {"name": name, "labels": labels, "creationTimestamp": made}
        self.pods[name] = {"metadata": metadata, "status": {"phase": phase}}

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result(10)

    def start_again(self) -> None:
        asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result(10)

    def stop(self) -> None:
        if self._runner is not None:
            asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
            self._runner = None

    def close(self) -> None:
        self.stop()
        asyncio.run_coroutine_threadsafe(_others_end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # -- the server ------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        app = web.Application()
        app.router.add_get(PODS + "/{name}/attach", self._attach)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    def _refused(self, request: web.Request) -> web.Response | None:
        for (method, end), (status, message) in self.refusals.items():
            if request.method == method and request.path.endswith(end):
                return web.json_response({"kind": "Status", "message": message}, status=status)
        return None

    async def _answer(self, request: web.Request) -> web.Response:
        refused = self._refused(request)
        if refused is not None:
            return refused
        name = request.path.removeprefix(PODS).strip("/")
        match request.method:
            case "POST" if not name:
                pod: Json = await request.json()
                pod["status"] = {"phase": "Pending"}
                pod["metadata"]["creationTimestamp"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                self.pods[pod["metadata"]["name"]] = pod
                self.created.append(json.loads(json.dumps(pod)))
                self._loop.call_later(self.start_s, self._started, pod)
                return web.json_response(pod, status=201)
            case "GET" if not name:
                return web.json_response({"items": list(self.pods.values()), "metadata": {}})
            case "GET" if name in self.pods:
                return web.json_response(self.pods[name])
            case "DELETE" if name in self.pods:
                self.deleted.append(name)
                return web.json_response(self.pods.pop(name))
            case _:
                return web.json_response({"kind": "Status", "message": f"no {request.path}"}, status=404)

    def _started(self, pod: Json) -> None:
        if not self.stuck:
            pod["status"] = {"phase": "Running"}
            return
        waiting = {"reason": self.stuck, "message": "as the test says"}
        pod["status"]["containerStatuses"] = [{"state": {"waiting": waiting}}]

    async def _attach(self, request: web.Request) -> web.StreamResponse:
        refused = self._refused(request)
        if refused is not None:
            return refused
        name = request.match_info["name"]
        pod = self.pods[name]
        socket = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
        await socket.prepare(request)
        self.attached.append(name)
        runner: Runner = (
            await Contained.start(pod, landlock=self.landlock) if self.reply is None else Obliging(self.reply)
        )
        reading = asyncio.create_task(self._forward(runner, socket, pod))
        try:
            async for message in socket:
                if message.type is WSMsgType.BINARY and message.data[0] == 0:
                    await runner.write(message.data[1:])
        finally:
            self.detached.append(name)
            await runner.close()
            await reading
        return socket

    async def _forward(self, runner: Runner, socket: web.WebSocketResponse, pod: Json) -> None:
        async for data in runner.output():
            if data == b"lost":
                ended = {"reason": self.end_reason, "exitCode": 137}
                pod["status"] = {"phase": "Failed", "containerStatuses": [{"state": {"terminated": ended}}]}
                await socket.close()
                return
            if not socket.closed:
                await socket.send_bytes(b"\x01" + data)
