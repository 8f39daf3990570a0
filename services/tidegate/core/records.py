"""The record: what travels from task to gradient.

All values are frozen; a transition returns a new one. Times are seconds since the epoch (``_at_s``) unless the name has
another unit.
"""

from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from tidegate.core.ids import GroupId, PolicyVersion, PromptId, RunId, TaskId, TrajectoryId

Array: TypeAlias = NDArray[Any]

TaskKind = Literal["segment", "group", "evaluation"]

DropReason = Literal[
    "stale", "expired", "invalid", "failed", "superseded", "settled", "retired", "unsampled", "poisoned"
]
DROP_REASONS: tuple[DropReason, ...] = (
    "stale",
    "expired",
    "invalid",
    "failed",
    "superseded",
    "settled",
    "retired",
    "unsampled",
    "poisoned",
)


class Sampler(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How tokens are drawn. Recorded with every trajectory, because truncated sampling renormalises the policy."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 16


class Task(msgspec.Struct, frozen=True):
    """One unit of rollout work: a prompt with its group of samples, or the credit for one segment.

    ``required_version`` is the oldest policy that may start it: starting under an older one would overshoot the
    staleness budget by the time its batch is trained. ``evaluation`` tasks are control work and never become
    trajectories. ``key``: proves to the trajectory store who was given the task (``wire.task_proof``).
    """

    task_id: TaskId
    run_id: RunId
    kind: TaskKind
    required_version: PolicyVersion
    num_samples: int = 1
    attempt: int = 1
    prompt_id: PromptId = PromptId("")
    prompt: str = ""
    answer: str = ""
    env_id: str = ""
    curriculum_bin: str = "all"
    seed: int = 0
    unroll_length: int = 0
    sampler: Sampler = Sampler()
    admitted_at_s: float = 0.0
    trace_parent: str = ""
    key: bytes = b""


class VersionSpan(msgspec.Struct, frozen=True, gc=False):
    """Positions ``[start, stop)`` of tokens or steps that one version produced (I5)."""

    version: PolicyVersion
    start: int
    stop: int


class StageTiming(msgspec.Struct, frozen=True):
    """One hop of a trajectory's life, appended by the service that did the work; what ``tidegate trace`` prints."""

    stage: str
    worker: str
    started_at_s: float
    finished_at_s: float


class EpisodeEnd(msgspec.Struct, frozen=True):
    """An episode that ended inside this trajectory: its return, its length, and at which step of the trajectory."""

    episode_return: float
    length: int
    position: int


class ToolCall(msgspec.Struct, frozen=True):
    """One call of a tool made by the policy, with what came back."""

    name: str
    arguments: str
    result: str
    started_at_s: float
    finished_at_s: float


class Trajectory(msgspec.Struct, frozen=True, eq=False):
    """The record of one finished rollout.

    ``tensors`` maps names to C-contiguous arrays: for segments ``observations (T+1,N,O)``, ``actions (T,N)``,
    ``behavior_logprobs (T,N)``, ``rewards``, ``terminated``, ``truncated``, ``valid``; for completions
    ``prompt_tokens (P,)``, ``tokens (T,)``, ``behavior_logprobs (T,)``. ``num_steps`` is what throughput counts:
    environment steps or generated tokens. ``stream_id``: the vectorised environments that made a segment, an id that no
    others have, and ``stream_position`` its number among theirs: the next number begins with the observations that this
    one ended with. Empty where that is unknown.
    """

    trajectory_id: TrajectoryId
    run_id: RunId
    task_id: TaskId
    group_id: GroupId
    group_size: int
    spans: tuple[VersionSpan, ...]
    tensors: dict[str, Array]
    num_steps: int
    prompt_id: PromptId = PromptId("")
    prompt: str = ""
    answer: str = ""
    completion: str = ""
    attempt: int = 1
    curriculum_bin: str = "all"
    reference_version: PolicyVersion | None = None
    reward: float | None = None
    reward_components: dict[str, float] = {}
    verifier_log: str = ""
    episodes: tuple[EpisodeEnd, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    sampler: Sampler = Sampler()
    actor_id: str = ""
    env_id: str = ""
    length_tokens: int = 0
    finish_reason: str = ""
    started_at_s: float = 0.0
    finished_at_s: float = 0.0
    stages: tuple[StageTiming, ...] = ()
    trace_parent: str = ""
    stream_id: str = ""
    stream_position: int = 0

    def with_stage(self, stage: StageTiming) -> "Trajectory":
        """The same trajectory, one hop older."""
        return msgspec.structs.replace(self, stages=(*self.stages, stage))


class PolicySnapshot(msgspec.Struct, frozen=True, eq=False):
    """One published policy: its version and its parameters as a flat dict of float32 arrays.

    ``base_digest``: identifies the model that they are adapters of; empty when they are all weights.
    """

    version: PolicyVersion
    tensors: dict[str, Array]
    published_at_s: float = 0.0
    base_digest: str = ""

    def num_bytes(self) -> int:
        """Bytes of all tensors, which decides whether it travels inline."""
        return sum(int(np.asarray(tensor).nbytes) for tensor in self.tensors.values())
