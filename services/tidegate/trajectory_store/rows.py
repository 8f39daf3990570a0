"""Rows of the ledger to values and back."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from tidegate.core.batching import Candidate
from tidegate.core.ids import GroupId, LineageName, PolicyVersion, TaskId, TrajectoryId, task_of
from tidegate.core.records import Trajectory, VersionSpan
from tidegate.core.staleness import Lineage, LineageTree

# Longer explanations are cut: a row stays narrow whatever a verifier or a peer writes.
DETAIL_CHARACTERS_MAX = 500

_spans_encoder = msgspec.msgpack.Encoder()
_spans_decoder = msgspec.msgpack.Decoder(tuple[VersionSpan, ...])


class NewRow(NamedTuple):
    """A row as it is first written, its fields in the order of ``INSERT_ROW``.

    The defaults are those of a trajectory that ended without ever arriving.
    """

    seq: int
    trajectory_id: TrajectoryId
    task_id: TaskId
    group_id: GroupId
    state: str
    received_at_s: float
    accepted_at_s: float
    started_at_s: float
    finished_at_s: float
    reason: str = ""
    detail: str = ""
    terminal_at_s: float | None = None
    group_size: int = 1
    curriculum_bin: str = "all"
    reward: float | None = None
    num_steps: int = 0
    length_tokens: int = 0
    num_episodes: int = 0
    mean_return: float | None = None
    oldest_lineage: LineageName | None = None
    oldest_step: int | None = None
    newest_lineage: LineageName | None = None
    newest_step: int | None = None
    spans: bytes | None = None
    frame_id: int | None = None
    frame_index: int = 0
    num_revivals: int = 0


INSERT_ROW = (
    f"INSERT INTO trajectories ({', '.join(NewRow._fields)}) VALUES ({', '.join('?' * len(NewRow._fields))})"
)
CANDIDATE_COLUMNS = "seq, trajectory_id, group_id, group_size, spans, started_at_s, frame_id"


def arrived(
    candidate: Candidate, trajectory: Trajectory, *, frame_index: int, received_at_s: float, now_s: float
) -> NewRow:
    """The row of a trajectory that arrived."""
    oldest, newest = trajectory.spans[0].version, trajectory.spans[-1].version
    returns = [episode.episode_return for episode in trajectory.episodes]
    return NewRow(
        seq=candidate.seq,
        trajectory_id=trajectory.trajectory_id,
        task_id=trajectory.task_id,
        group_id=trajectory.group_id,
        state="available",
        received_at_s=received_at_s,
        accepted_at_s=now_s,
        started_at_s=trajectory.started_at_s,
        finished_at_s=trajectory.finished_at_s,
        group_size=trajectory.group_size,
        curriculum_bin=trajectory.curriculum_bin,
        reward=trajectory.reward,
        num_steps=trajectory.num_steps,
        length_tokens=trajectory.length_tokens,
        num_episodes=len(returns),
        mean_return=sum(returns) / len(returns) if returns else None,
        oldest_lineage=oldest.lineage,
        oldest_step=oldest.step,
        newest_lineage=newest.lineage,
        newest_step=newest.step,
        spans=_spans_encoder.encode(trajectory.spans),
        frame_id=candidate.frame_id,
        frame_index=frame_index,
    )


def never_arrived(
    seq: int, trajectory_id: TrajectoryId, *, state: str, now_s: float, reason: str = "", detail: str = ""
) -> NewRow:
    """The row of a trajectory that ended, or was trained by a lost ledger's account, without a payload here."""
    return NewRow(
        seq=seq,
        trajectory_id=trajectory_id,
        task_id=task_of(trajectory_id),
        group_id=GroupId(""),
        state=state,
        received_at_s=now_s,
        accepted_at_s=now_s,
        started_at_s=now_s,
        finished_at_s=now_s,
        reason=reason,
        detail=detail[:DETAIL_CHARACTERS_MAX],
        terminal_at_s=now_s,
    )


def candidate_of(seq: int, trajectory: Trajectory, *, frame_id: int) -> Candidate:
    """What batching needs to know of a trajectory that arrived."""
    return Candidate(
        seq=seq,
        trajectory_id=trajectory.trajectory_id,
        group_id=trajectory.group_id,
        group_size=trajectory.group_size,
        spans=trajectory.spans,
        started_at_s=trajectory.started_at_s,
        frame_id=frame_id,
    )


def candidate_from_row(row: Sequence[Any]) -> Candidate:
    """A row of ``CANDIDATE_COLUMNS``."""
    seq, trajectory_id, group_id, group_size, spans, started_at_s, frame_id = row
    return Candidate(
        seq=seq,
        trajectory_id=TrajectoryId(trajectory_id),
        group_id=GroupId(group_id),
        group_size=group_size,
        spans=_spans_decoder.decode(spans),
        started_at_s=started_at_s,
        frame_id=frame_id,
    )


def version_of(lineage: str | None, step: int | None) -> PolicyVersion | None:
    """Two columns as one version; None when they are empty."""
    if lineage is None or step is None:
        return None
    return PolicyVersion(lineage=LineageName(lineage), step=step)


def tree_of(rows: Sequence[tuple[str, str | None, int]]) -> LineageTree:
    """The lineages of the run, from (name, parent, fork_step) in the order they were opened."""
    tree = LineageTree()
    for name, parent, fork_step in rows:
        tree = tree.add(
            Lineage(
                name=LineageName(name), parent=LineageName(parent) if parent else None, fork_step=fork_step
            )
        )
    return tree
