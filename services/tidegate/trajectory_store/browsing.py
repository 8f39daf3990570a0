"""Pages of a ledger's rows for a person who looks through them, on a live or a stopped run.

A page is one bounded query: it ends at ``PAGE_ROWS`` rows, or with an error once it took ``QUERY_S``.
"""

import sqlite3
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tidegate.core.errors import DeadlineError
from tidegate.core.ids import TaskId, position_of
from tidegate.core.records import Trajectory
from tidegate.trajectory_store.rows import version_of
from tidegate.trajectory_store.schema import LEDGER_FILE, reading
from tidegate.wire.frame import decode_provenance

PAGE_ROWS = 100
QUERY_S = 5.0
# Of each completion of a group: enough to see in what they differ.
COMPLETION_CHARS = 2_000
# Virtual-machine instructions of SQLite between two looks at the clock: about a millisecond.
_INSTRUCTIONS = 100_000


class Filter(msgspec.Struct, frozen=True):
    """Which trajectories a page holds. A field that is None or empty admits all; bounds belong to what they admit.

    ``reward_min`` and ``reward_max``: of the mean return, where a trajectory has no reward. ``trained_step``: trained
    from the policy of that step.
    """

    state: str = ""
    reason: str = ""
    curriculum_bin: str = ""
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


class GroupMember(msgspec.Struct, frozen=True):
    """One sample of a task beside the others. ``completion``: its first ``COMPLETION_CHARS`` characters."""

    row: ListedRow
    completion: str
    finish_reason: str


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
    "reward_min": "coalesce(reward, mean_return) >= ?",
    "reward_max": "coalesce(reward, mean_return) <= ?",
    "lag_min": "lag >= ?",
    "tokens_min": "length_tokens >= ?",
    # With the lineages named, the index by update finds the rows.
    "trained_step": "trained_lineage IN (SELECT name FROM lineages) AND trained_step = ?",
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


def group_of(folder: Path, task: TaskId) -> list[GroupMember]:
    """The samples of one task that have a row, by their index, at most ``PAGE_ROWS``.

    Raises:
        NotFoundError, StaleFolderError, CorruptionError, DeadlineError: as ``page_of``.
    """
    with _bounded(folder) as db:
        # Ids of a task's samples begin with its own and a point; "/" is the character after that. By index.
        found = db.execute(
            f"SELECT frame_id, frame_index, {_COLUMNS} FROM trajectories"
            f" WHERE trajectory_id > ? AND trajectory_id < ? LIMIT {PAGE_ROWS}",
            (f"{task}.", f"{task}/"),
        ).fetchall()
        records = {
            frame_id: decode_provenance(head)
            for frame_id in {row[0] for row in found}
            for (head,) in db.execute("SELECT head FROM frames WHERE frame_id = ?", (frame_id,))
        }
    members: list[GroupMember] = []
    for frame_id, frame_index, *columns in found:
        record = _member(records, frame_id, frame_index)
        members.append(
            GroupMember(
                _row(*columns),
                "" if record is None else record.completion[:COMPLETION_CHARS],
                "" if record is None else record.finish_reason,
            )
        )
    return sorted(members, key=lambda member: position_of(member.row.trajectory_id) or (0, 0))


def _member(records: Mapping[int, list[Trajectory]], frame_id: int, frame_index: int) -> Trajectory | None:
    """One sample of a frame; None of a frame whose rows were folded meanwhile."""
    return records[frame_id][frame_index] if frame_id in records else None


def updates_of(folder: Path, *, before_step: int | None = None) -> list[ListedUpdate]:
    """The newest updates, newest first; ``before_step``: those that began from an earlier policy.

    Raises:
        NotFoundError, StaleFolderError, CorruptionError, DeadlineError: as ``page_of``.
    """
    below = "IS NOT NULL" if before_step is None else "< ?"
    # From each lineage's newest step to the one before it, by index: only the page's updates are read, of any number.
    newest = (
        "SELECT name, (SELECT max(trained_step) FROM trajectories"
        f" WHERE trained_lineage = name AND trained_step {below}) FROM lineages"
        " UNION ALL SELECT trained_lineage, (SELECT max(earlier.trained_step) FROM trajectories AS earlier"
        " WHERE earlier.trained_lineage = newest.trained_lineage AND earlier.trained_step < newest.trained_step)"
        f" FROM newest WHERE trained_step IS NOT NULL ORDER BY 2 DESC LIMIT {PAGE_ROWS}"
    )
    with _bounded(folder) as db:
        found = db.execute(
            f"WITH RECURSIVE newest (trained_lineage, trained_step) AS ({newest})"
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
