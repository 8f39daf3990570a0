"""A task in flight to the store."""

from tidegate.core.ids import PolicyVersion, TrajectoryId, trajectory_id
from tidegate.core.records import Task, VersionSpan


class Rollout:
    """An admitted task, and its rollout. Owned by one part at a time."""

    __slots__ = ("began_s", "ids", "num_samples", "required", "spans", "started_at_s", "task_id")

    def __init__(self, task: Task) -> None:
        self.task_id = task.task_id
        self.num_samples = task.num_samples
        self.required: PolicyVersion = task.required_version
        self.ids: tuple[TrajectoryId, ...] = tuple(
            trajectory_id(task.task_id, sample_index=index) for index in range(task.num_samples)
        )
        self.spans: tuple[VersionSpan, ...] = ()
        # By the actor's clock, as recorded, and by the true one.
        self.started_at_s = 0.0
        self.began_s = 0.0
