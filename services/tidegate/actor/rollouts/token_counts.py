"""Accounting of the tokens that an actor writes: each is published, dropped, released or held.

Counters, in tokens that the policy chose (an environment's replies cost nothing to repeat):
``tokens_written_total``; ``tokens_dropped_total``, of tasks that end without a trajectory;
``tokens_released_total``, of tasks that were released to another actor. With ``tokens_resumed_total``, and
``steps_total`` of what was published: written + resumed = published + dropped + released + held now. The tokens that a
killed actor held and no other resumed are lost.
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
        # Running groups with the tokens already counted or resumed; freed when they end.
        self._counted: dict[Group, int] = {}

    def update(self) -> None:
        """Count the tokens written since the last call, of all running groups."""
        for group in self._counted:
            self._count(group)

    @contextmanager
    def writing(self, group: Group) -> Generator[None]:
        """Context in which a group is generated, from its current state."""
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
        """Count the end of a group by its result, None where it was stopped."""
        if result is None or isinstance(result, RefusedTask):
            self._stats.add(statistics.TOKENS_RELEASED, group.num_chosen)
        elif isinstance(result, DroppedTask):
            self._stats.add(statistics.TOKENS_DROPPED, group.num_chosen)
