"""Progress round trips, any bytes decode to progress or a refusal, and a message never exceeds its limit."""

from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given

from tidegate.core.errors import RecordError
from tidegate.core.ids import LineageName, PolicyVersion, RunId, TaskId
from tidegate.core.records import Sampler, Task, ToolCall, VersionSpan
from tidegate.wire.digest import digest_of
from tidegate.wire.progress import (
    MAGIC,
    Progress,
    SampleProgress,
    check_progress,
    decode_progress,
    encode_progress,
)

TEXT = st.text(max_size=12)
# Times and rewards.
FINITE = st.floats(-1e10, 1e10)
FINITE_CALLS = st.builds(
    ToolCall, name=TEXT, arguments=TEXT, result=TEXT, started_at_s=FINITE, finished_at_s=FINITE
)


@st.composite
def samples(draw: st.DrawFn, *, index: int) -> SampleProgress:
    """Turns and replies in turn, each token with a version."""
    lengths = draw(st.lists(st.integers(1, 5), max_size=5))
    tokens = np.array(draw(st.lists(st.integers(0, 2**31 - 1), min_size=sum(lengths), max_size=sum(lengths))))
    logprobs = np.array(
        draw(st.lists(st.floats(-100, 0, width=32), min_size=len(tokens), max_size=len(tokens))), np.float32
    )
    edges = [0, *np.cumsum(lengths).tolist()]
    replies = [(edges[turn], edges[turn + 1]) for turn in range(1, len(lengths), 2)]
    for start, stop in replies:
        logprobs[start:stop] = 0.0
    steps = draw(st.lists(st.integers(0, 2**63 - 1), min_size=len(lengths), max_size=len(lengths)))
    spans = [
        VersionSpan(PolicyVersion(LineageName("0-a"), step), edges[turn], edges[turn + 1])
        for turn, step in enumerate(steps)
    ]
    return SampleProgress(
        index=index,
        tokens=tokens.astype(np.int32),
        logprobs=logprobs,
        spans=tuple(spans),
        replies=tuple(replies),
        opening=draw(TEXT),
        reply=draw(TEXT),
        reward=draw(st.none() | FINITE),
        components=draw(st.dictionaries(TEXT, FINITE, max_size=2)),
        tool_calls=tuple(draw(st.lists(FINITE_CALLS, max_size=2))),
        log=draw(TEXT),
        finish_reason=draw(st.sampled_from(["", "stop", "length", "turns"])),
    )


@st.composite
def progresses(draw: st.DrawFn) -> Progress:
    num_samples = draw(st.integers(1, 5))
    started = sorted(draw(st.sets(st.integers(0, num_samples - 1))))
    return Progress(
        run_id=RunId("run-1"),
        task_id=TaskId("t-1"),
        attempt=draw(st.integers(0, 5)),
        num_samples=num_samples,
        started_at_s=draw(FINITE),
        max_new_tokens=draw(st.integers(0, 2**31 - 1)),
        samples=tuple([draw(samples(index=index)) for index in started]),
        tokens_left_out=draw(st.integers(0, 1000)),
        written_at_s=draw(FINITE),
    )


def rows(progress: Progress) -> Any:
    """Everything of it as plain values, tensors as dtype and bytes."""
    fields = {name: getattr(progress, name) for name in Progress.__struct_fields__}
    fields["samples"] = [
        {name: getattr(sample, name) for name in SampleProgress.__struct_fields__}
        | {"tokens": sample.tokens.tolist(), "logprobs": sample.logprobs.tobytes()}
        for sample in progress.samples
    ]
    return fields


@given(progresses())
def test_progress_travels_as_it_is(progress: Progress) -> None:
    assert rows(decode_progress(encode_progress(progress))) == rows(progress)


@given(st.binary(max_size=200))
def test_any_bytes_give_a_refusal_or_progress(data: bytes) -> None:
    for attempt in (data, MAGIC + data, MAGIC + digest_of(data) + data):
        try:
            decode_progress(attempt)
        except RecordError:
            continue


@given(progresses(), st.data())
def test_bytes_that_changed_on_their_way_are_refused(progress: Progress, data: st.DataObject) -> None:
    sent = bytearray(encode_progress(progress))
    place = data.draw(st.integers(0, len(sent) - 1))
    sent[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(RecordError):
        decode_progress(bytes(sent))
    with pytest.raises(RecordError):
        decode_progress(encode_progress(progress)[:-1])


def sample(index: int, *, length: int = 4, **changes: Any) -> SampleProgress:
    made = SampleProgress(
        index=index,
        tokens=np.arange(length, dtype=np.int32),
        logprobs=np.full(length, -0.5, np.float32),
        spans=(VersionSpan(PolicyVersion(LineageName("0-a"), 3), 0, length),),
    )
    return msgspec.structs.replace(made, **changes)


def progress_of(*made: SampleProgress, num_samples: int = 4, **changes: Any) -> Progress:
    progress = Progress(
        run_id=RunId("run-1"),
        task_id=TaskId("t-1"),
        attempt=1,
        num_samples=num_samples,
        started_at_s=5.0,
        max_new_tokens=100,
        samples=made,
    )
    return msgspec.structs.replace(progress, **changes)


def test_samples_that_do_not_fit_are_left_out_shortest_first_and_reported() -> None:
    progress = progress_of(sample(0, length=1000), sample(1, length=3000), sample(2, length=10))
    whole = len(encode_progress(progress))
    data = encode_progress(progress, bytes_max=whole - 1000)
    assert len(data) <= whole - 1000
    kept = decode_progress(data)
    assert [(each.index, len(each.tokens)) for each in kept.samples] == [(1, 3000), (2, 10)]
    assert kept.tokens_left_out == 1000
    assert not decode_progress(encode_progress(progress, bytes_max=1)).samples


@given(progresses(), st.integers(200, 600))
def test_message_never_exceeds_its_limit(progress: Progress, bytes_max: int) -> None:
    assert len(encode_progress(progress, bytes_max=bytes_max)) <= bytes_max


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (sample(4), "samples \\[4\\] of 4"),
        (sample(0, logprobs=np.zeros(3, np.float32)), "bytes of tokens"),
        (sample(0, tokens=np.full(4, -1, np.int32)), "below 0"),
        (sample(0, logprobs=np.full(4, np.nan, np.float32)), "no policy can produce"),
        (sample(0, logprobs=np.full(4, 0.5, np.float32)), "no policy can produce"),
        (sample(0, spans=()), "versions do not cover"),
        (sample(0, spans=(VersionSpan(PolicyVersion(LineageName(""), 3), 0, 4),)), "versions do not cover"),
        (
            sample(0, spans=(VersionSpan(PolicyVersion(LineageName("0-a"), 3), 0, 5),)),
            "versions do not cover",
        ),
        (sample(0, replies=((0, 2),)), "between its turns"),
        (sample(0, replies=((3, 2),)), "between its turns"),
        (sample(0, replies=((1, 5),)), "between its turns"),
        (sample(0, replies=((1, 2),)), "between its turns"),
        (sample(0, reward=float("nan")), "not finite"),
        (sample(0, components={"right": float("inf")}), "not finite"),
    ],
)
def test_progress_that_no_actor_writes_is_refused(broken: SampleProgress, reason: str) -> None:
    with pytest.raises(RecordError, match=reason):
        decode_progress(encode_progress(progress_of(broken)))


def test_empty_reply_ends_a_turn() -> None:
    [kept] = decode_progress(encode_progress(progress_of(sample(0, replies=((2, 2),))))).samples
    assert kept.replies == ((2, 2),)


def test_sample_that_comes_twice_and_a_start_at_no_time_are_refused() -> None:
    with pytest.raises(RecordError, match="samples"):
        decode_progress(encode_progress(progress_of(sample(1), sample(1))))
    with pytest.raises(RecordError, match="began at"):
        decode_progress(encode_progress(progress_of(started_at_s=float("inf"))))


@pytest.mark.parametrize(
    "changes",
    [
        {"run_id": RunId("run-2")},
        {"task_id": TaskId("t-2")},
        {"attempt": 2},
        {"num_samples": 5},
        {"max_new_tokens": 101},
    ],
)
def test_progress_of_another_task_is_not_resumed(changes: dict[str, Any]) -> None:
    task = Task(
        task_id=TaskId("t-1"),
        run_id=RunId("run-1"),
        kind="group",
        required_version=PolicyVersion(LineageName("0-a"), 0),
        num_samples=4,
        sampler=Sampler(max_new_tokens=100),
    )
    check_progress(progress_of(sample(0)), task)
    with pytest.raises(RecordError, match="Progress found"):
        check_progress(progress_of(sample(0), **changes), task)
