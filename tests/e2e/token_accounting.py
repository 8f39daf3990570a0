"""Accounts for the tokens of a run's rollouts: by the actors' statistics while it runs, by its ledger at the end."""

import asyncio
import sqlite3
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from tidegate.catalogue import actor as statistics
from tidegate.catalogue.kinds import Counter
from tidegate.cli.accounting import ledger_path
from tidegate.core.ids import RunId
from tidegate.launch.board import Board
from tidegate.launch.run_folder import read_record
from tidegate.launch.stats_subscription import StatsSubscription

POLL_S = 0.1


class Totals(msgspec.Struct, frozen=True):
    """Of all lives of all actors, in tokens that the policy chose. ``held``: unfinished, by the actors that live.

    ``rollouts_resumed`` and ``rollouts_restarted``: tasks whose tokens were found, by whether an actor resumed any.
    ``at_s``: mean time of the newest snapshots.
    """

    written: float
    published: float
    dropped: float
    resumed: float
    held: float
    rollouts_resumed: float
    rollouts_restarted: float
    at_s: float

    @property
    def missing(self) -> float:
        """Written, and neither published, dropped nor held: lost, or in PROGRESS for the next actor of the task."""
        return self.written - self.published - self.dropped - self.held


class TokenAccounting:
    """Follows the statistics of a run's actors in a thread, as ``tidegate status`` does."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._board = Board()
        self._ended = threading.Event()

    @contextmanager
    def following(self) -> Generator["TokenAccounting"]:
        """Follow a live run until the end of the block or of its broker."""
        thread = threading.Thread(target=lambda: asyncio.run(self._follow()), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            thread.join(timeout=10.0)

    async def _follow(self) -> None:
        record = read_record(self._folder)
        async with StatsSubscription(record.broker, RunId(record.run_id), self._board):
            while not self._ended.is_set():
                await asyncio.sleep(POLL_S)

    def value(self, instance: str, name: str) -> float:
        """A statistic of the present life of an instance."""
        stats = self._board.latest().get(instance)
        return 0.0 if stats is None else stats.values.get(name, 0.0)

    def started_at_s(self, instance: str) -> float:
        """When the present life of an instance began, by its own clock."""
        stats = self._board.latest().get(instance)
        return 0.0 if stats is None else stats.started_at_s

    def held(self, instance: str) -> float:
        """Tokens that an actor has written or resumed, and neither published, dropped nor released."""
        came = self.value(instance, statistics.TOKENS_WRITTEN) + self.value(
            instance, statistics.TOKENS_RESUMED
        )
        went = (statistics.STEPS, statistics.TOKENS_DROPPED, statistics.TOKENS_RELEASED)
        return came - sum(self.value(instance, name) for name in went)

    def totals(self) -> Totals:
        """By the newest snapshots."""

        def total(name: Counter) -> float:
            return self._board.total_over_lives("actor", name)

        living = self._board.of("actor")
        return Totals(
            written=total(statistics.TOKENS_WRITTEN),
            published=total(statistics.STEPS),
            dropped=total(statistics.TOKENS_DROPPED),
            resumed=total(statistics.TOKENS_RESUMED),
            held=sum(self.held(stats.instance) for stats in living),
            rollouts_resumed=total(statistics.ROLLOUTS_RESUMED),
            rollouts_restarted=total(statistics.ROLLOUTS_RESTARTED),
            at_s=sum(stats.at_s for stats in living) / max(1, len(living)),
        )


def tokens_in_ledger(folder: Path, *, until_s: float) -> int:
    """Tokens that the policy chose, of all trajectories finished by then that arrived, each counted once."""
    sums = "SELECT COALESCE(SUM(num_steps), 0) FROM trajectories WHERE finished_at_s <= ?"
    with closing(sqlite3.connect(f"file:{ledger_path(folder)}?mode=ro", uri=True)) as ledger:
        [[tokens]] = ledger.execute(sums, (until_s,)).fetchall()
    return int(tokens)
