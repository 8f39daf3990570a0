"""Checkpoints partial rollouts to PROGRESS, so that they survive their actor (I10).

Consumes: partial groups. Produces: one message a task, each replacing the one before, and an empty one when the task is
done. Waits for time. A checkpoint is an optimisation: where it cannot be written or read, its tokens are generated
again, which is counted.
"""

import asyncio
import itertools

from tidegate.actor.rollouts.episode import Group
from tidegate.catalogue import actor as statistics
from tidegate.core.errors import RecordError, TidegateError, UnavailableError
from tidegate.core.ids import TaskId
from tidegate.core.records import Task
from tidegate.runtime.races import is_set_within
from tidegate.runtime.service import ServiceContext
from tidegate.runtime.streams import Stored
from tidegate.wire.progress import Progress, check_progress, decode_progress, encode_progress

# Bytes per second that all checkpoints of an actor may cost the broker. Each repeats the whole task, so long rollouts
# are checkpointed less often.
BYTES_PER_S = 4 * 1024 * 1024
# A write that takes longer is abandoned; the next one contains more.
WRITE_DEADLINE_S = 5.0
# Replaces the checkpoint of a finished task, until the stream forgets it by age: no service may purge a stream.
CLEARED = b""
# A failed read loses all tokens of a task, and reads are likely just after a broker outage, when tasks are redelivered.
READ_ATTEMPTS = 3
READ_PAUSE_S = 0.25


class ProgressCheckpoints:
    """Bounded by the tasks that run. One write at a time."""

    def __init__(self, context: ServiceContext, *, period_s: float) -> None:
        self._context = context
        self._period_s = period_s
        self._stream = context.topology.stream("PROGRESS")
        # Running groups with their last written revision; freed by ``untrack``.
        self._groups: dict[TaskId, Group] = {}
        self._written: dict[TaskId, tuple[int, int]] = {}
        # Tasks that have a message, or one on its way; freed when it is cleared, or when the task is released.
        self._kept: set[TaskId] = set()
        self._writes = itertools.count()
        self._lock = asyncio.Lock()
        # Set while nothing runs.
        self._idle = asyncio.Event()

    async def run(self) -> None:
        """Checkpoint all running groups that changed, until draining and nothing runs."""
        drain, pause_s = self._context.drain, self._period_s
        while not drain.requested or self._groups:
            if drain.requested:
                await is_set_within(self._idle, timeout_s=pause_s)
            else:
                await drain.sleep(pause_s)
            num_bytes = 0
            for group in list(self._groups.values()):
                num_bytes += await self.write(group)
            pause_s = max(self._period_s, num_bytes / BYTES_PER_S)

    def track(self, group: Group) -> None:
        """Track a group that starts, until ``untrack``."""
        self._groups[group.task.task_id] = group
        self._idle.clear()

    def untrack(self, task_id: TaskId) -> None:
        """Stop tracking a task; its message stays in PROGRESS."""
        self._groups.pop(task_id, None)
        self._written.pop(task_id, None)
        if not self._groups:
            self._idle.set()

    def release(self, task_id: TaskId) -> None:
        """Leave a task and its message to another actor."""
        self._kept.discard(task_id)

    async def write(self, group: Group) -> int:
        """Checkpoint a group unless it is unchanged; returns the bytes written."""
        async with self._lock:
            return await self._write(group)

    async def _write(self, group: Group) -> int:
        context, task, revision = self._context, group.task, group.revision()
        left = task.task_id not in self._groups  # the group may have ended while others were written
        if left or not group.num_tokens or self._written.get(task.task_id) == revision:
            return 0
        data = encode_progress(group.progress(now_s=context.clock.now_s()))
        # Before the first await: a task that ends meanwhile clears it afterwards.
        self._kept.add(task.task_id)
        try:
            await context.bus.publish(
                context.topology.progress(task.task_id),
                data,
                message_id=f"{task.task_id}:{task.attempt}:{context.instance}:{next(self._writes)}",
                deadline_s=WRITE_DEADLINE_S,
            )
        except TidegateError as error:
            context.stats.add(statistics.PROGRESS_NOT_KEPT)
            context.log.warning("progress_not_kept", task_id=task.task_id, error=str(error))
            return 0
        if task.task_id in self._groups:
            self._written[task.task_id] = revision
        context.stats.add(statistics.PROGRESS_KEPT)
        context.stats.add(statistics.PROGRESS_BYTES, len(data))
        return len(data)

    async def find(self, task: Task) -> Progress | None:
        """The checkpoint of a task, by another actor or by this one before a restart; None when there is none."""
        context = self._context
        try:
            stored = await self._read(task.task_id)
            if stored is None or stored.data == CLEARED:
                return None
            self._kept.add(task.task_id)
            progress = decode_progress(stored.data)
            check_progress(progress, task)
        except RecordError as error:
            context.stats.add(statistics.PROGRESS_REFUSED)
            context.log.warning("progress_refused", task_id=task.task_id, error=str(error))
            return None
        except TidegateError as error:
            context.stats.add(statistics.PROGRESS_UNREAD)
            context.log.warning("progress_unread", task_id=task.task_id, error=str(error))
            return None
        return progress

    async def _read(self, task_id: TaskId) -> Stored | None:
        subject = self._context.topology.progress(task_id)
        for _ in range(READ_ATTEMPTS - 1):
            try:
                return await self._context.bus.last(self._stream, subject)
            except UnavailableError:
                await asyncio.sleep(READ_PAUSE_S)
        return await self._context.bus.last(self._stream, subject)

    async def forget(self, task_id: TaskId) -> None:
        """Clear the message of a finished task. One that cannot be cleared expires by its age."""
        if task_id not in self._kept:
            return
        async with self._lock:
            self._kept.discard(task_id)
            try:
                await self._context.bus.publish(
                    self._context.topology.progress(task_id),
                    CLEARED,
                    message_id=f"{task_id}:cleared:{self._context.instance}:{next(self._writes)}",
                    deadline_s=WRITE_DEADLINE_S,
                )
            except TidegateError as error:
                self._context.stats.add(statistics.PROGRESS_NOT_CLEARED)
                self._context.log.warning("progress_not_cleared", task_id=task_id, error=str(error))
