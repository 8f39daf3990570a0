"""Identifiers as types, so that a learner step cannot pass for a version, nor a task for a trajectory."""

from typing import NewType

import msgspec

RunId = NewType("RunId", str)
TaskId = NewType("TaskId", str)
TrajectoryId = NewType("TrajectoryId", str)
GroupId = NewType("GroupId", str)
PromptId = NewType("PromptId", str)
LineageName = NewType("LineageName", str)


class PolicyVersion(msgspec.Struct, frozen=True, order=True, gc=False):
    """One published policy: ``step`` counts the updates published in ``lineage`` and in what it forked from."""

    lineage: LineageName
    step: int

    def __str__(self) -> str:
        """``lineage@step``, as logs and traces print it."""
        return f"{self.lineage}@{self.step}"


def parse_version(text: str) -> PolicyVersion:
    """Read back what ``str(version)`` wrote.

    Raises:
        ValueError: ``text`` is not ``lineage@step``.
    """
    lineage, separator, step = text.rpartition("@")
    if not separator or not lineage:
        raise ValueError(f"{text!r} is not a policy version such as '0-3fa2@17'")
    return PolicyVersion(lineage=LineageName(lineage), step=int(step))


def trajectory_id(task_id: TaskId, *, sample_index: int) -> TrajectoryId:
    """The id of a task's n-th sample.

    It depends on the task alone and not on the attempt: a task that is tried twice yields the same ids, and the
    ledger's unique key turns the second try into a counted duplicate (I3).
    """
    return TrajectoryId(f"{task_id}.{sample_index}")


def task_of(trajectory: TrajectoryId) -> TaskId:
    """The task a trajectory id came from (inverse of ``trajectory_id``)."""
    return TaskId(trajectory.rpartition(".")[0])


def task_id(seq: int) -> TaskId:
    """The id of the ``seq``-th admitted task."""
    return TaskId(f"t{seq:010d}")


def position_of(trajectory: str) -> tuple[int, int] | None:
    """Task number and sample index of a trajectory id; None for an id the task queue cannot have made."""
    task, separator, sample = trajectory.rpartition(".")
    if not separator or not task.startswith("t") or not task[1:].isdecimal() or not sample.isdecimal():
        return None
    where = int(task[1:]), int(sample)
    # One trajectory, one spelling: a foreign "t1.0" must not pass for "t0000000001.0".
    return where if trajectory_at(*where) == trajectory else None


def trajectory_at(seq: int, sample_index: int) -> TrajectoryId:
    """The inverse of ``position_of``."""
    return trajectory_id(task_id(seq), sample_index=sample_index)
