"""Following the limits on CONTROL: what is heard, and what the stream says."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from structlog import get_logger

from tidegate.core.admission import Limits
from tidegate.core.errors import TidegateError
from tidegate.core.ids import PolicyVersion, RunId
from tidegate.runtime.bus import Handler
from tidegate.runtime.drain import Drain
from tidegate.runtime.stats_board import StatsBoard
from tidegate.runtime.streams import Stored
from tidegate.task_queue.config import TaskQueueConfig
from tidegate.task_queue.loops import TaskQueue
from tidegate.task_queue.state import Counts
from tidegate.wire.subjects import Topology

OLDER = Limits(max_lag=1, batch_size=2, max_running=8)
NEWER = Limits(max_lag=1, batch_size=2, max_running=8, paused=True, reason="maintenance")


class LateStream:
    """CONTROL whose stored message is older than one that is heard while it is read, and again just after."""

    def __init__(self, drain: Drain) -> None:
        self._drain = drain
        self._hear: Handler | None = None
        self.num_read = 0

    async def subscribe(self, _subject: str, handler: Handler) -> None:
        self._hear = handler

    async def last(self, _stream: str, _subject: str) -> Stored:
        self.num_read += 1
        assert self._hear is not None
        await self._hear(msgspec.json.encode(NEWER), {})
        asyncio.get_running_loop().call_later(0.15, self._drain.request)
        return Stored(msgspec.json.encode(OLDER), {}, 1)


class LimitsJournal:
    """The part of a journal that limits need; while ``refuses``, its disk is full."""

    counts, trained_at, unpublished_tasks = Counts(), dict[PolicyVersion, int](), 0

    def __init__(self) -> None:
        self.limits: Limits | None = None
        self.refuses = False

    def keep_limits(self, limits: Limits) -> None:
        if self.refuses:
            raise TidegateError("The task queue's journal cannot be written")
        self.limits = limits


def queue_of(journal: LimitsJournal, *, bus: object = None, drain: Drain | None = None) -> TaskQueue:
    context = SimpleNamespace(
        bus=bus,
        topology=Topology(RunId("run-t")),
        service="task_queue",
        drain=drain,
        log=get_logger(),
        stats=StatsBoard(service="task_queue", instance="task_queue", started_at_s=0.0),
        clock=SimpleNamespace(monotonic_s=lambda: 0.0),
    )
    return TaskQueue(
        cast("Any", context),
        TaskQueueConfig(limits_refresh_s=0.1),
        journal=cast("Any", journal),
        workload=cast("Any", None),
        source=cast("Any", None),
        store=cast("Any", None),
        policy=cast("Any", SimpleNamespace(head=None)),
        ceiling=OLDER,
    )


async def test_limits_that_are_read_replace_none_that_were_heard_since() -> None:
    drain = Drain()
    stream = LateStream(drain)
    queue = queue_of(LimitsJournal(), bus=stream, drain=drain)
    await queue.follow_limits()
    assert queue.snapshot().limits == NEWER
    assert stream.num_read == 1, "not while the stream may lag behind"


def test_limits_that_a_full_disk_does_not_keep_are_in_force_and_kept_once_there_is_space() -> None:
    journal = LimitsJournal()
    queue = queue_of(journal)
    journal.refuses = True
    tighter = msgspec.structs.replace(OLDER, max_lag=0)
    queue.change_ceiling(tighter)
    assert (queue.snapshot().limits, journal.limits) == (tighter, None)
    journal.refuses = False
    queue.change_ceiling(tighter)
    assert journal.limits == tighter
