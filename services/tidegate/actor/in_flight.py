"""The tasks in flight in an actor, from delivery to acknowledgement.

Bounded by ``slots + prefetch`` tasks that wait or run; a place is freed when a rollout enters the publishing queue,
which is bounded. ``wakeup`` is set by every event that the generating loop waits for: a task, a policy, the drain.
"""

import asyncio

import msgspec

from tidegate.actor.engines.port import Rollouts
from tidegate.actor.finished_work import FinishedWork
from tidegate.actor.rollouts.outcomes import DroppedTask
from tidegate.core.records import Task
from tidegate.runtime.consumer import Delivery
from tidegate.runtime.races import is_set_within


class LeasedTask(msgspec.Struct, frozen=True, eq=False):
    """A task with its delivery, and when it was taken (seconds since the epoch)."""

    task: Task
    delivery: Delivery
    taken_at_s: float


class Finished(msgspec.Struct, frozen=True, eq=False):
    """A task with its rollouts to publish or its drop to report, after which it is acknowledged."""

    leased: LeasedTask
    result: Rollouts | DroppedTask


class InFlightTasks:
    """Tasks by state: waiting, running, or finished and not yet published."""

    def __init__(self, *, capacity: int, finished_max: int) -> None:
        """``capacity`` tasks wait or run, ``finished_max`` wait to be published."""
        self.wakeup = asyncio.Event()
        self.waiting: list[LeasedTask] = []
        self.running: list[LeasedTask] = []
        self.finished = FinishedWork[Finished](capacity=finished_max)
        self._capacity = capacity
        self._leased: dict[int, LeasedTask] = {}
        self._room = asyncio.Event()

    def room(self) -> int:
        """Number of tasks that may be taken now."""
        return max(0, self._capacity - len(self.waiting) - len(self.running))

    async def wait_for_room(self, *, timeout_s: float) -> None:
        """Return once a task was started or answered, or after ``timeout_s``."""
        self._room.clear()
        if self.room() > 0:
            return
        await is_set_within(self._room, timeout_s=timeout_s)

    def take(self, leased: LeasedTask) -> bool:
        """Add a delivered task; False, without a change, when it is in flight already.

        A broker that missed heartbeats while it was away delivers a task again. Acknowledging the first delivery
        acknowledges the second too, so the task is neither run twice nor left unanswered. Another message of the same
        task (``holds``: False) is one that was published again after the stream had forgotten its id.
        """
        if any(held.task.task_id == leased.task.task_id for held in self._leased.values()):
            return False
        self._leased[leased.delivery.sequence] = leased
        self.waiting.append(leased)
        self.wakeup.set()
        return True

    def holds(self, leased: LeasedTask) -> bool:
        """Whether its message is in flight, by this or an earlier delivery."""
        return leased.delivery.sequence in self._leased

    def start(self, positions: list[int]) -> list[LeasedTask]:
        """Move waiting tasks to running."""
        started = [self.waiting[position] for position in positions]
        chosen = set(positions)
        self.waiting = [leased for position, leased in enumerate(self.waiting) if position not in chosen]
        self.running += started
        return started

    def stop_running(self, leased: LeasedTask) -> None:
        """Free the place of a task that has stopped running; its lease lasts until it is answered."""
        if leased in self.running:
            self.running.remove(leased)
        self._room.set()

    def unanswered(self) -> list[LeasedTask]:
        """All tasks neither acknowledged nor released; each needs a heartbeat."""
        return list(self._leased.values())

    def answered(self, leased: LeasedTask) -> None:
        """Remove a task that was acknowledged or released for redelivery."""
        self._leased.pop(leased.delivery.sequence, None)
        if leased in self.waiting:
            self.waiting.remove(leased)
        self._room.set()
