"""Draining: the one signal on which every loop finishes its work in hand and returns."""

import asyncio


class Drain:
    """Set once, never cleared. Loops check ``requested`` between pieces of work and wait through ``sleep``."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    @property
    def requested(self) -> bool:
        """Whether draining was requested."""
        return self._event.is_set()

    def request(self) -> None:
        """Ask every loop to finish; asking twice changes nothing."""
        self._event.set()

    async def wait(self) -> None:
        """Return once draining was requested."""
        await self._event.wait()

    async def sleep(self, seconds: float) -> bool:
        """Sleep, but wake when draining is requested; returns whether it was."""
        if self._event.is_set():
            return True
        try:
            await asyncio.wait_for(self._event.wait(), timeout=seconds)
        except TimeoutError:
            return False
        return True
