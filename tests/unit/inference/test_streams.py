"""The streams of actors: one step at a time, bounded, replaced by a newer one of the same actor."""

import asyncio

import numpy as np
import pytest

from tests.unit.inference.support import checked, make_policy, random_step, version
from tidegate.core.errors import BackpressureError, RecordError
from tidegate.core.staleness import LineageTree
from tidegate.inference.state import CheckedStep, RefusedError
from tidegate.inference.streams import ActingStream, OpenStreams
from tidegate.wire.vector_step import ActedStep, ActingPolicy

IDLE_S = 5.0


def step(number: int = 1) -> CheckedStep:
    _, layout = make_policy()
    return checked(layout, random_step(layout, np.random.default_rng(number), number=number))


def answer(number: int = 1) -> ActedStep:
    return ActedStep(
        number, version(0), np.zeros(3, np.int32), np.zeros(3, np.float32), np.zeros((3, 0), np.float32)
    )


def policy(number: int) -> ActingPolicy:
    return ActingPolicy(version(number), LineageTree())


async def sent(stream: ActingStream, count: int) -> list[ActingPolicy | ActedStep]:
    found: list[ActingPolicy | ActedStep] = []
    async for message in stream.outgoing(idle_s=IDLE_S):
        found.append(message)
        if len(found) == count:
            break
    return found


async def test_answers_leave_in_order_and_a_policy_that_was_not_sent_is_replaced() -> None:
    stream = ActingStream("actor-0")
    stream.ask(step())
    stream.tell(policy(1))
    stream.tell(policy(2))
    stream.answer(answer(), now_s=3.0)
    policies, answers = await sent(stream, 2)
    assert policies == policy(2)
    assert isinstance(answers, ActedStep)
    assert (stream.waiting, stream.answered_at_s) == (None, 3.0)


async def test_second_step_before_the_answer_is_refused() -> None:
    stream = ActingStream("actor-0")
    stream.ask(step(1))
    with pytest.raises(RefusedError, match="before the answer") as refused:
        stream.ask(step(2))
    assert refused.value.reason == "order"
    stream.answer(answer(1), now_s=0.0)
    with pytest.raises(RefusedError):
        stream.ask(step(2))  # the answer has not left
    await sent(stream, 1)
    stream.ask(step(2))


async def test_ended_stream_sends_what_is_ready_and_then_its_reason() -> None:
    stream = ActingStream("actor-0")
    stream.ask(step())
    stream.answer(answer(), now_s=0.0)
    stream.end(RecordError("refused"))
    stream.end(RecordError("later"))
    outgoing = stream.outgoing(idle_s=IDLE_S)
    assert isinstance(await anext(outgoing), ActedStep)
    with pytest.raises(RecordError, match="refused"):
        await anext(outgoing)


async def test_steps_that_come_after_the_end_wait_for_nothing() -> None:
    stream = ActingStream("actor-0")
    stream.end()
    stream.ask(step())
    assert stream.waiting is None
    assert [message async for message in stream.outgoing(idle_s=IDLE_S)] == []


async def test_stream_without_messages_ends_after_its_idle_time() -> None:
    stream = ActingStream("actor-0")
    async with asyncio.timeout(IDLE_S):
        assert [message async for message in stream.outgoing(idle_s=0.01)] == []


def test_places_are_bounded_and_freed() -> None:
    streams = OpenStreams(streams_max=2)
    first = streams.open("actor-0")
    streams.open("actor-1")
    with pytest.raises(BackpressureError, match="has 2 streams"):
        streams.open("actor-2")
    streams.close(first)
    assert [stream.instance for stream in (streams.open("actor-2"), *streams.all())] == [
        "actor-2",
        "actor-1",
        "actor-2",
    ]


async def test_new_stream_of_an_actor_takes_the_place_of_its_old_one() -> None:
    streams = OpenStreams(streams_max=1)
    old = streams.open("actor-0")
    new = streams.open("actor-0")
    assert [message async for message in old.outgoing(idle_s=IDLE_S)] == []
    streams.close(old)
    assert streams.all() == [new]
