"""Accounting of the tokens that an actor writes: each is published, dropped, released or held.

Counters, in tokens that the policy chose (an environment's replies are had again for nothing):
``tokens_written_total``; ``tokens_dropped_total``, of tasks that end without a trajectory;
``tokens_released_total``, of tasks that are for another actor. With ``tokens_resumed_total``, and ``steps_total`` of
what was published: written + resumed = published + dropped + released + held now. Of what a killed actor held, that
is lost which no other one resumed.
"""

from collections.abc import Generator
from contextlib import contextmanager

from tidegate.actor.rollouts.episode import Group
from tidegate.actor.rollouts.outcomes import DroppedTask, RefusedTask, RolloutResult
from tidegate.catalogue import actor as statistics
from tidegate.runtime.stats_board import StatsBoard


class TokenCounts:
    """Bounded by the tasks that run."""

    def __init__(self, stats: StatsBoard) -> None:
        self._stats = stats
        # Running groups, each with its tokens that are counted or came from another actor; freed when they end.
        self._counted: dict[Group, int] = {}

    def update(self) -> None:
        """Count the tokens written since the last time, of all running groups."""
        for group in self._counted:
            self._count(group)

    @contextmanager
    def writing(self, group: Group) -> Generator[None]:
        """A group is written, from where it is."""
        self._counted[group] = group.num_chosen
        try:
            yield
        finally:
            self._count(group)
            del self._counted[group]

    def _count(self, group: Group) -> None:
        num_chosen = group.num_chosen
        self._stats.add(statistics.TOKENS_WRITTEN, num_chosen - self._counted[group])
        self._counted[group] = num_chosen

    def record_end(self, group: Group, result: RolloutResult | None) -> None:
        """A group is written no more; what was made of it, None where it was stopped."""
        if result is None or isinstance(result, RefusedTask):
            self._stats.add(statistics.TOKENS_RELEASED, group.num_chosen)
        elif isinstance(result, DroppedTask):
            self._stats.add(statistics.TOKENS_DROPPED, group.num_chosen)
