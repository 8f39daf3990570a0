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
