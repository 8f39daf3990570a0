"""Streams of steps over gRPC: answers, changes of version, refusals at the edge, the drain."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import msgspec
import numpy as np
import pytest

from tests.integration.actor.harness import announce_policy, mlp_params, version
from tests.integration.inference.serving import (
    NUM_ENVS,
    Service,
    inference_settings,
    layout_of,
    serving,
    step,
)
from tests.support.broker import Broker
from tests.support.call_credentials import permitted_channel, token_of
from tests.support.environments import CARTPOLE
from tests.support.service_harness import make_context, until
from tidegate.catalogue import inference as statistics
from tidegate.core.errors import BackpressureError, PayloadTooLargeError, RecordError, UnavailableError
from tidegate.inference.config import InferenceConfig
from tidegate.inference.loops import Inference
from tidegate.inference.streams import ActingStream
from tidegate.models.policies import build_policy
from tidegate.runtime.authenticated_channel import AuthenticatedChannel
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import Settings
from tidegate.wire.clients.inference import InferenceStream
from tidegate.wire.subjects import Topology
from tidegate.wire.vector_step import ActedStep, ActingPolicy, ActStep

pytestmark = pytest.mark.integration


@pytest.fixture
def settings(tmp_path: Path, nats: Broker) -> Settings:
    return inference_settings(tmp_path, nats)


@pytest.fixture
async def service(settings: Settings, bus: Bus) -> AsyncIterator[Service]:
    async with serving(settings, bus) as running:
        yield running


@asynccontextmanager
async def stream_of(
    settings: Settings, instance: str = "actor-0", changed: Mapping[str, object] | None = None
) -> AsyncGenerator[InferenceStream, None]:
    """A stream that was opened, with other fields where ``changed``."""
    channel = permitted_channel(settings.addresses["inference"][0])
    layout = layout_of(settings)
    stream = InferenceStream(channel, layout)
    opening = layout.opening(run_id=settings.run, instance=instance)
    async with asyncio.timeout(120.0):
        await stream.open(msgspec.structs.replace(opening, **(changed or {})))
        yield stream
    stream.close()
    await channel.close()


async def next_answer(stream: InferenceStream) -> ActedStep:
    while not isinstance(message := await stream.receive(), ActedStep):
        assert message is not None, "the stream ended"
    return message


def refused(service: Service, reason: str) -> float:
    return service.stats.value(statistics.REFUSED_BECAUSE.member(reason))


async def test_step_is_answered_by_the_policy_that_was_told(
    bus: Bus, topology: Topology, settings: Settings, service: Service
) -> None:
    await announce_policy(bus, topology, 5, mlp_params(0))
    async with stream_of(settings) as stream:
        told = await stream.receive()
        assert isinstance(told, ActingPolicy)
        assert told.version == version(5)
        assert version(5).lineage in told.tree.lineages
        await stream.send(step(1))
        answer = await next_answer(stream)
        await stream.send(step(2))
        assert (await next_answer(stream)).number == 2
    policy = build_policy(CARTPOLE, settings.policy)
    seen = {"observations": np.frombuffer(step(1).observations, np.float32).reshape(NUM_ENVS, 4)}
    outputs = policy.action_outputs(mlp_params(0), seen, np)
    actions, logprobs = policy.actions.sample(outputs, np.random.default_rng(step(1).seed))
    assert (answer.number, answer.version) == (1, version(5))
    np.testing.assert_array_equal(answer.actions, actions)
    np.testing.assert_allclose(answer.logprobs, logprobs, atol=1e-6)
    assert service.stats.value(statistics.STEPS) == 2 * NUM_ENVS
    assert service.stats.value(statistics.REQUESTS) == 2
    assert service.stats.value(statistics.SERVING_STEP) == 5


async def test_stream_opened_before_the_first_policy_is_told_it_and_every_later_one(
    bus: Bus, topology: Topology, settings: Settings, service: Service
) -> None:
    async with stream_of(settings) as stream:
        await until(lambda: service.stats.value(statistics.STREAMS) == 1)
        for number in range(3):
            await announce_policy(bus, topology, number, mlp_params(number))
            told = await stream.receive()
            assert isinstance(told, ActingPolicy)
            assert told.version == version(number)
        await stream.send(step(1))
        assert (await next_answer(stream)).version == version(2)


async def test_steps_of_several_actors_are_answered_by_one_call_of_the_network(
    bus: Bus, topology: Topology, settings: Settings
) -> None:
    await announce_policy(bus, topology, 0, mlp_params(0))
    num_rounds = 20
    # Long enough for the slowest of machines: a batch waits for streams that were just answered.
    config = InferenceConfig(batch_wait_ms=1000.0)
    async with (
        serving(settings, bus, config) as service,
        stream_of(settings, "actor-0") as first,
        stream_of(settings, "actor-1") as second,
        stream_of(settings, "actor-2") as third,
    ):
        streams = (first, second, third)
        for stream in streams:
            await stream.receive()
        for number in range(1, num_rounds + 1):
            for stream in streams:
                await stream.send(step(number))
            for stream in streams:
                assert (await next_answer(stream)).number == number
        assert service.stats.value(statistics.REQUESTS) == 3 * num_rounds
        assert service.stats.value(statistics.BATCHES) <= num_rounds + 2, (
            "only the first round expects no further step"
        )
        assert service.stats.value(statistics.BATCH_ROWS) > 1


@pytest.mark.parametrize("field", ["observations", "memory"])
async def test_truncated_step_ends_its_stream_with_the_reason_and_no_other(
    bus: Bus, topology: Topology, settings: Settings, service: Service, field: str
) -> None:
    await announce_policy(bus, topology, 0, mlp_params(0))
    whole = step(1)
    wrong = {"observations": whole.observations[:-3], "memory": b"1234"}[field]
    async with stream_of(settings, "actor-0") as bad, stream_of(settings, "actor-1") as good:
        await bad.receive()
        await good.receive()
        await bad.send(msgspec.structs.replace(whole, **{field: wrong}))
        with pytest.raises(RecordError, match=r"actor-0.*bytes"):
            await next_answer(bad)
        await good.send(whole)
        assert (await next_answer(good)).number == 1
    assert refused(service, "size") == 1


async def test_step_that_finds_no_memory_ends_its_stream_at_once(
    bus: Bus, topology: Topology, settings: Settings, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_no_memory(*_: object) -> None:
        raise MemoryError

    await announce_policy(bus, topology, 0, mlp_params(0))
    async with stream_of(settings) as stream:
        await stream.receive()
        with monkeypatch.context() as patches:
            patches.setattr(Inference, "ask", find_no_memory)
            await stream.send(step(1))
            with pytest.raises(UnavailableError, match="found no memory"):
                await next_answer(stream)
    async with stream_of(settings) as again:
        await again.receive()
        await again.send(step(1))
        assert (await next_answer(again)).number == 1
    assert service.stats.value(statistics.REQUESTS) == 1


async def test_values_that_are_not_finite_are_refused_before_they_reach_a_batch(
    bus: Bus, topology: Topology, settings: Settings, service: Service
) -> None:
    await announce_policy(bus, topology, 0, mlp_params(0))
    observations = np.zeros((NUM_ENVS, 4))
    observations[2, 1] = np.nan
    async with stream_of(settings) as stream:
        await stream.receive()
        await stream.send(step(1, observations=observations))
        with pytest.raises(RecordError, match="not finite, first in environment 2"):
            await next_answer(stream)
    assert refused(service, "not_finite") == 1
    assert service.stats.value(statistics.BATCHES) == 0


@pytest.mark.parametrize(("size", "reason"), [(6 << 20, "size"), (9 << 20, "")])
async def test_step_that_is_too_long_is_refused_by_the_service_or_by_its_connection(
    bus: Bus, topology: Topology, settings: Settings, service: Service, size: int, reason: str
) -> None:
    await announce_policy(bus, topology, 0, mlp_params(0))
    # Our own channels do not send more than a peer receives.
    channel = grpc.aio.insecure_channel(
        settings.addresses["inference"][0], options=[("grpc.max_send_message_length", -1)]
    )
    layout = layout_of(settings)
    stream = InferenceStream(AuthenticatedChannel(channel, token_of("actor")), layout)
    async with asyncio.timeout(120.0):
        await stream.open(layout.opening(run_id=settings.run, instance="actor-0"))
        await stream.receive()
        await stream.send(msgspec.structs.replace(step(1), observations=bytes(size)))
        with pytest.raises(RecordError if reason else PayloadTooLargeError):
            await next_answer(stream)
    await channel.close()
    assert service.stats.value(statistics.BATCHES) == 0
    assert refused(service, "size") == (1 if reason else 0)
    await until(lambda: service.stats.value(statistics.STREAMS) == 0)


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"run_id": "another-run"}, "run 'another-run'"),
        ({"num_envs": 5}, "workload.num_envs is 4"),
        ({"memory_size": 3}, r"memory \[3\]"),
        ({"observations": ()}, "hold memory"),
    ],
)
async def test_stream_of_another_run_or_policy_is_refused(
    settings: Settings, service: Service, changed: dict[str, object], what: str
) -> None:
    async with stream_of(settings, changed=changed) as stream:
        with pytest.raises(RecordError, match=what):
            await stream.receive()
    assert refused(service, "opening") == 1


async def test_step_before_the_opening_is_refused(settings: Settings, service: Service) -> None:
    channel = permitted_channel(settings.addresses["inference"][0])
    stream = InferenceStream(channel, layout_of(settings))
    async with asyncio.timeout(120.0):
        await stream.send(step(1))
        with pytest.raises(RecordError, match="does not start with its opening"):
            await stream.receive()
    await channel.close()
    assert refused(service, "opening") == 1


async def test_streams_beyond_the_limit_are_refused_until_a_place_is_free(
    bus: Bus, topology: Topology, settings: Settings
) -> None:
    await announce_policy(bus, topology, 0, mlp_params(0))
    async with serving(settings, bus, InferenceConfig(streams_max=1)) as service:
        async with stream_of(settings, "actor-0") as first:
            await first.receive()
            async with stream_of(settings, "actor-1") as second:
                with pytest.raises(BackpressureError, match="has 1 streams"):
                    await second.receive()
        await until(lambda: service.stats.value(statistics.STREAMS) == 0)
        async with stream_of(settings, "actor-1") as third:
            assert isinstance(await third.receive(), ActingPolicy)
        assert refused(service, "full") == 1


async def test_drain_answers_the_steps_that_wait_and_ends_every_stream(
    bus: Bus, topology: Topology, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived: list[int] = []
    ask = Inference.ask

    def noted(inference: Inference, stream: ActingStream, asked: ActStep) -> None:
        ask(inference, stream, asked)
        arrived.append(asked.number)

    monkeypatch.setattr(Inference, "ask", noted)
    await announce_policy(bus, topology, 0, mlp_params(0))
    config = InferenceConfig(batch_wait_ms=1000.0)
    service = Service(make_context("inference", settings, bus=bus), config)
    await service.start()
    async with stream_of(settings, "actor-0") as asking, stream_of(settings, "actor-1") as idle:
        for stream in (asking, idle):
            await stream.receive()
            await stream.send(step(1))
        for stream in (asking, idle):
            await next_answer(stream)
        await asking.send(step(2))  # waits for the other one, which does not ask
        await until(lambda: 2 in arrived)
        await service.drain()
        assert (await next_answer(asking)).number == 2
        assert await asking.receive() is None
        assert await idle.receive() is None


async def test_new_stream_of_an_actor_ends_its_old_one(
    bus: Bus, topology: Topology, settings: Settings, service: Service
) -> None:
    await announce_policy(bus, topology, 0, mlp_params(0))
    async with stream_of(settings) as old:
        await old.receive()
        async with stream_of(settings) as new:
            await new.receive()
            assert await old.receive() is None
            await new.send(step(1))
            assert (await next_answer(new)).number == 1
            assert service.stats.value(statistics.STREAMS) == 1


async def test_policy_that_diverged_is_refused_and_the_one_before_acts_on(
    bus: Bus, topology: Topology, settings: Settings, service: Service
) -> None:
    await announce_policy(bus, topology, 0, mlp_params(0))
    async with stream_of(settings) as stream:
        await stream.receive()
        broken = {name: np.full_like(value, np.nan) for name, value in mlp_params(1).items()}
        await announce_policy(bus, topology, 1, broken)
        await until(lambda: service.stats.value(statistics.POLICIES_REFUSED) == 1)
        await stream.send(step(1))
        assert (await next_answer(stream)).version == version(0)
