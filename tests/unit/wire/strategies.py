"""Records of every shape, for round trips."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from tidegate.core.ids import GroupId, LineageName, PolicyVersion, PromptId, RunId, TaskId, TrajectoryId
from tidegate.core.records import EpisodeEnd, Sampler, StageTiming, Task, ToolCall, Trajectory, VersionSpan
from tidegate.wire.frame import DTYPES

TEXT = st.text(max_size=20)
FLOATS = st.floats(allow_nan=False)
INT32 = st.integers(0, 2**31 - 1)
INT64 = st.integers(0, 2**63 - 1)

VERSIONS = st.builds(PolicyVersion, lineage=TEXT.map(LineageName), step=INT64)
SPANS = st.builds(VersionSpan, version=VERSIONS, start=INT32, stop=INT32)
SAMPLERS = st.builds(Sampler, temperature=FLOATS, top_p=FLOATS, top_k=INT32, max_new_tokens=INT32)
STAGES = st.builds(StageTiming, stage=TEXT, worker=TEXT, started_at_s=FLOATS, finished_at_s=FLOATS)
EPISODES = st.builds(EpisodeEnd, episode_return=FLOATS, length=INT32, position=INT32)
TOOL_CALLS = st.builds(
    ToolCall, name=TEXT, arguments=TEXT, result=TEXT, started_at_s=FLOATS, finished_at_s=FLOATS
)
TASKS = st.builds(
    Task,
    task_id=st.text(min_size=1, max_size=20).map(TaskId),
    run_id=TEXT.map(RunId),
    kind=st.sampled_from(["segment", "group", "evaluation"]),
    required_version=VERSIONS,
    num_samples=INT32,
    attempt=INT32,
    prompt_id=TEXT.map(PromptId),
    prompt=TEXT,
    answer=TEXT,
    env_id=TEXT,
    curriculum_bin=TEXT,
    seed=INT64,
    unroll_length=INT32,
    sampler=SAMPLERS,
    admitted_at_s=FLOATS,
    trace_parent=TEXT,
)


@st.composite
def tensors(draw: st.DrawFn) -> NDArray[Any]:
    """Any array that travels: every dtype, up to three dimensions, empty ones and any byte pattern included."""
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    if dtype.kind == "b":
        return draw(hnp.arrays(np.bool_, shape))
    size = int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer(draw(st.binary(min_size=size, max_size=size)), dtype=dtype).reshape(shape)


TRAJECTORIES = st.builds(
    Trajectory,
    trajectory_id=TEXT.map(TrajectoryId),
    run_id=TEXT.map(RunId),
    task_id=TEXT.map(TaskId),
    group_id=TEXT.map(GroupId),
    group_size=INT32,
    spans=st.lists(SPANS, max_size=3).map(tuple),
    tensors=st.dictionaries(TEXT, tensors(), max_size=4),
    num_steps=INT64,
    prompt_id=TEXT.map(PromptId),
    prompt=TEXT,
    answer=TEXT,
    completion=TEXT,
    attempt=INT32,
    curriculum_bin=TEXT,
    reference_version=st.none() | VERSIONS,
    reward=st.none() | FLOATS,
    reward_components=st.dictionaries(TEXT, FLOATS, max_size=3),
    verifier_log=TEXT,
    episodes=st.lists(EPISODES, max_size=3).map(tuple),
    tool_calls=st.lists(TOOL_CALLS, max_size=2).map(tuple),
    sampler=SAMPLERS,
    actor_id=TEXT,
    env_id=TEXT,
    length_tokens=INT32,
    finish_reason=TEXT,
    started_at_s=FLOATS,
    finished_at_s=FLOATS,
    stages=st.lists(STAGES, max_size=3).map(tuple),
    trace_parent=TEXT,
    stream_id=TEXT,
    stream_position=INT64,
)


def assert_same(ours: Trajectory, theirs: Trajectory, *, with_tensors: bool = True) -> None:
    """Field by field; tensors by dtype, shape and bytes, so that NaNs count as they are."""
    for field in Trajectory.__struct_fields__:
        if field != "tensors":
            assert getattr(ours, field) == getattr(theirs, field), field
    if not with_tensors:
        assert theirs.tensors == {}
        return
    assert ours.tensors.keys() == theirs.tensors.keys()
    for name, tensor in ours.tensors.items():
        other = theirs.tensors[name]
        assert (tensor.dtype, tensor.shape) == (other.dtype, other.shape)
        assert tensor.tobytes() == other.tobytes()
