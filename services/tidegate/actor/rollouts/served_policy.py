"""The policy that an actor serves, and the hold of an evaluation on it."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from tidegate.actor.engines.port import EngineControl
from tidegate.core.ids import PolicyVersion
from tidegate.core.records import PolicySnapshot
from tidegate.core.staleness import LineageTree


class ServedPolicy:
    """The newest policy this actor may serve, and the lineage tree that came with it."""

    def __init__(self, control: EngineControl, wakeup: asyncio.Event) -> None:
        """``control`` passes the policy to the engine; ``wakeup`` is set when a policy arrives."""
        self._control = control
        self._wakeup = wakeup
        self.tree = LineageTree()
        self.loaded_at_s = 0.0
        self._num_holds = 0
        self._kept_back: PolicySnapshot | None = None

    @property
    def version(self) -> PolicyVersion | None:
        """The version of the next step or token; None before the first policy."""
        newest = self._control.newest
        return None if newest is None else newest.version

    def offer(self, snapshot: PolicySnapshot, tree: LineageTree, *, now_s: float) -> None:
        """Serve ``snapshot`` from the engine's next boundary on, or from the end of a hold."""
        self.tree = tree
        self.loaded_at_s = now_s
        if self._num_holds and self._control.newest is not None:
            self._kept_back = snapshot
            return
        self._control.newest = snapshot
        self._wakeup.set()

    @contextmanager
    def hold(self) -> Generator[None]:
        """Keep the policy unchanged inside of the context, so that one version generates all of it. Keep it short."""
        self._num_holds += 1
        try:
            yield
        finally:
            self._num_holds -= 1
            if not self._num_holds and self._kept_back is not None:
                self._control.newest, self._kept_back = self._kept_back, None
                self._wakeup.set()
