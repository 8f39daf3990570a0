"""Writes checkpoints concurrently with training: one at a time, from a copy of the state."""

import asyncio
import math

from tidegate.catalogue import learner as statistics
from tidegate.core.errors import UnavailableError
from tidegate.core.ids import PolicyVersion
from tidegate.learner.checkpoint import Checkpoint, CheckpointFolder
from tidegate.learner.retrying import retryable_suppressed
from tidegate.learner.standby_hold import StandbyHold
from tidegate.runtime.service import ServiceContext
from tidegate.wire.clients.trajectory_store import TrajectoryStoreClient

# Of the time, at most, for checkpoints that are written before they are due; and the seconds between two at least.
EARLY_SHARE = 0.01
EARLY_PERIOD_S = 5.0
# Of a stop's time to a checkpoint's: the update in flight ends first, and a disk is not always as fast.
GRACE_FACTOR = 2.0


class CheckpointWriter:
    """At most one write in flight; ``begin`` waits for the previous one.

    ``hold``: what a learner that stands by has, for which the store keeps payloads. ``newest``: the last durable
    version. ``failed``: whether the last write left none. ``affordable_at_s``: when the next one costs at most
    ``EARLY_SHARE`` of the time since this one, by the monotonic clock.
    """

    def __init__(
        self, context: ServiceContext, folder: CheckpointFolder, store: TrajectoryStoreClient
    ) -> None:
        self._context = context
        self._folder = folder
        self._store = store
        self._task: asyncio.Task[None] | None = None
        self._requests: list[asyncio.Future[PolicyVersion]] = []
        self._closed = False
        self._told = ""
        self.hold = StandbyHold(marked=next(iter(folder.versions()), None))
        self.newest: PolicyVersion | None = None
        self.failed = False
        self.affordable_at_s = math.inf

    @property
    def requested(self) -> bool:
        """Whether a caller of ``request`` waits for a checkpoint that has not started."""
        return bool(self._requests)

    async def request(self) -> PolicyVersion:
        """Request a checkpoint at the next step boundary; returns its version once it is durable.

        Raises:
            UnavailableError: it could not be written, or training ended.
        """
        if self._closed:
            raise _stopped()
        request: asyncio.Future[PolicyVersion] = asyncio.get_running_loop().create_future()
        self._requests.append(request)
        return await request

    async def begin(self, checkpoint: Checkpoint, *, copied_in_s: float, early: bool) -> None:
        """Start to write a checkpoint; pending requests complete when it is durable.

        ``copied_in_s``: for which training stopped. ``early``: the next checkpoint replaces it.
        """
        await self.wait()
        requests, self._requests = self._requests, []
        self.affordable_at_s = math.inf
        self._task = asyncio.create_task(
            self._write(checkpoint, requests, copied_in_s=copied_in_s, early=early), name="checkpoint"
        )

    async def wait(self) -> None:
        """Wait for the write in flight."""
        if self._task is not None:
            await self._task
            self._task = None

    def close(self) -> None:
        """Training ended: fail the pending requests and every later one."""
        self._closed = True
        for request in self._requests:
            if not request.done():
                request.set_exception(_stopped())
        self._requests.clear()

    async def _write(
        self,
        checkpoint: Checkpoint,
        requests: list[asyncio.Future[PolicyVersion]],
        *,
        copied_in_s: float,
        early: bool,
    ) -> None:
        context = self._context
        version = checkpoint.progress.version
        try:
            started_s = context.clock.monotonic_s()
            path = await asyncio.to_thread(self._folder.write, checkpoint, early=early)
        except OSError as error:
            # A full disk must not end training; the cost of a crash grows until a write succeeds again.
            self.failed = True
            context.stats.add(statistics.CHECKPOINT_FAILURES)
            context.log.exception("checkpoint_failed", version=str(version))
            for request in requests:
                if not request.done():
                    request.set_exception(
                        UnavailableError("The checkpoint cannot be written", why=str(error))
                    )
            return
        self.newest, self.failed = version, False
        duration_s = context.clock.monotonic_s() - started_s
        self.affordable_at_s = started_s + max(EARLY_PERIOD_S, (copied_in_s + duration_s) / EARLY_SHARE)
        context.stats.set(statistics.CHECKPOINT_S, duration_s)
        context.stats.add(statistics.CHECKPOINTS)
        context.stats.label(statistics.CHECKPOINTED, str(version))
        context.log.info(
            "checkpoint_written", path=path.name, version=str(version), duration_s=round(duration_s, 3)
        )
        if (
            problem := grace_problem(duration_s, drain_timeout_s=context.settings.drain_timeout_s)
        ) != self._told:
            self._told = problem
            if problem:
                context.log.warning("drain_too_short", problem=problem)
        for request in requests:
            if not request.done():
                request.set_result(version)
        # A restore may use any kept checkpoint, so payloads stay until the oldest includes them.
        oldest, now_s = self._folder.versions()[0], context.clock.monotonic_s()
        safe = self.hold.mark(oldest, checkpoint.lineages, now_s=now_s)
        with retryable_suppressed():  # the next checkpoint repeats it
            await self._store.mark_checkpointed(safe)


def grace_problem(duration_s: float, *, drain_timeout_s: float) -> str:
    """Why a learner that is stopped would lose updates; empty where its last checkpoint fits into the drain.

    ``duration_s``: of the newest checkpoint. A learner that drains first ends its update, then writes a checkpoint.
    """
    if duration_s * GRACE_FACTOR <= drain_timeout_s:
        return ""
    wanted_s = math.ceil(duration_s * GRACE_FACTOR)
    return (
        f"a checkpoint takes {duration_s:.1f} s and a stop leaves {drain_timeout_s:g} s: the updates since the one"
        f" before would be computed again. Set drain_timeout_s to {wanted_s} (on Kubernetes the pods' grace follows it)"
    )


def _stopped() -> UnavailableError:
    return UnavailableError("The learner stopped before it wrote a checkpoint")
