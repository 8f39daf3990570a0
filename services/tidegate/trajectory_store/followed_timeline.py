"""The timeline of a ledger that a page follows while it grows: a row that has ended is read once."""

import sqlite3
import time
from pathlib import Path

import msgspec

from tidegate.trajectory_store.folded_ids import read_folded
from tidegate.trajectory_store.row_sums import (
    BY_LIST,
    BY_PLACE,
    RowSums,
    SummedRows,
    bounds,
    groups_of,
    stretches,
)
from tidegate.trajectory_store.schema import reading
from tidegate.trajectory_store.timeline import LedgerTimeline, timeline_of

# Of an answer: at most so many slices, and at least half as many where the run is longer than SLICES * BIN_S_MIN.
SLICES = 160
BIN_S_MIN = 0.5
# Beyond so many bins, two become one: of these, 16 at most are a slice.
BINS_MAX = 16 * SLICES
# One call reads rows for about so long; the next goes on from there.
READING_S = 4.0
# Rows that had not ended when they were read, and are read again. With more, everything is read again.
OPEN_MAX = 100_000
# Everything is read again after so long: a late commit may have changed a row that had ended.
RECOUNT_S = 600.0


class FollowedAnswer(msgspec.Struct, frozen=True):
    """The timeline in slices of ``slice_s`` seconds after the start, until ``end_s`` (since the epoch, None: no row).

    ``states``: trajectories by state, dropped ones by reason; folded rows are in none. ``num_unread``: rows that the
    next call will read; until it is 0 the sums are of the oldest rows alone.
    """

    timeline: LedgerTimeline
    states: dict[str, int]
    slice_s: float
    end_s: float | None
    num_unread: int


class FollowedTimeline:
    """Not safe for threads: one caller at a time. In memory: sums of ``BINS_MAX`` bins, and ``OPEN_MAX`` numbers.

    A row that ended changes where a new lineage revives it, or the ledger is folded or restored: then all are read
    again.
    """

    def __init__(self, path: Path) -> None:
        """``path``: the ledger."""
        self._path = path
        self._known: tuple[object, ...] = ()
        self._begin()

    def _begin(self) -> None:
        self._begun_s = time.monotonic()
        self._bin_s = BIN_S_MIN
        self._ended = RowSums()
        self._current = RowSums()  # of rows that have not ended: counted again at each call
        self._open: list[int] = []
        self._last_seq = 0

    def follow(self, *, start_s: float) -> FollowedAnswer:
        """Read what changed since the last call. ``start_s``: where slices begin, seconds since the epoch.

        Raises:
            NotFoundError, StaleFolderError, CorruptionError: the ledger cannot be read.
        """
        now_s = time.monotonic()
        with reading(self._path) as db:
            num_folded = read_folded(db).through_seq
            first, last = bounds(db)
            known = (start_s, self._path.stat().st_ino, num_folded, *_identity(db))
            is_whole = self._last_seq == last
            if (
                known != self._known
                or last < self._last_seq
                or len(self._open) > OPEN_MAX
                or (is_whole and now_s - self._begun_s > RECOUNT_S)
            ):
                self._begin()
                self._known = known
            again, self._open, self._current = self._open, [], RowSums()
            if again:
                self._read(db, BY_LIST, start_s=start_s, seqs=msgspec.json.encode(again).decode())
            for begin, end in stretches(max(first, self._last_seq + 1), last):
                self._read(db, BY_PLACE, start_s=start_s, first=begin, last=end)
                self._last_seq = end
                if time.monotonic() - now_s > READING_S:
                    break
        return self._answer(num_folded=num_folded, num_unread=max(0, last - max(first - 1, self._last_seq)))

    def _read(self, db: sqlite3.Connection, which: str, *, start_s: float, **values: object) -> None:
        """Add some rows to the sums, and the numbers of those that have not ended to ``_open``."""
        groups = list(groups_of(db, which, start_s=start_s, bin_s=self._bin_s, **values))
        num_bins = 1 + max((_last_bin(group) for group in groups), default=0)
        if num_bins > BINS_MAX:
            merged = 1 << (-(-num_bins // BINS_MAX) - 1).bit_length()
            self._bin_s *= merged
            self._ended, self._current = self._ended.in_bins_of(merged), self._current.in_bins_of(merged)
            groups = list(groups_of(db, which, start_s=start_s, bin_s=self._bin_s, **values))
        for group in groups:
            (self._current if group.ended is None else self._ended).add(group)
        if any(group.ended is None for group in groups):
            found = db.execute(
                f"SELECT seq FROM trajectories WHERE terminal_at_s IS NULL AND {which}", values
            )
            self._open += [seq for (seq,) in found]

    def _answer(self, *, num_folded: int, num_unread: int) -> FollowedAnswer:
        last_bin = max(self._ended.last_bin(), self._current.last_bin())
        per_slice = -(-(last_bin + 1) // SLICES)
        sums = self._ended.in_bins_of(per_slice, self._current)
        return FollowedAnswer(
            timeline=timeline_of(sums, num_folded=num_folded),
            states=dict(sums.states),
            slice_s=per_slice * self._bin_s,
            end_s=sums.last_s,
            num_unread=num_unread,
        )


def _last_bin(group: SummedRows) -> int:
    return max(group.stored, group.leased or 0, group.ended or 0)


def _identity(db: sqlite3.Connection) -> tuple[str, int]:
    """The run, and how many lineages it has opened."""
    return db.execute(
        "SELECT (SELECT value FROM meta WHERE key = 'run_id'), (SELECT count(*) FROM lineages)"
    ).fetchone()
