"""Decisions and records as pure functions: which tasks may start, and the trajectories of a finished task."""

import hashlib
from collections.abc import Sequence

import msgspec

from tidegate.actor.engines.port import Rollouts
from tidegate.core.ids import GroupId, PolicyVersion, trajectory_id
from tidegate.core.records import StageTiming, Task, Trajectory
from tidegate.core.staleness import LineageTree

STAGE_LEASE = "task.lease"
STAGE_GENERATE = "trajectory.generate"
STAGE_SCORE = "reward.score"


def may_start(task: Task, *, own: PolicyVersion | None, tree: LineageTree) -> bool:
    """Whether a task is inside its staleness budget under the policy that an actor holds."""
    return own is not None and tree.satisfies(own, task.required_version)


def split_startable(
    tasks: Sequence[Task],
    *,
    own: PolicyVersion | None,
    tree: LineageTree,
    batch_max: int,
    lengths: Sequence[float] | None = None,
) -> list[int]:
    """Positions of the tasks to start together: same kind, in order, at most ``batch_max``; evaluations alone.

    With ``lengths``, one expected length a task, the first that may start is batched with tasks of similar length and
    not with the next ones. The first always starts, so no task starves.
    """
    startable = [position for position, task in enumerate(tasks) if may_start(task, own=own, tree=tree)]
    if not startable:
        return []
    first = startable[0]
    if tasks[first].kind == "evaluation":
        return [first]
    alike = [position for position in startable[1:] if tasks[position].kind == tasks[first].kind]
    if lengths is not None:
        alike.sort(key=lambda position: abs(lengths[position] - lengths[first]))
    return sorted([first, *alike[: batch_max - 1]])


def redelivered(task: Task, *, num_delivered: int) -> Task:
    """A task at a delivery after its first: a segment draws other actions and resets then.

    An environment that hung or crashed its process on the first ones would do so at every delivery.
    """
    if task.kind != "segment":
        return task
    digest = hashlib.blake2b(f"{task.seed}/delivery/{num_delivered}".encode(), digest_size=8).digest()
    return msgspec.structs.replace(task, seed=int.from_bytes(digest, "little") >> 1)


class Provenance(msgspec.Struct, frozen=True):
    """Facts about a rollout that its engine does not know: its actor, and when the task was taken."""

    actor_id: str
    taken_at_s: float


def records_of(
    rollouts: Rollouts, provenance: Provenance, *, trace_parents: Sequence[str]
) -> list[Trajectory]:
    """The trajectories of one task, one a sample; ``trace_parents`` holds each one's trace context."""
    task = rollouts.task
    stages = (
        StageTiming(STAGE_LEASE, "task_queue", task.admitted_at_s, provenance.taken_at_s),
        StageTiming(STAGE_GENERATE, provenance.actor_id, rollouts.started_at_s, rollouts.finished_at_s),
    )
    return [
        Trajectory(
            trajectory_id=trajectory_id(task.task_id, sample_index=index),
            run_id=task.run_id,
            task_id=task.task_id,
            group_id=GroupId(task.task_id),
            group_size=len(rollouts.samples),
            spans=sample.spans,
            tensors=sample.tensors,
            num_steps=sample.num_steps,
            prompt_id=task.prompt_id,
            prompt=task.prompt,
            answer=task.answer,
            completion=sample.completion,
            attempt=task.attempt,
            curriculum_bin=task.curriculum_bin,
            reward=sample.reward,
            reward_components=sample.components,
            verifier_log=sample.log,
            episodes=sample.episodes,
            tool_calls=sample.tool_calls,
            sampler=task.sampler,
            actor_id=provenance.actor_id,
            env_id=task.env_id,
            length_tokens=sample.num_steps if task.kind == "group" else 0,
            finish_reason=sample.finish_reason,
            started_at_s=rollouts.started_at_s,
            finished_at_s=rollouts.finished_at_s,
            stages=stages,
            trace_parent=trace_parent,
            stream_id=sample.stream_id,
            stream_position=sample.stream_position,
        )
        for index, (sample, trace_parent) in enumerate(zip(rollouts.samples, trace_parents, strict=True))
    ]


def rewarded(
    record: Trajectory, *, reward: float, components: dict[str, float], log: str, stage: StageTiming
) -> Trajectory:
    """Add a verifier's verdict to a record."""
    judged = msgspec.structs.replace(record, reward=reward, reward_components=components, verifier_log=log)
    return judged.with_stage(stage)
