"""Pages of a ledger's rows for a person who looks through them, on a live or a stopped run.

A page is one bounded query: it ends at ``PAGE_ROWS`` rows, or with an error once it took ``QUERY_S``.
"""

import sqlite3
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tidegate.core.errors import DeadlineError
from tidegate.trajectory_store.rows import version_of
from tidegate.trajectory_store.schema import LEDGER_FILE, reading

PAGE_ROWS = 100
QUERY_S = 5.0
# Virtual-machine instructions of SQLite between two looks at the clock: about a millisecond.
_INSTRUCTIONS = 100_000


class Filter(msgspec.Struct, frozen=True):
    """Which trajectories a page holds. A field that is None or empty admits all; bounds belong to what they admit.

    ``group_id``: the samples of one prompt. ``trained_step``: trained from the policy of that step.
    """

    state: str = ""
    reason: str = ""
    curriculum_bin: str = ""
    group_id: str = ""
    reward_min: float | None = None
    reward_max: float | None = None
    lag_min: int | None = None
    tokens_min: int | None = None
    trained_step: int | None = None


class ListedRow(msgspec.Struct, frozen=True):
    """One trajectory of a page. ``seq``: its place in order of arrival, where the next page goes on."""

    seq: int
    trajectory_id: str
    group_id: str
    state: str
    reason: str
    curriculum_bin: str
    reward: float | None
    mean_return: float | None
    num_steps: int
    length_tokens: int
    trained_at: str | None
    lag: int | None
    age_s: float | None
    started_at_s: float
    finished_at_s: float


class ListedUpdate(msgspec.Struct, frozen=True):
    """What one update trained. ``from_version``: the policy that it began from. Means are None without a value."""

    from_version: str
    step: int
    num_trajectories: int
    num_steps: int
    mean_reward: float | None
    max_lag: int


_CONDITIONS = {
    "state": "state = ?",
    "reason": "reason = ?",
    "curriculum_bin": "curriculum_bin = ?",
    "group_id": "group_id = ?",
    "reward_min": "reward >= ?",
    "reward_max": "reward <= ?",
    "lag_min": "lag >= ?",
    "tokens_min": "length_tokens >= ?",
    "trained_step": "trained_step = ?",
}
_COLUMNS = (
    "seq, trajectory_id, group_id, state, reason, curriculum_bin, reward, mean_return, num_steps, length_tokens,"
    " trained_lineage, trained_step, lag, age_s, started_at_s, finished_at_s"
)


def page_of(folder: Path, wanted: Filter, *, before_seq: int | None = None) -> list[ListedRow]:
    """The newest rows that the filter admits, newest first; ``before_seq``: the rows that arrived before that one.

    ``folder``: the store's own.

    Raises:
        NotFoundError, StaleFolderError, CorruptionError: the ledger cannot be read.
        DeadlineError: the query took longer than ``QUERY_S``.
    """
    given = {name: value for name, value in msgspec.structs.asdict(wanted).items() if value not in (None, "")}
    conditions = [_CONDITIONS[name] for name in given]
    values = list(given.values())
    if before_seq is not None:
        conditions.append("seq < ?")
        values.append(before_seq)
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    with _bounded(folder) as db:
        found = db.execute(
            f"SELECT {_COLUMNS} FROM trajectories{where} ORDER BY seq DESC LIMIT {PAGE_ROWS}", values
        ).fetchall()
    return [_row(*row) for row in found]


def states_of(folder: Path) -> dict[str, int]:
    """Trajectories by state; dropped ones by reason, as ``dropped: stale``. Folded rows are in none.

    Raises:
        NotFoundError, StaleFolderError, CorruptionError, DeadlineError: as ``page_of``.
    """
    with _bounded(folder) as db:
        return dict(
            db.execute(
                "SELECT state || CASE WHEN reason = '' THEN '' ELSE ': ' || reason END, count(*)"
                " FROM trajectories GROUP BY 1"
            ).fetchall()
        )


def updates_of(folder: Path, *, before_step: int | None = None) -> list[ListedUpdate]:
    """The newest updates, newest first; ``before_step``: those that began from an earlier policy.

    Raises:
        NotFoundError, StaleFolderError, CorruptionError, DeadlineError: as ``page_of``.
    """
    below = "" if before_step is None else " AND trained_step < ?"
    # The index holds lineage and step, so that rows are read of the page's updates only.
    newest = (
        f"SELECT DISTINCT trained_lineage, trained_step FROM trajectories WHERE trained_step IS NOT NULL{below}"
        f" ORDER BY trained_step DESC LIMIT {PAGE_ROWS}"
    )
    with _bounded(folder) as db:
        found = db.execute(
            f"WITH newest AS ({newest})"
            " SELECT trained_lineage, trained_step, count(*), sum(num_steps), avg(reward), max(lag)"
            " FROM newest JOIN trajectories USING (trained_lineage, trained_step) GROUP BY 2, 1 ORDER BY 2 DESC",
            () if before_step is None else (before_step,),
        ).fetchall()
    return [
        ListedUpdate(f"{lineage}@{step}", step, count, num_steps, reward, lag or 0)
        for lineage, step, count, num_steps, reward, lag in found
    ]


@contextmanager
def _bounded(folder: Path) -> Generator[sqlite3.Connection]:
    ends_s = time.monotonic() + QUERY_S
    with reading(folder / LEDGER_FILE) as db:
        db.set_progress_handler(lambda: time.monotonic() > ends_s, _INSTRUCTIONS)
        try:
            yield db
        except sqlite3.OperationalError as error:
            if time.monotonic() <= ends_s:
                raise
            raise DeadlineError(
                f"The ledger did not answer within {QUERY_S:g} s",
                why="few of its many rows fit the filter",
                fix="filter by fewer columns, or `tidegate export` and search there",
            ) from error


def _row(*columns: Any) -> ListedRow:
    row = dict(zip(_COLUMNS.split(", "), columns, strict=True))
    trained_at = version_of(row.pop("trained_lineage"), row.pop("trained_step"))
    return ListedRow(**row, trained_at=None if trained_at is None else str(trained_at))
