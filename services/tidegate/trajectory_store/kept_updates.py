"""The batches of past updates, from the ledger and the payloads that are still on disk."""

import os
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tidegate.core.batching import training_order
from tidegate.core.errors import CorruptionError, NotFoundError, RecordError
from tidegate.core.ids import LineageName, PolicyVersion, TrajectoryId
from tidegate.core.records import Trajectory
from tidegate.core.replay import OPEN_END, surviving_steps
from tidegate.core.staleness import LineageTree
from tidegate.trajectory_store.folded_ids import folded_among, load_ids, read_folded
from tidegate.trajectory_store.hash_chain import PROVENANCE_DIGEST_BYTES
from tidegate.trajectory_store.memory import load_tree
from tidegate.trajectory_store.schema import reading
from tidegate.trajectory_store.segments import Segments, segment_path
from tidegate.trajectory_store.state import Location
from tidegate.wire.frame import decode_frame, written_digest


class KeptBatch(msgspec.Struct, frozen=True, eq=False):
    """What an update of ``version`` was made from, in the learner's order; ``lags``: one a trajectory."""

    version: PolicyVersion
    trajectories: list[Trajectory]
    lags: list[int]


class UpdateRow(msgspec.Struct, frozen=True):
    """A trajectory of an update, and where its frame lies; ``location``: None of one that never arrived."""

    trajectory_id: TrajectoryId
    lag: int
    frame_index: int
    frame_id: int
    location: Location | None
    digest: bytes


def rows_of(db: sqlite3.Connection, version: PolicyVersion) -> list[UpdateRow]:
    """The trajectories that the update of ``version`` trained; empty if the ledger has no such update."""
    return [
        UpdateRow(
            trajectory_id=TrajectoryId(name),
            lag=lag,
            frame_index=frame_index,
            frame_id=frame_id or 0,
            location=None if frame_id is None else Location(segment, offset, size),
            digest=digest or b"",
        )
        for name, lag, frame_index, frame_id, segment, offset, size, digest in db.execute(
            "SELECT t.trajectory_id, t.lag, t.frame_index, f.frame_id, f.segment, f.offset, f.size, f.digest"
            " FROM trajectories t LEFT JOIN frames f USING (frame_id)"
            " WHERE t.trained_lineage = ? AND t.trained_step = ? ORDER BY f.frame_id, t.frame_index",
            (version.lineage, version.step),
        )
    ]


def surviving(version: PolicyVersion, tree: LineageTree) -> PolicyVersion | None:
    """``version`` under the name that its update has on the surviving branch: of a lineage that forks from it, maybe.

    None: the branch does not go through it.
    """
    if version.lineage not in tree.lineages:
        return None
    newest = PolicyVersion(lineage=list(tree.lineages)[-1], step=OPEN_END)
    bounds = surviving_steps(newest, tree)
    if version.step > bounds.get(version.lineage, -1):
        return None
    on_the_branch = (
        PolicyVersion(lineage=lineage, step=version.step)
        for lineage, bound in bounds.items()
        if tree.lineages[lineage].fork_step <= version.step < bound
    )
    return next(on_the_branch, None)


class MadeUpdate(msgspec.Struct, frozen=True, eq=False):
    """The batch of an update of ``version`` as it is sent again; ``lags``: of each of ``trajectory_ids``."""

    version: PolicyVersion
    frames: list[bytes]
    trajectory_ids: list[TrajectoryId]
    lags: list[int]


def made_update(
    db: sqlite3.Connection, segments: Segments, version: PolicyVersion, *, tree: LineageTree
) -> MadeUpdate | None:
    """The batch of the surviving branch's update of ``version``, in the order of its frames.

    None: there is no such update, or a payload is gone.
    """
    made = surviving(version, tree)
    rows = [] if made is None else rows_of(db, made)
    frames: dict[int, bytes] = {}
    for row in rows:
        if row.location is None:
            return None
        if row.frame_id not in frames:
            try:
                frames[row.frame_id] = segments.read(row.location)
            except CorruptionError:
                return None
    if made is None or not rows:
        return None
    return MadeUpdate(
        version=made,
        frames=list(frames.values()),
        trajectory_ids=[row.trajectory_id for row in rows],
        lags=[row.lag for row in rows],
    )


class KeptUpdates:
    """Reads the updates of one ledger; see ``open_updates``."""

    def __init__(self, db: sqlite3.Connection, folder: Path) -> None:
        self._db = db
        self._segments = folder / "segments"
        self.tree: LineageTree = load_tree(db)

    def newest(self) -> PolicyVersion:
        """The version that the newest update of the surviving branch made.

        Raises:
            NotFoundError: there is no update.
        """
        if self.tree.lineages:
            tip = PolicyVersion(lineage=list(self.tree.lineages)[-1], step=OPEN_END)
            for lineage, bound in surviving_steps(tip, self.tree).items():  # from the newest on
                (step,) = self._db.execute(
                    "SELECT max(trained_step) FROM trajectories WHERE trained_lineage = ? AND trained_step < ?",
                    (lineage, bound),
                ).fetchone()
                if step is not None:
                    return PolicyVersion(lineage=lineage, step=step + 1)
        raise NotFoundError("The run has made no update", fix="wait for its first step")

    def path_to(self, version: PolicyVersion) -> list[PolicyVersion]:
        """The versions that were updated on the way to ``version``, from the run's first on.

        Raises:
            NotFoundError: a restore abandoned the branch, whose trajectories were trained again since, or no update
                made the version yet.
            UnknownVersionError: no learner opened its lineage.
        """
        bounds = surviving_steps(version, self.tree)
        if surviving(version, self.tree) is None:
            newest = list(self.tree.lineages)[-1]
            raise NotFoundError(
                f"Version {version} is on a branch that a restore abandoned",
                why="its trajectories were given to later updates",
                fix=f"name a version that {newest} descends from",
            )
        last = self.newest()
        if version.step > last.step:
            raise NotFoundError(f"No update made version {version} yet", why=f"the newest is {last}")
        return [
            PolicyVersion(lineage=LineageName(lineage), step=step)
            for lineage, bound in reversed(bounds.items())
            for step in range(self.tree.lineages[lineage].fork_step, bound)
        ]

    def update_of(self, trajectory_id: TrajectoryId) -> PolicyVersion:
        """The version that was updated with a trajectory.

        Raises:
            NotFoundError: none was.
        """
        row = self._db.execute(
            "SELECT trained_lineage, trained_step FROM trajectories WHERE trajectory_id = ? AND state = 'trained'",
            (trajectory_id,),
        ).fetchone()
        if row is None and folded_among(self._db, load_ids(self._db), [trajectory_id]):
            raise _folded(f"The row of trajectory {trajectory_id}")
        if row is None:
            raise NotFoundError(f"No update used trajectory {trajectory_id}")
        return PolicyVersion(lineage=LineageName(row[0]), step=row[1])

    def batch(self, version: PolicyVersion) -> KeptBatch:
        """The batch of the update of ``version``.

        Raises:
            NotFoundError: the ledger has no such update, or a payload is no longer on disk.
            CorruptionError: a payload is not what was written.
        """
        rows = rows_of(self._db, version)
        if version.step <= read_folded(self._db).through_step:
            raise _folded(f"A row of the update of {version}")
        if not rows:
            raise NotFoundError(f"The ledger has no update of {version}")
        frames: dict[int, list[Trajectory]] = {}
        found: list[tuple[Trajectory, int]] = []
        for row in rows:
            if row.location is None:
                raise _gone(version, row.trajectory_id)
            if row.frame_id not in frames:
                data = self._read(version, row.trajectory_id, row.location)
                if written_digest(data) != row.digest[PROVENANCE_DIGEST_BYTES:]:
                    raise CorruptionError(
                        f"The payload of {row.trajectory_id} is not what was written",
                        fix="see `tidegate audit --verify`",
                    )
                frames[row.frame_id] = _decoded(row.trajectory_id, data)
            found.append((frames[row.frame_id][row.frame_index], row.lag))
        trajectories = [trajectory for trajectory, _ in found]
        order = training_order(trajectories)
        return KeptBatch(
            version, [trajectories[index] for index in order], [found[index][1] for index in order]
        )

    def _read(self, version: PolicyVersion, name: str, location: Location) -> bytes:
        try:
            with segment_path(self._segments, location.segment).open("rb") as file:
                return os.pread(file.fileno(), location.size, location.offset)
        except FileNotFoundError as error:
            raise _gone(version, name) from error


def _folded(what: str) -> NotFoundError:
    return NotFoundError(
        f"{what} was folded into the ledger's counters",
        why="the ledger has more than trajectory_store.rows_kept_max rows",
        fix="raise rows_kept_max in runs whose old updates are to be recomputed",
    )


def _gone(version: PolicyVersion, name: str) -> NotFoundError:
    return NotFoundError(
        f"The payload of {name}, which the update of {version} used, is no longer on disk",
        why="a checkpoint made it superfluous",
        fix="set trajectory_store.replayable_bytes_max in runs whose updates are to be recomputed",
    )


def _decoded(name: str, data: bytes) -> list[Trajectory]:
    try:
        return list(decode_frame(data))
    except RecordError as error:
        raise CorruptionError(f"The payload of {name} cannot be read", why=str(error)) from error


@contextmanager
def open_updates(path: Path) -> Generator[KeptUpdates]:
    """The updates of the ledger at ``path``, of a live or a stopped run.

    Raises:
        NotFoundError: there is no such ledger.
        StaleFolderError: another version of the schema wrote it.
        CorruptionError: the file cannot be read.
    """
    with reading(path) as db:
        yield KeptUpdates(db, path.parent)
