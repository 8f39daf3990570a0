"""What happens when: a heap of events on a virtual clock."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, TypeAlias

Action: TypeAlias = Callable[[Any], None]


class EventQueue:
    """Events in order of time, then of being noted. Bounded by what is under way: one event a matter."""

    __slots__ = ("_heap", "_number", "now_s", "num_events")

    def __init__(self) -> None:
        """Nothing is planned, and it is 0 s."""
        self.now_s = 0.0
        self.num_events = 0
        self._number = 0
        self._heap: list[tuple[float, int, Action, Any]] = []

    def at(self, at_s: float, action: Action, argument: Any = None) -> None:
        """Have ``action(about)`` called at ``at_s``; what is past happens at once, but never before now."""
        self._number += 1
        heappush(self._heap, (max(at_s, self.now_s), self._number, action, argument))

    def after(self, delay_s: float, action: Action, argument: Any = None) -> None:
        """Have ``action(about)`` called ``delay_s`` from now."""
        self._number += 1
        heappush(self._heap, (self.now_s + delay_s, self._number, action, argument))

    def has_more_now(self) -> bool:
        """Whether something else happens at this very moment."""
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
