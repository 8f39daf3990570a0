"""Checkpoints of running tasks are found again, also just after a broker outage."""

import asyncio

import pytest

from tests.unit.actor.episodes_harness import Harness, Notes, task_of
from tidegate.actor.rollouts import progress_checkpoints
from tidegate.actor.rollouts.progress_checkpoints import ProgressCheckpoints
from tidegate.actor.rollouts.resumption import fresh
from tidegate.catalogue import actor as statistics
from tidegate.core.errors import UnavailableError
from tidegate.runtime.streams import Stored


class Returning(Notes):
    """A broker that does not answer the first reads."""

    def __init__(self, *, num_unanswered: int) -> None:
        super().__init__()
        self.num_unanswered = num_unanswered

    async def last(self, _stream: str, subject: str) -> Stored | None:
        if self.num_unanswered:
            self.num_unanswered -= 1
            raise UnavailableError("away")
        return await super().last(_stream, subject)


@pytest.mark.parametrize(
    ("num_unanswered", "num_resumed"),
    [(progress_checkpoints.READ_ATTEMPTS - 1, 3 * 13), (progress_checkpoints.READ_ATTEMPTS, 0)],
)
async def test_tokens_are_lost_only_to_a_broker_that_stays_away(
    num_unanswered: int, num_resumed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_checkpoints, "READ_PAUSE_S", 0.0)
    notes, task = Returning(num_unanswered=0), task_of()
    first = Harness(notes=notes, stop_share=0.0)
    running = await first.run_until(task, 13)
    first.runner.stop()
    assert await running is None
    notes.num_unanswered = num_unanswered
    second = Harness(notes=notes, stop_share=0.0)
    assert await second.run(task) is not None
    assert second.value(statistics.TOKENS_RESUMED) == num_resumed
    assert second.value(statistics.PROGRESS_UNREAD) == (0 if num_resumed else 1)


class Slow(Notes):
    """A broker that stores the first message once it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.goes_on = asyncio.Event(), asyncio.Event()

    async def publish(self, subject: str, data: bytes, **options: object) -> None:
        self.began.set()
        await self.goes_on.wait()
        await super().publish(subject, data, **options)


async def test_checkpoint_that_is_on_its_way_when_its_task_ends_is_cleared() -> None:
    notes, task = Slow(), task_of()
    checkpoints = ProgressCheckpoints(Harness(notes=notes).context, period_s=1.0)
    group = fresh(task, now_s=0.0)
    group.episodes[0].begin_write().append((5,), (-0.5,), task.required_version)
    checkpoints.track(group)
    writing = asyncio.create_task(checkpoints.write(group))
    await notes.began.wait()
    checkpoints.untrack(task.task_id)
    forgetting = asyncio.create_task(checkpoints.forget(task.task_id))
    await asyncio.sleep(0)
    notes.goes_on.set()
    assert await writing > 0
    await forgetting
    assert [stored.data for stored in notes.last_of.values()] == [progress_checkpoints.CLEARED]
