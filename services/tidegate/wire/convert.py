"""Core values to protobuf messages and back, one pair of functions for each type. ``wire.frame`` has the tensors."""

from collections.abc import Sequence
from typing import cast

from google.protobuf.message import DecodeError

from tidegate.core.errors import RecordError
from tidegate.core.ids import GroupId, LineageName, PolicyVersion, PromptId, RunId, TaskId, TrajectoryId
from tidegate.core.records import (
    Array,
    EpisodeEnd,
    Sampler,
    StageTiming,
    Task,
    TaskKind,
    ToolCall,
    Trajectory,
    VersionSpan,
)
from tidegate.core.staleness import Lineage, LineageTree
from tidegate.v1 import policy_pb2, trajectory_pb2
from tidegate.wire.bounds import check_lineages, shown

_KIND_TO_PROTO: dict[TaskKind, trajectory_pb2.TaskKind.ValueType] = {
    "segment": trajectory_pb2.TASK_KIND_SEGMENT,
    "group": trajectory_pb2.TASK_KIND_GROUP,
    "evaluation": trajectory_pb2.TASK_KIND_EVALUATION,
}
_KIND_FROM_PROTO: dict[int, TaskKind] = {int(value): kind for kind, value in _KIND_TO_PROTO.items()}


def version_to_proto(version: PolicyVersion) -> policy_pb2.PolicyVersion:
    """A version as a message."""
    return policy_pb2.PolicyVersion(lineage=version.lineage, step=version.step)


def version_from_proto(message: policy_pb2.PolicyVersion) -> PolicyVersion:
    """A version from a message."""
    return PolicyVersion(lineage=LineageName(message.lineage), step=message.step)


def lineage_to_proto(lineage: Lineage) -> policy_pb2.Lineage:
    """A lineage as a message; no parent is the empty string."""
    return policy_pb2.Lineage(name=lineage.name, parent=lineage.parent or "", fork_step=lineage.fork_step)


def lineage_from_proto(message: policy_pb2.Lineage) -> Lineage:
    """A lineage from a message."""
    parent = LineageName(message.parent) if message.parent else None
    return Lineage(name=LineageName(message.name), parent=parent, fork_step=message.fork_step)


def tree_to_proto(tree: LineageTree) -> list[policy_pb2.Lineage]:
    """All lineages, parents before children (the order they were added in)."""
    return [lineage_to_proto(lineage) for lineage in tree.lineages.values()]


def tree_from_proto(messages: Sequence[policy_pb2.Lineage]) -> LineageTree:
    """The tree from a message.

    Raises:
        RecordError: there are too many lineages, or one is impossible.
        UnknownVersionError: a lineage names a parent that does not come before it.
    """
    check_lineages(messages)
    return LineageTree().add_all([lineage_from_proto(message) for message in messages])


def sampler_to_proto(sampler: Sampler) -> trajectory_pb2.Sampler:
    """Sampler settings as a message."""
    return trajectory_pb2.Sampler(
        temperature=sampler.temperature,
        top_p=sampler.top_p,
        top_k=sampler.top_k,
        max_new_tokens=sampler.max_new_tokens,
    )


def sampler_from_proto(message: trajectory_pb2.Sampler) -> Sampler:
    """Sampler settings from a message."""
    return Sampler(
        temperature=message.temperature,
        top_p=message.top_p,
        top_k=message.top_k,
        max_new_tokens=message.max_new_tokens,
    )


def task_to_bytes(task: Task) -> bytes:
    """A task as the body of a TASKS message."""
    return trajectory_pb2.Task(
        task_id=task.task_id,
        run_id=task.run_id,
        kind=_KIND_TO_PROTO[task.kind],
        required_version=version_to_proto(task.required_version),
        num_samples=task.num_samples,
        attempt=task.attempt,
        prompt_id=task.prompt_id,
        prompt=task.prompt,
        answer=task.answer,
        env_id=task.env_id,
        curriculum_bin=task.curriculum_bin,
        seed=task.seed,
        unroll_length=task.unroll_length,
        sampler=sampler_to_proto(task.sampler),
        admitted_at_s=task.admitted_at_s,
        trace_parent=task.trace_parent,
        key=task.key,
    ).SerializeToString()


def with_task_key(spec: bytes, key: bytes) -> bytes:
    """The body of a TASKS message with its key: bytes of one message that follow each other are one message."""
    return spec + trajectory_pb2.Task(key=key).SerializeToString()


def task_from_bytes(data: bytes) -> Task:
    """A task from the body of a TASKS message.

    Raises:
        RecordError: the bytes are no task, or its kind or id is missing.
    """
    message = trajectory_pb2.Task()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise RecordError("A task message cannot be parsed", why=str(error)) from error
    kind = _KIND_FROM_PROTO.get(message.kind)
    if kind is None or not message.task_id:
        raise RecordError(
            "A task message has no kind or no id",
            why=f"kind={message.kind}, task_id={shown(message.task_id)}",
        )
    return Task(
        task_id=TaskId(message.task_id),
        run_id=RunId(message.run_id),
        kind=kind,
        required_version=version_from_proto(message.required_version),
        num_samples=message.num_samples,
        attempt=message.attempt,
        prompt_id=PromptId(message.prompt_id),
        prompt=message.prompt,
        answer=message.answer,
        env_id=message.env_id,
        curriculum_bin=message.curriculum_bin,
        seed=message.seed,
        unroll_length=message.unroll_length,
        sampler=sampler_from_proto(message.sampler),
        admitted_at_s=message.admitted_at_s,
        trace_parent=message.trace_parent,
        key=message.key,
    )


def stage_to_proto(stage: StageTiming) -> trajectory_pb2.StageTiming:
    """The timing of one stage as a message."""
    return trajectory_pb2.StageTiming(
        stage=stage.stage,
        worker=stage.worker,
        started_at_s=stage.started_at_s,
        finished_at_s=stage.finished_at_s,
    )


def stage_from_proto(message: trajectory_pb2.StageTiming) -> StageTiming:
    """The timing of one stage from a message."""
    return StageTiming(
        stage=message.stage,
        worker=message.worker,
        started_at_s=message.started_at_s,
        finished_at_s=message.finished_at_s,
    )


def envelope_to_proto(trajectory: Trajectory) -> trajectory_pb2.TrajectoryEnvelope:
    """A trajectory without its tensors, as the answer of a query."""
    envelope = trajectory_pb2.TrajectoryEnvelope(
        trajectory_id=trajectory.trajectory_id,
        run_id=trajectory.run_id,
        task_id=trajectory.task_id,
        group_id=trajectory.group_id,
        group_size=trajectory.group_size,
        num_steps=trajectory.num_steps,
        prompt_id=trajectory.prompt_id,
        prompt=trajectory.prompt,
        answer=trajectory.answer,
        completion=trajectory.completion,
        attempt=trajectory.attempt,
        curriculum_bin=trajectory.curriculum_bin,
        reward=trajectory.reward,
        reward_components=trajectory.reward_components,
        verifier_log=trajectory.verifier_log,
        sampler=sampler_to_proto(trajectory.sampler),
        actor_id=trajectory.actor_id,
        env_id=trajectory.env_id,
        length_tokens=trajectory.length_tokens,
        finish_reason=trajectory.finish_reason,
        started_at_s=trajectory.started_at_s,
        finished_at_s=trajectory.finished_at_s,
        trace_parent=trajectory.trace_parent,
        stream_id=trajectory.stream_id,
        stream_position=trajectory.stream_position,
    )
    for span in trajectory.spans:
        envelope.spans.add(version=version_to_proto(span.version), start=span.start, stop=span.stop)
    for episode in trajectory.episodes:
        envelope.episodes.add(
            episode_return=episode.episode_return, length=episode.length, position=episode.position
        )
    for call in trajectory.tool_calls:
        envelope.tool_calls.add(
            name=call.name,
            arguments=call.arguments,
            result=call.result,
            started_at_s=call.started_at_s,
            finished_at_s=call.finished_at_s,
        )
    envelope.stages.extend(stage_to_proto(stage) for stage in trajectory.stages)
    if trajectory.reference_version is not None:
        envelope.reference_version.CopyFrom(version_to_proto(trajectory.reference_version))
    return envelope


def envelope_from_proto(message: trajectory_pb2.TrajectoryEnvelope, tensors: dict[str, Array]) -> Trajectory:
    """A trajectory from its envelope and its decoded tensors."""
    return Trajectory(
        trajectory_id=TrajectoryId(message.trajectory_id),
        run_id=RunId(message.run_id),
        task_id=TaskId(message.task_id),
        group_id=GroupId(message.group_id),
        group_size=message.group_size,
        # Tuples from lists: this runs for every trajectory, and a generator costs more than its items.
        spans=tuple(
            [VersionSpan(version_from_proto(span.version), span.start, span.stop) for span in message.spans]
        ),
        tensors=tensors,
        num_steps=message.num_steps,
        prompt_id=PromptId(message.prompt_id),
        prompt=message.prompt,
        answer=message.answer,
        completion=message.completion,
        attempt=message.attempt,
        curriculum_bin=message.curriculum_bin,
        reference_version=(
            version_from_proto(message.reference_version) if message.HasField("reference_version") else None
        ),
        reward=message.reward if message.HasField("reward") else None,
        reward_components=dict(cast("dict[str, float]", message.reward_components)),
        verifier_log=message.verifier_log,
        episodes=tuple(
            [EpisodeEnd(end.episode_return, end.length, end.position) for end in message.episodes]
        ),
        tool_calls=tuple(
            [
                ToolCall(
                    name=call.name,
                    arguments=call.arguments,
                    result=call.result,
                    started_at_s=call.started_at_s,
                    finished_at_s=call.finished_at_s,
                )
                for call in message.tool_calls
            ]
        ),
        sampler=sampler_from_proto(message.sampler),
        actor_id=message.actor_id,
        env_id=message.env_id,
        length_tokens=message.length_tokens,
        finish_reason=message.finish_reason,
        started_at_s=message.started_at_s,
        finished_at_s=message.finished_at_s,
        stages=tuple([stage_from_proto(stage) for stage in message.stages]),
        trace_parent=message.trace_parent,
        stream_id=message.stream_id,
        stream_position=message.stream_position,
    )
