"""Following POLICY, level-triggered: a subscription for speed, the last message of the stream for truth.

An ordered consumer can stay silent for twelve seconds after a broker restart, so nothing here depends on one: a version
that the subscription misses comes with the next read of the stream.
"""

import asyncio

from tidegate.catalogue import process
from tidegate.core.errors import RecordError, UnavailableError
from tidegate.core.ids import PolicyVersion
from tidegate.runtime.races import is_set_within
from tidegate.runtime.service import ServiceContext
from tidegate.wire.announcement import Announcement

MODEL = "default"
REFRESH_S = 1.0


class PolicyWatch:
    """The newest announced policy of one model."""

    def __init__(self, context: ServiceContext) -> None:
        self._bus = context.bus
        self._drain = context.drain
        self._stream = context.topology.stream("POLICY")
        self._subject = context.topology.policy(MODEL)
        self._head: Announcement | None = None
        self._changed = asyncio.Event()
        self._refresh = asyncio.Event()
        self._stats = context.stats
        self._log = context.log
        # The last message that was no announcement: it stays the newest until weight distribution announces again.
        self._unreadable: bytes | None = None

    @property
    def head(self) -> Announcement | None:
        """The newest announcement seen."""
        return self._head

    async def run(self) -> None:
        """Follow until draining; the stream is read at the start, in every quiet second, and after a reconnect."""
        await self._bus.subscribe(self._subject, self._receive)
        self._bus.on_reconnect(self._refresh.set)
        waker = asyncio.create_task(self._refresh_when_draining())
        seen = self._head
        while not self._drain.requested:
            # While the subscription delivers newer versions, none is missed.
            if self._head is seen or self._refresh.is_set():
                self._refresh.clear()
                try:
                    stored = await self._bus.last(self._stream, self._subject)
                except UnavailableError:
                    stored = None
                if stored is not None:
                    self._take(stored.data)
            seen = self._head
            if not self._drain.requested:
                await is_set_within(self._refresh, timeout_s=REFRESH_S)
        waker.cancel()

    async def _refresh_when_draining(self) -> None:
        await self._drain.wait()
        self._refresh.set()

    async def changed(self, than: PolicyVersion | None, *, timeout_s: float) -> Announcement | None:
        """The head once it differs from ``than``; None when ``timeout_s`` passes first."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while self._head is None or self._head.version == than:
            self._changed.clear()
            remaining_s = deadline_s - asyncio.get_running_loop().time()
            if not await is_set_within(self._changed, timeout_s=remaining_s):
                return None
        return self._head

    async def _receive(self, data: bytes, _headers: dict[str, str]) -> None:
        self._take(data)

    def _take(self, data: bytes) -> None:
        try:
            announcement = Announcement.from_bytes(data)
        except RecordError as error:
            if data != self._unreadable:
                self._unreadable = data
                self._stats.add(process.ANNOUNCEMENTS_IGNORED)
                self._log.warning("announcement_ignored", error=str(error))
            return
        if self._head is None or supersedes(announcement, self._head):
            self._head = announcement
            self._changed.set()


def supersedes(announcement: Announcement, head: Announcement) -> bool:
    """Whether an announcement is newer: further on the same lineage, or of a lineage opened later.

    Order of arrival proves nothing: the subscription can overtake a read of the stream, and a learner that lost its
    lineage may still publish on the old one.
    """
    if announcement.version.lineage == head.version.lineage:
        return announcement.version.step > head.version.step
    return len(announcement.tree.lineages) > len(head.tree.lineages)
