"""The desk: the tasks an actor holds, from delivery to acknowledgement.

Bounded by ``slots + prefetch`` tasks that wait or run; a place is freed when a rollout is handed to publishing, whose
own queue is bounded. One bell rings for everything that the generating loop may wait for: a task, a policy, the drain.
"""

import asyncio

import msgspec

from tidegate.actor.engines.port import Rollouts
from tidegate.actor.rollouts.outcomes import GivenUp
from tidegate.core.records import Task
from tidegate.runtime.consumer import Delivery


class Held(msgspec.Struct, frozen=True, eq=False):
    """A task with the delivery to answer, and when it was taken (seconds since the epoch)."""

    task: Task
    delivery: Delivery
    taken_at_s: float


class Finished(msgspec.Struct, frozen=True, eq=False):
    """A task with its rollouts, to be published, or with why it has none, to be settled; then acknowledged."""

    held: Held
    made: Rollouts | GivenUp


class Desk:
    """Tasks by where they are: waiting, running, or finished and on their way out."""

    def __init__(self, *, capacity: int, finished_max: int) -> None:
        """``capacity`` tasks wait or run, ``finished_max`` are on their way out."""
        self.bell = asyncio.Event()
        self.waiting: list[Held] = []
        self.running: list[Held] = []
        self.finished: asyncio.Queue[Finished | None] = asyncio.Queue(maxsize=finished_max)
        self._capacity = capacity
        self._held: dict[int, Held] = {}
        self._room = asyncio.Event()

    def room(self) -> int:
        """How many tasks may be taken now."""
        return max(0, self._capacity - len(self.waiting) - len(self.running))

    async def wait_for_room(self, *, timeout_s: float) -> None:
        """Return once a task was started or left, or after ``timeout_s``."""
        self._room.clear()
        if self.room() > 0:
            return
        try:
            await asyncio.wait_for(self._room.wait(), timeout=timeout_s)
        except TimeoutError:
            return

    def take(self, held: Held) -> bool:
        """A task arrived; False, and nothing changes, when it is here already.

        Heartbeats that a broker did not hear while it was away let it offer a task again. An answer to the first
        delivery answers the second too, so the task is neither run twice nor left unanswered.
        """
        if held.delivery.sequence in self._held:
            return False
        self._held[held.delivery.sequence] = held
        self.waiting.append(held)
        self.bell.set()
        return True

    def start(self, positions: list[int]) -> list[Held]:
        """Move waiting tasks to running, beside those that run."""
        started = [self.waiting[position] for position in positions]
        chosen = set(positions)
        self.waiting = [held for position, held in enumerate(self.waiting) if position not in chosen]
        self.running += started
        return started

    def stop_running(self, held: Held) -> None:
        """A task is done with: its place is free, it is still held until answered."""
        if held in self.running:
            self.running.remove(held)
        self._room.set()

    def held(self) -> list[Held]:
        """Everything not yet answered; each needs a heartbeat."""
        return list(self._held.values())

    def answered(self, held: Held) -> None:
        """A task was acknowledged or handed back."""
        self._held.pop(held.delivery.sequence, None)
        if held in self.waiting:
            self.waiting.remove(held)
        self._room.set()
