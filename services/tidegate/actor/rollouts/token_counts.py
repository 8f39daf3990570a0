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
        """Nothing is written yet."""
        self._stats = stats
        # Running groups, each with its tokens that are on the board or came from elsewhere; freed when they end.
        self._counted: list[tuple[Group, int]] = []

    def update(self) -> None:
        """Bring the board up to date with what runs."""
        before = self._counted
        self._counted = [(group, group.num_chosen) for group, _ in before]
        written = sum(now - counted for (_, now), (_, counted) in zip(self._counted, before, strict=True))
        self._stats.add(statistics.TOKENS_WRITTEN, written)

    @contextmanager
    def writing(self, group: Group) -> Generator[None]:
        """A group is written, from where it is."""
        self._counted.append((group, group.num_chosen))
        try:
            yield
        finally:
            self.update()
            self._counted = [(each, counted) for each, counted in self._counted if each is not group]

    def record_end(self, group: Group, result: RolloutResult | None) -> None:
        """A group is written no more; what was made of it, None where it was stopped."""
        if result is None or isinstance(result, RefusedTask):
            self._stats.add(statistics.TOKENS_RELEASED, group.num_chosen)
        elif isinstance(result, DroppedTask):
            self._stats.add(statistics.TOKENS_DROPPED, group.num_chosen)
