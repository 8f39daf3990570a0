"""Pods that wait for a program: each is created, offered, taken by one run, and deleted.

Bounded: ``warm`` slots, each with one pod that starts or waits. A taken pod leaves its slot, which starts another one;
``discard`` deletes it. So there are at most ``warm`` pods and those of the runs in progress, whose number the sandbox
bounds, apart from those that the cluster is still deleting.
"""

import asyncio
import contextlib
import random
import secrets
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from tidegate.core.errors import ConfigError, NotFoundError, TidegateError, UnavailableError
from tidegate.environment.sandbox.pods.attachment import Attacher, Attachment
from tidegate.environment.sandbox.pods.objects import (
    USER_IDS,
    Owner,
    PodLimits,
    SandboxPod,
    left_behind,
    manifest,
)
from tidegate.environment.sandbox.port import IsolationUnavailableError
from tidegate.environment.sandbox.settings import PodsIsolation
from tidegate.environment.sandbox.unavailable import isolation_unavailable
from tidegate.runtime.kubernetes_api import Api, DeniedError

# A pod takes about a second to start; each waiting one costs a request in this time.
_POLL_S = 0.15
_GRACE_S = 1
_BACKOFF_S_MAX = 30.0
_SWEEP_S = 60.0
_SWEEP_AGAIN_S = 1.0
_CLOSE_S = 10.0
_FIX = (
    "see docs/sandbox.md for what the namespace and the account need; "
    "`kubectl -n {namespace} get pods,events` shows more"
)


class Log(Protocol):
    """The part of a structured logger that is used here."""

    def info(self, event: str, /, **values: object) -> object:
        """A line."""
        ...

    def warning(self, event: str, /, **values: object) -> object:
        """A line for operators."""
        ...


@dataclass(slots=True, eq=False)
class ReadyPod:
    """A pod whose runner waits for a request on ``attachment``."""

    name: str
    path: str
    attachment: Attachment
    taken: asyncio.Event = field(default_factory=asyncio.Event)


class PodPool:
    """Keeps pods ready while ``run`` runs; every call belongs to its event loop."""

    def __init__(
        self,
        api: Api,
        attacher: Attacher,
        settings: PodsIsolation,
        limits: PodLimits,
        *,
        owner: Owner,
        image: str,
        log: Log,
    ) -> None:
        """``api`` and ``attacher`` are closed by the caller; ``image`` is that of the pods."""
        self._api, self._attacher, self._settings, self._limits = api, attacher, settings, limits
        self._owner, self._image, self._log = owner, image, log
        self._path = f"/api/v1/namespaces/{settings.namespace}/pods"
        self._ready: deque[ReadyPod] = deque()
        self._changed = asyncio.Condition()
        self._problem: TidegateError | None = None
        # Why pods that start do not run yet, by name.
        self._delays: dict[str, str] = {}
        # Pods that exist as far as this pool knows, and those that the API server did not delete when asked.
        self._names: set[str] = set()
        self._undeleted: set[str] = set()
        self._sweep_now = asyncio.Event()
        self._deleting: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Keep pods ready until cancelled; then delete all of them."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._sweep())
                for _ in range(self._settings.warm):
                    tasks.create_task(self._keep_one())
        finally:
            await self._delete_all()

    async def take(self) -> ReadyPod:
        """A ready pod, which the caller discards after its run.

        Raises:
            IsolationUnavailableError: pods cannot be made; waiting does not help.
            UnavailableError: none became ready within ``start_deadline_s``.
        """
        deadline_s = self._settings.start_deadline_s
        try:
            async with asyncio.timeout(deadline_s), self._changed:
                while not self._ready:
                    if isinstance(self._problem, IsolationUnavailableError):
                        raise self._problem
                    await self._changed.wait()
                pod = self._ready.popleft()
                pod.taken.set()
                return pod
        except TimeoutError as error:
            problem = self._problem
            why = (
                f"{problem.what}: {problem.why}" if problem else ", ".join(sorted(set(self._delays.values())))
            )
            raise UnavailableError(
                f"No sandbox pod became ready within {deadline_s:g} s",
                why=why or "pods start more slowly than programs come",
                fix=self._fix() if why else "raise environment.isolation.warm",
            ) from error

    def discard(self, pod: ReadyPod) -> None:
        """Delete a pod after its run, in the background."""
        task = asyncio.get_running_loop().create_task(self._ended(pod))
        self._deleting.add(task)
        task.add_done_callback(self._deleting.discard)

    async def read(self, pod: ReadyPod) -> SandboxPod:
        """The pod as the cluster sees it.

        Raises:
            TidegateError: it is gone, or the API server did not answer.
        """
        return await self._api.get(pod.path, SandboxPod)

    async def _keep_one(self) -> None:
        """One slot: a pod that starts, waits, and is replaced once it is taken or too old."""
        failures = 0
        while True:
            try:
                pod = await self._started()
            except TidegateError as error:
                failures += 1
                await self._note(error)
                await asyncio.sleep(min(0.5 * 2**failures, _BACKOFF_S_MAX))
                continue
            failures = 0
            await self._note(None)
            if not await self._taken(pod):
                await self._ended(pod)

    async def _ended(self, pod: ReadyPod) -> None:
        await pod.attachment.close()
        await self._delete(pod.name)

    async def _taken(self, pod: ReadyPod) -> bool:
        """Offer a pod until it is taken; False once it is too old, or its runner is gone."""
        async with self._changed:
            self._ready.append(pod)
            self._changed.notify()
        loop = asyncio.get_running_loop()
        waiting = {loop.create_task(pod.taken.wait()), loop.create_task(pod.attachment.ended())}
        # Not all at once, where they were made at once.
        timeout_s = self._settings.lifetime_s * random.uniform(0.9, 1.0)
        try:
            await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        if not pod.taken.is_set():
            self._ready.remove(pod)
        return pod.taken.is_set()

    async def _started(self) -> ReadyPod:
        """A new pod whose runner runs.

        Raises:
            IsolationUnavailableError: the cluster refuses such pods.
            UnavailableError: it did not start within ``start_deadline_s``, or the API server did not answer.
        """
        name = f"sandbox-{secrets.token_hex(6)}"
        path = f"{self._path}/{name}"
        body = manifest(
            name,
            self._owner,
            self._settings,
            self._limits,
            image=self._image,
            user_id=USER_IDS[0] + secrets.randbelow(USER_IDS[1] - USER_IDS[0]),
        )
        self._names.add(name)
        try:
            await self._api.create(self._path, body, SandboxPod)
        except TidegateError as error:
            if isinstance(error, UnavailableError):
                await self._delete(name)  # the request may have arrived
            self._names.discard(name)
            raise self._explained(error) from error
        try:
            await self._await_running(name, path)
            attachment = await self._attacher.attach(path)
            self._delays.pop(name, None)
            return ReadyPod(name, path, attachment)
        except TidegateError as error:
            self._delays.pop(name, None)
            await self._delete(name)
            if isinstance(error, DeniedError):
                raise self._explained(error) from error
            raise

    async def _await_running(self, name: str, path: str) -> None:
        deadline_s = time.monotonic() + self._settings.start_deadline_s
        while True:
            found = await self._api.get(path, SandboxPod)
            if found.is_running():
                return
            if found.delay():
                self._delays[name] = found.delay()
            if found.has_ended() or time.monotonic() > deadline_s:
                state = found.status.phase or "Pending"
                raise UnavailableError(
                    f"A sandbox pod is {state} instead of running",
                    why=found.delay() or f"{self._settings.start_deadline_s:g} s passed",
                    fix=self._fix(),
                )
            await asyncio.sleep(_POLL_S)

    def _explained(self, error: TidegateError) -> TidegateError:
        """What an answer of the API server means for a sandbox."""
        match error:
            case DeniedError() if "exceeded quota" in error.why:
                return UnavailableError(
                    "A sandbox pod exceeds the namespace's quota", why=error.why, fix=self._fix()
                )
            case DeniedError() | ConfigError() | NotFoundError():
                return isolation_unavailable(f"{error.what}: {error.why}", fix=self._fix())
            case _:
                return error

    def _fix(self) -> str:
        return _FIX.format(namespace=self._settings.namespace)

    async def _note(self, problem: TidegateError | None) -> None:
        """Remember why pods do not start; logged once for each reason."""
        if problem is not None and str(problem) != str(self._problem):
            self._log.warning("sandbox_pod_failed", error=str(problem))
        async with self._changed:
            self._problem = problem
            self._changed.notify_all()

    async def _sweep(self) -> None:
        """Delete what killed workers left behind, and what could not be deleted, at the start and from time to time."""
        while True:
            self._sweep_now.clear()
            for name in tuple(self._undeleted):
                await self._delete(name)
            try:
                pods = await self._api.list_all(self._path, SandboxPod, selector=self._owner.selector())
                lifetime_s = self._settings.lifetime_s + self._limits.wall_s + self._settings.start_deadline_s
                left = left_behind(pods, self._owner, now=datetime.now(UTC), lifetime_s=lifetime_s)
                for pod in left:
                    await self._delete(pod.metadata.name)
                if left:
                    self._log.info("sandbox_pods_swept", count=len(left))
            except TidegateError as error:
                await self._note(self._explained(error))
            await asyncio.sleep(_SWEEP_AGAIN_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SWEEP_S):
                    await self._sweep_now.wait()

    async def _delete(self, name: str) -> None:
        """Delete a pod; one that the API server does not delete now is swept later."""
        try:
            await self._api.delete(f"{self._path}/{name}", grace_s=_GRACE_S)
        except NotFoundError:
            pass
        except TidegateError as error:
            if name not in self._undeleted:
                self._log.warning("sandbox_pod_not_deleted", pod=name, error=str(error))
            self._undeleted.add(name)
            self._sweep_now.set()
            return
        self._names.discard(name)
        self._undeleted.discard(name)

    async def _delete_all(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await asyncio.gather(*self._deleting, *(self._delete(name) for name in tuple(self._names)))
