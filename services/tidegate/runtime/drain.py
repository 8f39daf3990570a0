"""Draining: the one signal on which every loop finishes its work in hand and returns."""

import asyncio

from tidegate.runtime.races import is_set_within


class Drain:
    """Set once, never cleared. Loops check ``requested`` between pieces of work and wait through ``sleep``.

    ``completed``: it was requested because the run is complete, so that this process need not start again.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.completed = False

    @property
    def requested(self) -> bool:
        """Whether draining was requested."""
        return self._event.is_set()

    def request(self) -> None:
        """Ask every loop to finish; asking twice changes nothing."""
        self._event.set()

    def complete(self) -> None:
        """Ask every loop to finish for good: the run is complete."""
        self.completed = True
        self.request()

    async def wait(self) -> None:
        """Return once draining was requested."""
        await self._event.wait()

    async def sleep(self, seconds: float) -> bool:
        """Sleep, but wake when draining is requested; returns whether it was."""
        return await is_set_within(self._event, timeout_s=seconds)
