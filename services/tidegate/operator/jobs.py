"""helm's work for the runs: at most one job a run, a bounded number of processes, retries with backoff.

A job makes its attempts by the one retry helper and ends with an outcome, which the next round writes into the run's
record. One that is stopped has none: what its helm did stays, and the next job goes on from there.
"""

import asyncio
import json
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from tidegate.admission.kubernetes.training_run import time_text
from tidegate.core.errors import TidegateError
from tidegate.operator.config import HelmConfig
from tidegate.operator.decisions import JobInFlight
from tidegate.operator.helm import (
    DEADLINE_MARGIN_S,
    HelmBusyError,
    HelmHookError,
    HelmResult,
    RunRefusedError,
    apply_command,
    failure_of,
    run_helm,
    uninstall_command,
)
from tidegate.operator.objects import ReleaseRecord, RunKey, WorkloadState
from tidegate.operator.plans import ReleasePlan
from tidegate.runtime.clock import Clock
from tidegate.runtime.files import replace_file
from tidegate.runtime.retrying import Backoff, FailedAttempt, UntilCancelled, retry

RunProgram = Callable[[Sequence[str], Path, float], Awaitable[HelmResult]]


class ReleaseCluster(Protocol):
    """What a job asks the API server for (``cluster.RunCluster``)."""

    async def hold(self, key: RunKey, workload: WorkloadState) -> None:
        """See ``RunCluster``."""
        ...

    async def is_foreign(self, key: RunKey) -> bool:
        """See ``RunCluster``."""
        ...

    async def delete_unfinished(self, key: RunKey) -> int:
        """See ``RunCluster``."""
        ...

    async def check_refusal(self, key: RunKey) -> str:
        """See ``RunCluster``."""
        ...

    async def delete_check(self, key: RunKey) -> None:
        """See ``RunCluster``."""
        ...


class JobOutcome(msgspec.Struct, frozen=True):
    """How a job ended. ``digest``: of the spec that it was for."""

    result: Literal["applied", "refused", "failed", "uninstalled"]
    digest: str
    at_s: float
    message: str = ""

    def into(self, record: ReleaseRecord) -> ReleaseRecord:
        """The record of the run after it."""
        replace, at = msgspec.structs.replace, time_text(self.at_s)
        match self.result:
            case "applied":
                return replace(
                    record, digest=self.digest, refused="", failed="", failed_at="", applied_at=at, message=""
                )
            case "refused":
                return replace(record, refused=self.digest, failed="", failed_at=at, message=self.message)
            case "failed":
                return replace(record, failed=self.digest, failed_at=at, message=self.message)
            case "uninstalled":
                return replace(record, exists=False, replicas={}, gpus=0, admitted=False)


class _Job:
    """One task of the loop. It is cancelled once: a second time would cancel the end of its helm."""

    def __init__(self, described: JobInFlight, task: asyncio.Task[JobOutcome]) -> None:
        self.described, self.task = described, task
        self._is_stopped = False

    def stop(self) -> None:
        if not self._is_stopped:
            self._is_stopped = True
            self.task.cancel()


class ReleaseJobs:
    """The jobs of all runs. Bounded by the runs that are observed, and ``config.processes`` helms at a time."""

    def __init__(
        self,
        cluster: ReleaseCluster,
        config: HelmConfig,
        clock: Clock,
        *,
        folder: Path,
        on_attempt: Callable[[RunKey, str, float, bool], None] = lambda _key, _verb, _seconds, _ok: None,
        on_retry: Callable[[RunKey, FailedAttempt], None] = lambda _key, _failed: None,
        run: RunProgram | None = None,
    ) -> None:
        """``folder``: for values and helm's caches. ``on_attempt``: after each helm, with verb, seconds, success."""
        self._cluster, self._config, self._clock = cluster, config, clock
        self._folder, self._on_attempt, self._on_retry = folder, on_attempt, on_retry
        self._run = run or _run_program
        self._processes = asyncio.Semaphore(config.processes)
        self._jobs: dict[RunKey, _Job] = {}

    def in_flight(self, key: RunKey) -> JobInFlight | None:
        """The job of a run; None where there is none."""
        job = self._jobs.get(key)
        return job.described if job is not None else None

    def apply(self, key: RunKey, plan: ReleasePlan, hold: Sequence[WorkloadState], *, is_new: bool) -> None:
        """Begin to install or upgrade a release. ``is_new``: none was applied yet for the run."""
        job = JobInFlight("apply", plan.digest)
        self._begin(key, job, lambda: self._apply(key, plan, hold, is_new=is_new))

    def uninstall(self, key: RunKey, *, is_new: bool) -> None:
        """Begin to remove a release. ``is_new``: as above; then an existing release may be another owner's."""
        self._begin(key, JobInFlight("uninstall"), lambda: self._uninstall(key, is_new=is_new))

    def stop(self, key: RunKey) -> None:
        """Ask the job of a run to end; it is in flight until its helm has ended."""
        if key in self._jobs:
            self._jobs[key].stop()

    def ended(self) -> dict[RunKey, JobOutcome]:
        """The outcomes of jobs that ended since the last call, once each; one that was stopped has none."""
        done = {key: job for key, job in self._jobs.items() if job.task.done()}
        for key in done:
            del self._jobs[key]
        return {key: job.task.result() for key, job in done.items() if not job.task.cancelled()}

    async def close(self) -> None:
        """Stop every job, and wait until their helms have ended."""
        for job in self._jobs.values():
            job.stop()
        await asyncio.gather(*(job.task for job in self._jobs.values()), return_exceptions=True)
        self._jobs.clear()

    def _begin(self, key: RunKey, job: JobInFlight, attempt: Callable[[], Awaitable[None]]) -> None:
        assert key not in self._jobs, f"two jobs of {key}"
        self._jobs[key] = _Job(job, asyncio.create_task(self._work(key, job, attempt)))

    async def _work(
        self, key: RunKey, job: JobInFlight, attempt: Callable[[], Awaitable[None]]
    ) -> JobOutcome:
        config = self._config
        try:
            await retry(
                attempt,
                Backoff(config.backoff_s, config.backoff_s_max),
                attempts=config.attempts,
                draining=UntilCancelled(),
                on_retry=lambda failed: self._on_retry(key, failed),
            )
        except RunRefusedError as error:
            return JobOutcome("refused", job.digest, self._clock.now_s(), error.what)
        except (TidegateError, OSError) as error:  # OSError: the values could not be written
            return JobOutcome("failed", job.digest, self._clock.now_s(), str(error))
        done = "applied" if job.kind == "apply" else "uninstalled"
        return JobOutcome(done, job.digest, self._clock.now_s())

    async def _apply(
        self, key: RunKey, plan: ReleasePlan, hold: Sequence[WorkloadState], *, is_new: bool
    ) -> None:
        """One attempt.

        Raises:
            RunRefusedError: the chart or its check refuses the run, or the release has another owner.
            TidegateError: another attempt may help.
        """
        cluster = self._cluster
        if is_new and await cluster.is_foreign(key):
            raise RunRefusedError(
                f"there is a Helm release {key.name} in {key.namespace} that this operator did not make. Uninstall it, "
                "or give the TrainingRun another name"
            )
        for workload in hold:
            await cluster.hold(key, workload)
        values = self._folder / f"{key.namespace}.{key.name}.json"
        replace_file(values, json.dumps(plan.values).encode(), mode=0o600)
        try:
            await self._helm(key, apply_command(self._config, key, values=values))
        except HelmBusyError:
            await cluster.delete_unfinished(key)  # this operator is the only one who writes the release
            raise
        except HelmHookError as error:
            refusal = await cluster.check_refusal(key)
            if refusal:
                raise RunRefusedError(refusal) from error
            raise
        finally:
            values.unlink(missing_ok=True)

    async def _uninstall(self, key: RunKey, *, is_new: bool) -> None:
        if is_new and await self._cluster.is_foreign(key):
            return
        await self._helm(key, uninstall_command(self._config, key))
        await self._cluster.delete_check(key)

    async def _helm(self, key: RunKey, command: Sequence[str]) -> None:
        async with self._processes:
            started_s = self._clock.monotonic_s()
            ok = False
            try:
                deadline_s = self._config.timeout_s + DEADLINE_MARGIN_S
                result = await self._run(command, self._folder, deadline_s)
                ok = result.exit_code == 0
            finally:
                self._on_attempt(key, command[1], self._clock.monotonic_s() - started_s, ok)
        if not ok:
            raise failure_of(result, key)


async def _run_program(command: Sequence[str], home: Path, deadline_s: float) -> HelmResult:
    return await run_helm(command, home=home, deadline_s=deadline_s)


def private_folder() -> "tempfile.TemporaryDirectory[str]":
    """A folder of this process alone, for values and helm's caches."""
    return tempfile.TemporaryDirectory(prefix="tidegate-operator-")
