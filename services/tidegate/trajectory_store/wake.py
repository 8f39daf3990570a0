"""Waking long polls without polling."""

import asyncio


class Wake:
    """Wakes waiting calls after a change. Listen first, then read the state: a change in between is not missed."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def listen(self) -> asyncio.Event:
        """An event that the next change sets."""
        return self._event

    def notify(self) -> None:
        """Wake all listeners."""
        self._event.set()
        self._event = asyncio.Event()
