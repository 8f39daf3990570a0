"""Sums over a ledger's rows by time: counts of events, steps, seconds in each stage, and trajectories by state.

One pass sums everything, a stretch of rows at a time: grouping a few thousand rows needs no sorting of all of them.
"""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

import msgspec

# Events of a trajectory by the column of their time. One that was dropped while it waited left the store unleased.
EVENTS: Mapping[str, str] = {
    "stored": "accepted_at_s",
    "leased": "coalesce(leased_at_s, terminal_at_s)",
    "ended": "terminal_at_s",
}
STAGES: Mapping[str, str] = {
    "rollout": "finished_at_s - started_at_s",
    "in transit": "accepted_at_s - finished_at_s",
    "waiting for a batch": "leased_at_s - accepted_at_s",
    "in a batch": "terminal_at_s - leased_at_s",
}
# Rows that are grouped at once: few enough for the processor's cache.
STRETCH_ROWS = 20_000

_BINS = ", ".join(
    f"CAST(max(0, {column} - :start_s) / :bin_s AS INTEGER) AS {name}" for name, column in EVENTS.items()
)
_MEANS = ", ".join(f"total({span})" for span in STAGES.values())
_QUERY = (
    f"SELECT {_BINS}, state, reason, leased_at_s IS NOT NULL AS was_leased, count(*), sum(num_steps), {_MEANS},"
    " max(coalesce(terminal_at_s, accepted_at_s)) FROM trajectories WHERE {which}"
    " GROUP BY stored, leased, ended, state, reason, was_leased"
)
BY_PLACE = "seq BETWEEN :first AND :last"
BY_LIST = "seq IN (SELECT value FROM json_each(:seqs))"


class SummedRows(msgspec.Struct, frozen=True):
    """Rows whose events fall into the same bins and that have the same state. Bins are None before the event.

    ``stages_s``: seconds in each stage, summed, of rows that were leased. ``last_s``: the last event, since the epoch.
    """

    stored: int
    leased: int | None
    ended: int | None
    state: str
    reason: str
    was_leased: bool
    num_rows: int
    num_steps: int
    stages_s: tuple[float, ...]
    last_s: float


class RowSums:
    """Sums by bin, of ``bin_s`` seconds each after the first; as many entries as there are bins with rows."""

    def __init__(self) -> None:
        """Without rows."""
        self.states = Counter[str]()
        self.events: dict[str, Counter[int]] = {name: Counter() for name in EVENTS}
        self.trained_steps = Counter[int]()
        self.num_staged = Counter[int]()
        self.stages_s: dict[str, defaultdict[int, float]] = {name: defaultdict(float) for name in STAGES}
        self.last_s: float | None = None

    def add(self, group: SummedRows) -> None:
        """Add the rows of a group."""
        self.states[f"{group.state}: {group.reason}" if group.reason else group.state] += group.num_rows
        for name, place in (("stored", group.stored), ("leased", group.leased), ("ended", group.ended)):
            if place is not None:
                self.events[name][place] += group.num_rows
        self.last_s = group.last_s if self.last_s is None else max(self.last_s, group.last_s)
        if group.state != "trained" or group.ended is None:
            return
        self.trained_steps[group.ended] += group.num_steps
        if group.was_leased:
            self.num_staged[group.ended] += group.num_rows
            for name, seconds in zip(STAGES, group.stages_s, strict=True):
                self.stages_s[name][group.ended] += seconds

    def last_bin(self) -> int:
        """The last bin with an event; 0 without any."""
        return max((place for counts in self.events.values() for place in counts), default=0)

    def in_bins_of(self, num_bins: int, *others: "RowSums") -> "RowSums":
        """The sums of these and of others, with each ``num_bins`` of their bins as one."""
        merged = RowSums()
        for each in (self, *others):
            merged.states.update(each.states)
            pairs = [(merged.events[name], counts) for name, counts in each.events.items()]
            pairs += [(merged.trained_steps, each.trained_steps), (merged.num_staged, each.num_staged)]
            for to, counts in pairs:
                for place, count in counts.items():
                    to[place // num_bins] += count
            for name, by_bin in each.stages_s.items():
                for place, seconds in by_bin.items():
                    merged.stages_s[name][place // num_bins] += seconds
            known = [at_s for at_s in (merged.last_s, each.last_s) if at_s is not None]
            merged.last_s = max(known, default=None)
        return merged

    def mean_stages_s(self) -> dict[str, dict[int, float]]:
        """Mean seconds in each stage of what was trained, by bin."""
        return {
            name: {place: seconds[place] / self.num_staged[place] for place in sorted(seconds)}
            for name, seconds in self.stages_s.items()
        }


def groups_of(
    db: sqlite3.Connection, which: str, *, start_s: float, bin_s: float, **values: object
) -> Iterator[SummedRows]:
    """The groups of some rows. ``which``: ``BY_PLACE`` with ``first`` and ``last``, or ``BY_LIST`` with ``seqs``."""
    rows = db.execute(_QUERY.format(which=which), {"start_s": start_s, "bin_s": bin_s, **values})
    for stored, leased, ended, state, reason, was_leased, num_rows, num_steps, *sums, last_s in rows:
        yield SummedRows(
            stored, leased, ended, state, reason, bool(was_leased), num_rows, num_steps, tuple(sums), last_s
        )


def stretches(first: int, last: int) -> Iterator[tuple[int, int]]:
    """The places from ``first`` to ``last`` in stretches of at most ``STRETCH_ROWS``."""
    for begin in range(first, last + 1, STRETCH_ROWS):
        yield begin, min(last, begin + STRETCH_ROWS - 1)


def bounds(db: sqlite3.Connection) -> tuple[int, int]:
    """The places of the first and the last row; (1, 0) without rows."""
    first, last = db.execute(
        "SELECT (SELECT min(seq) FROM trajectories), (SELECT max(seq) FROM trajectories)"
    ).fetchone()
    return (1, 0) if first is None else (first, last)
