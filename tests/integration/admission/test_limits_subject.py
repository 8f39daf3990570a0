"""Several admissions, of which the one that took over last publishes limits; on a real broker."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.service_harness import make_context
from tests.support.settings import make_settings
from tidegate.admission.limits_subject import ATTEMPTS_MAX, HEADER_WRITER, LimitsSubject, SupersededError
from tidegate.core.errors import UnavailableError
from tidegate.runtime.bus import Bus
from tidegate.runtime.service import ServiceContext
from tidegate.runtime.streams import Stored

pytestmark = pytest.mark.integration


@pytest.fixture
async def context(tmp_path: Path, nats: Broker, bus: Bus) -> ServiceContext:
    return make_context("admission", make_settings(tmp_path, broker_url=nats.url), bus=bus)


@pytest.fixture
def subject_of(context: ServiceContext) -> Callable[[str], LimitsSubject]:
    return lambda writer: LimitsSubject(context, writer=writer, deadline_s=5.0)


async def newest(context: ServiceContext) -> Stored:
    topology = context.topology
    stored = await context.bus.last(topology.stream("CONTROL"), topology.control("task_queue"))
    assert stored is not None
    return stored


async def test_who_took_over_last_publishes_and_the_earlier_one_finds_out(
    context: ServiceContext, subject_of: Callable[[str], LimitsSubject]
) -> None:
    first, second = subject_of("a"), subject_of("b")
    await first.take_over()
    await first.publish(b"1")
    await first.publish(b"2")
    await first.check()
    await second.take_over()
    stored = await newest(context)
    assert (stored.data, stored.headers[HEADER_WRITER]) == (b"2", "b"), "nothing changes for the task queue"
    with pytest.raises(SupersededError, match="the limits in force are those of b"):
        await first.publish(b"3")
    with pytest.raises(SupersededError):
        await first.check()
    await second.publish(b"4")
    await second.check()
    assert (await newest(context)).data == b"4"


async def test_new_leader_of_an_earlier_version_of_admission_takes_over(
    context: ServiceContext, subject_of: Callable[[str], LimitsSubject]
) -> None:
    alone, one = subject_of(""), subject_of("a")
    await alone.take_over()
    await alone.publish(b"1")
    assert HEADER_WRITER not in (await newest(context)).headers
    await one.take_over()
    await one.publish(b"2")
    # The last one of a release goes back to one pod, which is not held against anything.
    await alone.publish(b"3")
    await alone.check()
    with pytest.raises(SupersededError, match="an earlier version of admission"):
        await one.publish(b"4")
    assert (await newest(context)).data == b"3"


async def test_lost_acknowledgement_is_no_other_writer(
    context: ServiceContext, subject_of: Callable[[str], LimitsSubject]
) -> None:
    subject = subject_of("a")
    await subject.take_over()
    await subject.publish(b"1")
    # Stored, while this process believes that it was not.
    topology = context.topology
    await context.bus.publish(
        topology.control("task_queue"), b"2", message_id="lost", headers={HEADER_WRITER: "a"}
    )
    await subject.publish(b"3")
    assert (await newest(context)).data == b"3"


async def test_subject_that_never_rests_is_no_takeover(
    context: ServiceContext, subject_of: Callable[[str], LimitsSubject], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = subject_of("a"), subject_of("b")
    await first.take_over()
    await first.publish(b"0")
    last, num_reads = Bus.last, 0

    async def read_and_publish(self: Bus, stream: str, subject: str) -> Stored | None:
        nonlocal num_reads
        stored, num_reads = await last(self, stream, subject), num_reads + 1
        if num_reads <= busy_for:
            await first.publish(str(num_reads).encode())
        return stored

    monkeypatch.setattr(Bus, "last", read_and_publish)
    busy_for = 2
    await second.take_over()
    assert (await newest(context)).data == b"2", "what was published last is repeated"
    third, num_reads, busy_for, first = subject_of("c"), 0, ATTEMPTS_MAX, second
    with pytest.raises(UnavailableError, match="cannot be taken over"):
        await third.take_over()


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_the_order_only_the_last_to_take_over_is_heard(
    context: ServiceContext, subject_of: Callable[[str], LimitsSubject], seed: int
) -> None:
    rng = random.Random(seed)
    writers = {name: subject_of(name) for name in "abc"}
    leader = ""
    for number in range(60):
        name = rng.choice("abc")
        if rng.random() < 0.2 or not leader:
            writers[name], leader = subject_of(name), name
            await writers[name].take_over()
            await writers[name].publish(str(number).encode())
            continue
        before = await newest(context)
        if name == leader:
            await writers[name].publish(str(number).encode())
            assert (await newest(context)).data == str(number).encode()
        else:
            with pytest.raises(SupersededError):
                await writers[name].publish(str(number).encode())
            assert await newest(context) == before
