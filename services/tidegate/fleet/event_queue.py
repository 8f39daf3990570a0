"""A heap of events on a virtual clock."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, TypeAlias

Action: TypeAlias = Callable[[Any], None]


class EventQueue:
    """Events in order of time, then of insertion. Bounded by the work in flight: one event for each piece."""

    __slots__ = ("_heap", "_number", "now_s", "num_events")

    def __init__(self) -> None:
        self.now_s = 0.0
        self.num_events = 0
        self._number = 0
        self._heap: list[tuple[float, int, Action, Any]] = []

    def at(self, at_s: float, action: Action, argument: Any = None) -> None:
        """Call ``action(argument)`` at ``at_s``, or now if that is past."""
        self._number += 1
        heappush(self._heap, (max(at_s, self.now_s), self._number, action, argument))

    def after(self, delay_s: float, action: Action, argument: Any = None) -> None:
        """Call ``action(argument)`` in ``delay_s``."""
        self._number += 1
        heappush(self._heap, (self.now_s + delay_s, self._number, action, argument))

    def has_more_now(self) -> bool:
        """Whether another event is due at this moment."""
        return bool(self._heap) and self._heap[0][0] <= self.now_s

    def run(self, until_s: float, *, on_moment_end: Callable[[], None]) -> None:
        """Run all events up to ``until_s``, and ``on_moment_end`` after the last one of each moment.

        So everything that ends at a moment has ended before anything starts at it: a rollout that starts when an update
        ends starts under the new version.
        """
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            at_s = self.now_s = heap[0][0]
            while heap and heap[0][0] == at_s:
                _, _, action, argument = heappop(heap)
                self.num_events += 1
                action(argument)
            on_moment_end()
        self.now_s = until_s
