import math
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from tidegate.core.conversations import CONVERSATIONS, CONVERSATIONS_MAX
from tidegate.core.errors import RecordError
from tidegate.core.ids import GroupId, LineageName, PolicyVersion, RunId, TaskId, TrajectoryId
from tidegate.core.records import EpisodeEnd, StageTiming, Trajectory, VersionSpan
from tidegate.wire import validate
from tidegate.wire.frame import encode_frame, open_frame
from tidegate.wire.validate import are_sound, validate_frame, validate_trajectory

T, N = 4, 2


def span(start: int, stop: int, *, lineage: str = "0-aaaa", step: int = 1) -> VersionSpan:
    return VersionSpan(PolicyVersion(LineageName(lineage), step), start, stop)


def segment(**tensors: NDArray[Any]) -> Trajectory:
    return Trajectory(
        trajectory_id=TrajectoryId("t-1.0"),
        run_id=RunId("run-1"),
        task_id=TaskId("t-1"),
        group_id=GroupId("t-1"),
        group_size=1,
        spans=(span(0, T),),
        tensors={
            "observations": np.zeros((T + 1, N, 3), np.float32),
            "actions": np.zeros((T, N), np.int32),
            "behavior_logprobs": np.full((T, N), -0.7, np.float32),
            "rewards": np.ones((T, N), np.float32),
            "terminated": np.zeros((T, N), np.bool_),
            "truncated": np.zeros((T, N), np.bool_),
            "valid": np.ones((T, N), np.bool_),
            **tensors,
        },
        num_steps=T * N,
    )


def completion() -> Trajectory:
    return msgspec.structs.replace(
        segment(),
        tensors={
            "prompt_tokens": np.zeros(7, np.int64),
            "tokens": np.zeros(T, np.int64),
            "behavior_logprobs": np.full(T, -0.7, np.float32),
        },
        reward=1.0,
    )


def check(trajectory: Trajectory, **changes: object) -> None:
    """Validate one record alone, and check the same result in a frame, alone and after a valid one."""
    record = msgspec.structs.replace(trajectory, **changes)
    for records in ([record], [sibling(trajectory), record]):
        assert refusal_of_frame(records) == refusal(record)
    together = [
        open_frame(encode_frame([each])) for each in (sibling(trajectory), record, sibling(trajectory))
    ]
    assert refusal(record) is None or not are_sound(together, run_id="run-1")
    validate_trajectory(record, run_id="run-1")


def sibling(trajectory: Trajectory) -> Trajectory:
    """Another, valid sample of the same task."""
    tensors = trajectory.tensors
    good = mixed() if "observations.room" in tensors else segment() if "actions" in tensors else completion()
    return msgspec.structs.replace(good, trajectory_id=TrajectoryId("t-1.7"))


def refusal(record: Trajectory) -> str | None:
    try:
        validate_trajectory(record, run_id="run-1")
    except RecordError as error:
        return str(error)
    return None


def refusal_of_frame(records: list[Trajectory]) -> str | None:
    try:
        validate_frame(open_frame(encode_frame(records)), run_id="run-1")
    except RecordError as error:
        return str(error)
    return None


def test_segments_and_completions_as_actors_record_them_pass() -> None:
    check(segment())
    check(completion())
    check(completion(), spans=(span(0, 1), span(1, T, step=2)))


def test_good_frame_is_not_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def record_call(trajectory: Trajectory, *, run_id: str) -> None:
        raise AssertionError(f"{trajectory.trajectory_id} of {run_id} was looked at alone")

    monkeypatch.setattr(validate, "validate_trajectory", record_call)
    short = msgspec.structs.replace(
        completion(),
        spans=(span(0, 1), span(1, 2, step=2)),
        tensors={name: tensor[:2] for name, tensor in completion().tensors.items()},
    )
    for records in ([segment()], [completion(), sibling(completion())], [completion(), short]):
        validate_frame(open_frame(encode_frame(records)), run_id="run-1")
    frames = [
        open_frame(encode_frame(records)) for records in ([segment()], [completion(), short], [segment()])
    ]
    assert are_sound(frames, run_id="run-1")


@pytest.mark.parametrize(
    "changes",
    [
        {"run_id": "run-2"},
        {"task_id": ""},
        {"task_id": "t-2"},
        {"trajectory_id": "t-1"},
        {"group_id": ""},
        {"group_size": 0},
        {"group_size": 2**31 - 1},
        {"trajectory_id": "t-1./0"},
        {"group_id": "g" * 200},
        {"group_id": "g 1"},
        {"num_steps": 2**63 - 1},
        {"trace_parent": "zz1"},
        {"stages": (StageTiming("score", "worker", 1e300, 1e300),)},
        {"spans": (span(0, T, step=2**62),)},
        {"spans": (span(0, T, lineage="a b"),)},
        {"reward": 3e38},
        {"reward": 1e300},
        {"episodes": (EpisodeEnd(-1e300, 1, 1),)},
        {"num_steps": -1},
        {"started_at_s": math.nan},
        {"started_at_s": -math.inf},
        {"finished_at_s": math.nan},
        {"reward": math.nan},
        {"reward": math.inf},
        {"episodes": (EpisodeEnd(math.nan, 1, 1),)},
    ],
)
def test_record_whose_identity_times_or_rewards_are_wrong_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(RecordError, match="t-1"):
        check(segment(), **changes)


@pytest.mark.parametrize(
    "spans",
    [
        (),
        (span(0, T - 1),),
        (span(0, T + 1),),
        (span(1, T),),
        (span(0, 2), span(3, T)),
        (span(0, 2), span(1, T)),
        (span(0, 0), span(0, T)),
        (span(0, T, lineage=""),),
        (span(0, T, step=-1),),
    ],
)
def test_spans_must_give_each_position_exactly_one_version(spans: tuple[VersionSpan, ...]) -> None:
    with pytest.raises(RecordError, match=r"version|versions"):
        check(segment(), spans=spans)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.1])
def test_impossible_logprob_is_refused(value: float) -> None:
    logprobs = np.full((T, N), -0.7, np.float32)
    logprobs[2, 1] = value
    with pytest.raises(RecordError, match="no policy can produce"):
        check(segment(behavior_logprobs=logprobs))


def test_logprob_may_exceed_zero_by_rounding() -> None:
    check(segment(behavior_logprobs=np.full((T, N), 1e-6, np.float32)))


def test_record_without_logprobs_is_refused() -> None:
    bare = segment()
    del bare.tensors["behavior_logprobs"]
    with pytest.raises(RecordError, match="carries no behavior_logprobs"):
        check(bare)


def test_scalar_and_empty_logprobs_are_refused() -> None:
    with pytest.raises(RecordError, match="logprobs of shape"):
        check(segment(behavior_logprobs=np.array(-0.7, np.float32)))
    with pytest.raises(RecordError, match="logprobs of shape"):
        check(completion(), spans=(), tensors={"behavior_logprobs": np.zeros(0, np.float32)})


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("actions", (T, N + 1)),
        ("actions", (T - 1, N)),
        ("rewards", (T,)),
        ("valid", (N, T)),
        ("observations", (T, N, 3)),
        ("observations", (T + 1, N + 1, 3)),
        ("tokens", (T + 1,)),
    ],
)
def test_tensor_that_does_not_fit_its_logprobs_is_refused(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(RecordError, match=f"{name} of shape"):
        check(segment(**{name: np.zeros(shape, np.float32)}))


def episode(chosen: NDArray[Any], **changes: Any) -> Trajectory:
    """A completion of two turns with a reply between them."""
    record = completion()
    logprobs = np.array([-0.7, 0.0, -0.7, -0.7], np.float32)
    tensors = {**record.tensors, "behavior_logprobs": logprobs, "chosen": chosen}
    return msgspec.structs.replace(record, tensors=tensors, num_steps=3, **changes)


CHOSEN = np.array([True, False, True, True])


def test_episode_with_replies_passes_and_is_not_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    check(episode(CHOSEN))
    monkeypatch.setattr(validate, "validate_trajectory", None)
    validate_frame(open_frame(encode_frame([episode(CHOSEN), episode(CHOSEN)])), run_id="run-1")


@pytest.mark.parametrize(
    "wrong",
    [
        episode(CHOSEN.astype(np.int32)),
        episode(np.array([True, True, True, True])),
        episode(np.array([True, False, False, True])),
        episode(np.array([True, True, False, True])),
        msgspec.structs.replace(episode(np.zeros(4, np.bool_)), num_steps=0),
    ],
)
def test_choices_that_do_not_fit_their_logprobs_are_refused(wrong: Trajectory) -> None:
    with pytest.raises(RecordError, match="which of its tokens the policy chose"):
        check(wrong)


def test_choices_of_another_length_are_refused() -> None:
    with pytest.raises(RecordError, match="chosen of shape"):
        check(episode(CHOSEN[:3]))


def several(lengths: NDArray[Any]) -> Trajectory:
    """A completion of several conversations: 7 tokens of prompts, 4 of replies."""
    record = completion()
    return msgspec.structs.replace(record, tensors={**record.tensors, CONVERSATIONS: lengths})


def test_conversations_that_divide_their_tokens_pass() -> None:
    check(several(np.array([[3, 1], [4, 3]], np.int32)))


@pytest.mark.parametrize(
    "lengths",
    [
        np.array([[3, 1], [4, 4]], np.int32),
        np.array([[7, 0], [0, 4]], np.int32),
        np.array([[8, 3], [-1, 1]], np.int32),
        np.array([[3, 1], [4, 3]], np.int64),
        np.array([7, 4], np.int32),
        np.zeros((0, 2), np.int32),
        np.array([[7, 4, 0]], np.int32),
        np.ones((CONVERSATIONS_MAX + 1, 2), np.int32),
        np.array([[2**31 - 1, 2**31 - 1], [2**31 - 1, 2**31 - 1], [9, 6]], np.int32),
    ],
    ids=lambda lengths: f"{lengths.dtype}{lengths.shape}{lengths[:1].tolist()}",
)
def test_conversations_that_do_not_are_refused(lengths: NDArray[Any]) -> None:
    with pytest.raises(RecordError, match="conversations"):
        check(several(lengths))


@pytest.mark.parametrize("missing", ["tokens", "prompt_tokens"])
def test_conversations_of_a_record_without_tokens_are_refused(missing: str) -> None:
    record = several(np.array([[7, 4]], np.int32))
    tensors = {name: tensor for name, tensor in record.tensors.items() if name != missing}
    with pytest.raises(RecordError, match="conversations"):
        check(msgspec.structs.replace(record, tensors=tensors))


def mixed() -> Trajectory:
    """Observations of three parts, with continuous actions whose density is above 1."""
    record = segment(
        actions=np.zeros((T, N, 2), np.float32), behavior_logprobs=np.full((T, N), 3.0, np.float32)
    )
    del record.tensors["observations"]
    record.tensors["observations.angle"] = np.zeros((T + 1, N, 3), np.float32)
    record.tensors["observations.room"] = np.zeros((T + 1, N), np.int32)
    record.tensors["observations.picture"] = np.full((T + 1, N, 4, 4), 255, np.uint8)
    record.tensors["memory"] = np.zeros((N, 6), np.float32)
    return record


def test_parts_of_observations_and_continuous_actions_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    check(mixed())
    monkeypatch.setattr(validate, "validate_trajectory", None)
    validate_frame(open_frame(encode_frame([mixed(), mixed()])), run_id="run-1")


@pytest.mark.parametrize("name", ["observations.angle", "observations.room", "observations.picture"])
def test_a_part_of_another_length_is_refused(name: str) -> None:
    record = mixed()
    record.tensors[name] = record.tensors[name][:-1]
    with pytest.raises(RecordError, match=f"{name} of shape"):
        check(record)


@pytest.mark.parametrize("name", ["observations.angle", "actions", "behavior_logprobs", "memory"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_one_value_of_a_part_that_is_not_finite_is_enough(name: str, value: float) -> None:
    record = mixed()
    record.tensors[name] = record.tensors[name].copy()
    record.tensors[name].reshape(-1)[3] = value
    with pytest.raises(RecordError, match=name):
        check(record)


@pytest.mark.parametrize("name", ["observations", "rewards"])
def test_values_that_are_not_finite_are_refused(name: str) -> None:
    record = segment()
    record.tensors[name] = np.full_like(record.tensors[name], np.nan)
    with pytest.raises(RecordError, match=f"nan in {name}"):
        check(record)


@pytest.mark.parametrize("name", ["observations", "rewards", "behavior_logprobs"])
@pytest.mark.parametrize("position", [0, -1])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_value_that_is_not_finite_is_enough(name: str, position: int, value: float) -> None:
    record = segment()
    record.tensors[name] = record.tensors[name].copy()
    record.tensors[name].reshape(-1)[position] = value
    with pytest.raises(RecordError, match=name):
        check(record)


def test_padding_of_tensors_is_not_validated() -> None:
    frame = open_frame(encode_frame([segment()]))
    payload = bytearray(frame.payload)
    padding = np.ones(len(payload), np.bool_)
    for place in frame.layout.places:
        padding[place.offset :][: place.values(frame.payload).nbytes] = False
    np.frombuffer(payload, np.uint8)[padding] = 0xFF
    assert padding.any()
    validate_frame(msgspec.structs.replace(frame, payload=memoryview(payload)), run_id="run-1")


@pytest.mark.parametrize("name", ["rewards", "behavior_logprobs", "observations", "values"])
def test_finite_value_that_float32_cannot_sum_is_refused_and_named(name: str) -> None:
    record = segment(values=np.zeros((T, N), np.float32))
    tensor = record.tensors[name].copy()
    tensor.flat[1] = -3e38
    with pytest.raises(RecordError, match=rf"-3\.0+\d*e\+38 in {name}"):
        check(segment(**{**record.tensors, name: tensor}))
