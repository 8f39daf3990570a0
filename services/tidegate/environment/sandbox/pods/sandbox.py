"""``port.Sandbox`` by pods of a cluster: a run takes a ready pod, sends the program to its runner, discards the pod.

The pool and its connections live in an event loop on a thread of their own; calls wait for it. What a pod answers is
untrusted: bounded before it is kept, checked before it is a result.
"""

import asyncio
import os
import secrets
import signal
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

import msgspec

from tidegate.core.errors import ConfigError, TidegateError, UnavailableError
from tidegate.environment.sandbox.pods.attachment import Answer, Attacher
from tidegate.environment.sandbox.pods.objects import Owner, pod_limits
from tidegate.environment.sandbox.pods.pool import Log, PodPool, ReadyPod
from tidegate.environment.sandbox.port import (
    CODE_BYTES_MAX,
    STDIN_BYTES_MAX,
    SandboxLimits,
    SandboxResult,
    encoded,
)
from tidegate.environment.sandbox.self_test import break_out
from tidegate.environment.sandbox.settings import PodsIsolation
from tidegate.environment.sandbox.unavailable import isolation_unavailable
from tidegate.environment.sandbox.zygote import frames
from tidegate.runtime.kubernetes_api import Api, ClientSender, configured

FIELD_MANAGER = "tidegate-environment"
_REQUEST_S = 10.0
_HEARTBEAT_S = 20.0
# Past its deadline a run has this long to be killed and reported; then its connection is closed.
_GRACE_S = 5.0
# The kubelet reports the end of a container about a second later.
_END_REPORTED_S = 4.0
_OOM_KILLED = "OOMKilled"
# Secrets of a cluster, and sockets of its nodes: no pod may see them.
_OUTSIDE = (
    "/var/run/secrets/kubernetes.io/serviceaccount",
    "/run/containerd/containerd.sock",
    "/var/run/crio/crio.sock",
    "/var/run/docker.sock",
)
_FIX = "check runtime class, Pod Security and network policy of the sandbox's namespace (docs/sandbox.md)"
ResultT = TypeVar("ResultT")


class PodsAccess(msgspec.Struct, frozen=True):
    """How the cluster is reached, and who asks. ``kubeconfig``: None in a cluster, or where kubectl looks."""

    owner: Owner
    image: str
    in_cluster: bool
    kubeconfig: str | None = None


class _Connected:
    """The event loop's side, made and used in its thread only."""

    def __init__(self, api: Api, attacher: Attacher, pool: PodPool) -> None:
        self.api, self.attacher, self.pool = api, attacher, pool
        self.keeping = asyncio.get_running_loop().create_task(pool.run())

    async def close(self) -> None:
        self.keeping.cancel()
        await asyncio.gather(self.keeping, return_exceptions=True)
        await self.attacher.close()
        await self.api.close()


class PodsSandbox:
    """``port.IsolatedSandbox`` by a pod for each run."""

    def __init__(
        self, settings: PodsIsolation, limits: SandboxLimits, *, access: PodsAccess, max_runs: int, log: Log
    ) -> None:
        """``limits``: of a run that names none, and the most that one may ask for.

        ``max_runs`` programs run at once, further callers wait.
        """
        self._settings, self._access, self._log = settings, access, log
        self._default, self._limits = limits, pod_limits(limits)
        self._places = threading.BoundedSemaphore(max_runs)
        self._starting = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._connected: _Connected | None = None
        self._tested = self._closed = False
        self._calls: set[Future[Any]] = set()

    def start(self) -> None:
        """Start pods, and let test programs try to break out of some; later calls return at once.

        Raises:
            IsolationUnavailableError: such pods cannot be made, or do not isolate.
            UnavailableError: the cluster did not answer, or started no pod in time.
        """
        with self._starting:
            if self._tested:
                return
            connected = self._connection()
            reached = self._await(self._reaches(connected))
            break_out(
                lambda code, limits: self._run(connected, code.encode(), b"", limits),
                outside=_OUTSIDE,
                fix=_FIX,
            )
            self._tested = True
        if reached:
            self._log.warning(
                "sandbox_network_open",
                why="a sandbox pod reaches the API server: no network policy is enforced in its namespace; programs "
                "are held by the filter of system calls alone",
                namespace=self._settings.namespace,
            )

    def run_python(self, code: str, *, stdin: str = "", limits: SandboxLimits | None = None) -> SandboxResult:
        """Run ``code`` as ``__main__`` in a pod of its own and wait for its end.

        Raises:
            ConfigError: ``limits`` are beyond what the pods are made for.
            IsolationUnavailableError: programs cannot be isolated.
            RecordError: the code or ``stdin`` is too large, or no UTF-8.
            UnavailableError: there was no pod in time, or the run was lost; the same call may succeed.
        """
        code_bytes = encoded("code", code, bytes_max=CODE_BYTES_MAX)
        stdin_bytes = encoded("stdin", stdin, bytes_max=STDIN_BYTES_MAX)
        asked = limits or self._default
        made = self._limits
        for name in ("memory_bytes", "scratch_bytes", "output_bytes"):
            if getattr(asked, name) > getattr(made, name):
                raise ConfigError(
                    f"A run asks for {name} {getattr(asked, name):,}",
                    why=f"sandbox pods are made for {getattr(made, name):,}",
                    fix=f"raise environment.sandbox.{name}",
                )
        self.start()
        with self._places:
            return self._run(self._connection(), code_bytes, stdin_bytes, asked)

    def close(self) -> None:
        """End all runs and delete all pods; calls in progress raise ``UnavailableError``, and so do later ones."""
        self._closed = True
        for call in tuple(self._calls):
            call.cancel()
        with self._starting:
            connected, self._connected = self._connected, None
            if connected is not None:
                asyncio.run_coroutine_threadsafe(connected.close(), self._loop).result()
            if self._thread is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
                self._thread = None
            if not self._loop.is_closed():
                self._loop.close()

    # -- in the callers' threads -----------------------------------------------------------------------------------

    def _connection(self) -> _Connected:
        if self._closed:
            raise UnavailableError("The sandbox is closed", fix="open another one")
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop.run_forever, name="sandbox-pods", daemon=True)
            self._thread.start()
        if self._connected is None:
            self._connected = self._await(self._connect())
        return self._connected

    def _await(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """The result of ``work`` in the event loop."""
        call = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._calls.add(call)
        try:
            return call.result()
        except CancelledError as error:
            raise UnavailableError("The sandbox was closed during a run", fix="run it again") from error
        finally:
            self._calls.discard(call)

    def _run(self, connected: _Connected, code: bytes, stdin: bytes, limits: SandboxLimits) -> SandboxResult:
        request = frames.packed(msgspec.structs.asdict(limits), (code, stdin))
        head, parts = self._await(_on_a_pod(connected, request, limits))
        return _result_of(head, parts)

    # -- in the event loop -----------------------------------------------------------------------------------------

    async def _connect(self) -> _Connected:
        access, settings = self._access, self._settings
        configuration = await configured(in_cluster=access.in_cluster, kubeconfig=access.kubeconfig)
        from kubernetes.aio import client, stream

        api = Api(
            ClientSender(client.ApiClient(configuration), deadline_s=_REQUEST_S), field_manager=FIELD_MANAGER
        )
        attacher = Attacher(
            # Pings keep an idle connection open where something between here and the API server closes such ones.
            stream.WsApiClient(configuration, heartbeat=_HEARTBEAT_S),
            connect_s=_REQUEST_S,
            part_bytes_max=self._limits.output_bytes,
        )
        pool = PodPool(
            api, attacher, settings, self._limits, owner=access.owner, image=access.image, log=self._log
        )
        return _Connected(api, attacher, pool)

    async def _reaches(self, connected: _Connected) -> bool:
        request = frames.packed({"reach": True}, (b"", b""))
        head, _ = await _on_a_pod(connected, request, SandboxLimits())
        _refused(head)
        return head.get("reached") is True


async def _on_a_pod(connected: _Connected, request: bytes, limits: SandboxLimits) -> Answer:
    """The answer of a fresh pod's runner.

    Raises:
        TidegateError: as ``PodPool.take``; or the run was lost.
    """
    pod = await connected.pool.take()
    try:
        return await pod.attachment.exchange(request, deadline_s=limits.wall_s + _GRACE_S)
    except UnavailableError as error:
        if not pod.attachment.has_ended():
            raise
        return await _end_of(connected.pool, pod, error), []
    finally:
        connected.pool.discard(pod)


async def _end_of(pool: PodPool, pod: ReadyPod, lost: UnavailableError) -> dict[str, Any]:
    """The head of the answer that a runner could not give because the kernel ended its container for its memory.

    Raises:
        UnavailableError: the container ended otherwise; the run may be repeated.
    """
    deadline_s = asyncio.get_running_loop().time() + _END_REPORTED_S
    while True:
        try:
            ended = (await pool.read(pod)).terminated()
        except TidegateError:
            raise lost from None
        if ended is not None and ended.reason == _OOM_KILLED:
            return {"exit_status": -signal.SIGKILL, "limit": "memory"} | _NOTHING_MEASURED
        if ended is not None or asyncio.get_running_loop().time() > deadline_s:
            why = f"{lost.why}; its container ended: {ended.reason} {ended.message}" if ended else lost.why
            raise UnavailableError(lost.what, why=why.strip(), fix=lost.fix) from lost
        await asyncio.sleep(0.2)


_NOTHING_MEASURED = {"stdout_bytes": 0, "stderr_bytes": 0, "cpu_s": 0.0, "wall_s": 0.0}


def _refused(head: dict[str, Any]) -> None:
    """Raise what a runner reports instead of a result."""
    if "refused" in head:
        raise isolation_unavailable(str(head["refused"])[:500], fix=_FIX)
    if "failed" in head:
        raise UnavailableError(
            "A run in a sandbox pod could not be isolated", why=str(head["failed"])[:500], fix="run it again"
        )


def _result_of(head: dict[str, Any], parts: list[bytes]) -> SandboxResult:
    """The result that a runner reports, of a program that may have taken the runner over: checked as any input."""
    _refused(head)
    stdout, stderr = (part.decode(errors="replace") for part in (*parts, b"", b"")[:2])
    try:
        return msgspec.convert({**head, "stdout": stdout, "stderr": stderr}, SandboxResult)
    except msgspec.ValidationError as error:
        raise UnavailableError(
            "A sandbox pod's answer is no result", why=str(error), fix="run it again"
        ) from error


def access_from(settings: PodsIsolation, environ: Callable[[str], str | None]) -> PodsAccess:
    """The names that the chart sets; outside of a cluster the kubeconfig that kubectl uses.

    Raises:
        ConfigError: the namespace is the worker's own, or no image is named.
    """
    own = environ("TIDEGATE_NAMESPACE") or ""
    if settings.namespace == own:
        raise ConfigError(
            f"environment.isolation.namespace is {own!r}, the namespace of the run itself",
            why="who may create pods in a namespace may read its Secrets",
            fix="give sandbox pods a namespace of their own",
        )
    image = settings.image or environ("TIDEGATE_SANDBOX_IMAGE") or ""
    if not image:
        raise ConfigError(
            "environment.isolation names no image",
            why="outside of the chart there is no default",
            fix="name one with Python 3.11 or later, such as python:3.11-slim-bookworm",
        )
    owner = Owner(
        release=environ("TIDEGATE_RELEASE") or "local",
        worker=environ("TIDEGATE_POD_NAME") or os.uname().nodename,
        life=secrets.token_hex(6),
    )
    return PodsAccess(
        owner=owner,
        image=image,
        in_cluster=bool(environ("KUBERNETES_SERVICE_HOST")) and not environ("KUBECONFIG"),
        kubeconfig=environ("KUBECONFIG"),
    )
