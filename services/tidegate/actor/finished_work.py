"""The queue of finished work: bounded, and closed by what fills it, so that its readers end.

``asyncio.Queue`` cannot be closed before Python 3.13, and a mark of the end needs a free place, which a full queue
whose readers were cancelled never has.
"""

import asyncio
from collections import deque
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")


class FinishedWork(Generic[ItemT]):
    """At most ``capacity`` items; a reader that takes one frees its place."""

    def __init__(self, *, capacity: int) -> None:
        self._capacity = capacity
        self._items: deque[ItemT] = deque()
        self._closed = False
        # Set while a reader has nothing to wait for, and while a writer has a place.
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    async def put(self, item: ItemT) -> None:
        """Add an item once there is a place."""
        while len(self._items) >= self._capacity:
            await self._writable.wait()
        self._items.append(item)
        self._update()

    def offer(self, item: ItemT) -> bool:
        """Add an item if there is a place now; whether there was."""
        if len(self._items) >= self._capacity:
            return False
        self._items.append(item)
        self._update()
        return True

    async def take(self) -> ItemT | None:
        """The oldest item once there is one; None when the queue is closed and empty."""
        while not self._items:
            if self._closed:
                return None
            await self._readable.wait()
        item = self._items.popleft()
        self._update()
        return item

    def close(self) -> None:
        """Nothing follows: readers take what is left and end. Never waits."""
        self._closed = True
        self._update()

    def _update(self) -> None:
        for event, holds in (
            (self._readable, bool(self._items) or self._closed),
            (self._writable, len(self._items) < self._capacity),
        ):
            if holds:
                event.set()
            else:
                event.clear()
