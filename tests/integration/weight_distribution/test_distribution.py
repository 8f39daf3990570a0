import asyncio
import contextlib
from functools import partial
from pathlib import Path
from typing import Any, cast

import grpc
import numpy as np
import pytest

from tests.integration.weight_distribution.serving import Serving, serving
from tests.support.broker import Broker
from tests.support.calls import with_status
from tests.support.disks import file_size_limited
from tests.unit.weight_distribution.offers import ROOT, TREE, random_tensors, version
from tidegate.core.errors import ConflictError, CorruptionError, NotFoundError, RecordError, UnavailableError
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.core.records import Array, PolicySnapshot
from tidegate.core.staleness import Lineage
from tidegate.runtime.bus import Bus
from tidegate.v1 import policy_pb2
from tidegate.v1 import weight_distribution_service_pb2 as pb
from tidegate.weight_distribution.config import WeightDistributionConfig
from tidegate.wire.announcement import Announcement
from tidegate.wire.policy_payload import announce
from tidegate.wire.subjects import HEADER_REASON, Topology

pytestmark = pytest.mark.integration

PULL = "/tidegate.v1.WeightDistributionService/PullPolicy"
PUBLISH = "/tidegate.v1.WeightDistributionService/PublishPolicy"


def snapshot(at: PolicyVersion, tensors: dict[str, Array] | None = None) -> PolicySnapshot:
    return PolicySnapshot(at, random_tensors(at.step) if tensors is None else tensors, published_at_s=5.0)


def large_tensors() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {
        "embedding": rng.standard_normal((700, 1024)).astype(np.float32),
        "bias": rng.standard_normal(5).astype(np.float32),
        "head": rng.standard_normal((300, 1024)).astype(np.float32),
    }


async def announced(bus: Bus, topology: Topology) -> Announcement | None:
    stored = await bus.last(topology.stream("POLICY"), topology.policy("default"))
    return None if stored is None else Announcement.from_bytes(stored.data)


def assert_equal_tensors(ours: dict[str, Array], theirs: dict[str, Array]) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        np.testing.assert_array_equal(tensor, theirs[name])


async def pull_raw(running: Serving, request: pb.PullPolicyRequest) -> bytes:
    call = running.channel.unary_stream(
        PULL,
        request_serializer=pb.PullPolicyRequest.SerializeToString,
        response_deserializer=pb.PullPolicyResponse.FromString,
    )
    return b"".join([message.chunk async for message in call(request)])


async def test_small_policy_travels_inline_and_large_one_is_pulled(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    async with serving(tmp_path, bus) as running:
        await running.client.publish(snapshot(version(0)), TREE)
        small = await announced(bus, topology)
        assert small is not None
        inline = small.inline_snapshot()
        assert inline is not None
        assert_equal_tensors(inline.tensors, random_tensors(0))

        await running.client.publish(snapshot(version(1), large_tensors()), TREE)
        large = await announced(bus, topology)
        assert large is not None
        assert large.inline_snapshot() is None
        pulled = large.snapshot(await running.client.pull(large, large.names))
        assert pulled.version == version(1)
        assert_equal_tensors(pulled.tensors, large_tensors())
        head, kept = await running.client.head()
        assert head is not None
        assert head.version == version(1)
        assert kept == [version(0), version(1)]


async def test_pull_brings_only_named_tensors_and_resumes_where_it_broke(tmp_path: Path, bus: Bus) -> None:
    tensors = large_tensors()
    async with serving(tmp_path, bus, config=WeightDistributionConfig(chunk_bytes=100_000)) as running:
        await running.client.publish(snapshot(version(1), tensors), TREE)
        wanted = pb.PullPolicyRequest(
            version=policy_pb2.PolicyVersion(lineage=ROOT, step=1), tensors=["head", "bias"]
        )
        whole = tensors["bias"].tobytes() + tensors["head"].tobytes()
        assert await pull_raw(running, wanted) == whole
        wanted.offset = 123_457
        assert await pull_raw(running, wanted) == whole[123_457:]


async def test_publishing_twice_is_one_announcement_and_other_bytes_are_refused(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    async with serving(tmp_path, bus) as running:
        await running.client.publish(snapshot(version(3)), TREE)
        await running.client.publish(snapshot(version(3)), TREE)
        assert (await bus.stream_state(topology.stream("POLICY"))).messages == 1
        with pytest.raises(ConflictError, match="other tensors"):
            await running.client.publish(snapshot(version(3), random_tensors(99)), TREE)
        with pytest.raises(ConflictError, match="older"):
            await running.client.publish(snapshot(version(2)), TREE)
        fork = LineageName("1-bbbb")
        tree = TREE.add(Lineage(name=fork, parent=ROOT, fork_step=2))
        await running.client.publish(snapshot(version(2, fork)), tree)
        with pytest.raises(ConflictError, match="branch that ended"):
            await running.client.publish(snapshot(version(4)), TREE)
        head = await announced(bus, topology)
        assert head is not None
        assert head.version == version(2, fork)


async def test_unknown_version_and_tensor_are_named(tmp_path: Path, bus: Bus) -> None:
    async with serving(tmp_path, bus) as running:
        unknown = Announcement(announce(snapshot(version(9)), TREE)[0])
        with pytest.raises(NotFoundError, match="none yet"):
            await running.client.pull(unknown, unknown.names)
        await running.client.publish(snapshot(version(1)), TREE)
        other = announce(snapshot(version(1), {"nobody": np.zeros(1, np.float32)}), TREE)[0]
        with pytest.raises(RecordError, match="nobody"):
            await running.client.pull(Announcement(other), ["nobody"])


async def test_broken_publish_leaves_no_trace_and_can_be_repeated(tmp_path: Path, bus: Bus) -> None:
    async with serving(tmp_path, bus) as running:
        message, chunks = announce(snapshot(version(1)), TREE)
        publish = running.channel.stream_unary(
            PUBLISH,
            request_serializer=pb.PublishPolicyRequest.SerializeToString,
            response_deserializer=pb.PublishPolicyResponse.FromString,
        )

        async def send(requests: list[pb.PublishPolicyRequest]) -> None:
            await publish(iter(requests))

        payload = b"".join(chunks)
        spoiled = bytes([payload[0] ^ 1]) + payload[1:]
        for body in ([], [payload[:-1]], [spoiled], [payload, b"more"]):
            requests = [pb.PublishPolicyRequest(announcement=message)]
            requests += [pb.PublishPolicyRequest(chunk=chunk) for chunk in body]
            with pytest.raises(Exception, match=r"digest|ended inside|more bytes"):
                await with_status(partial(send, requests))
        with pytest.raises(Exception, match="start with its announcement"):
            await with_status(partial(send, [pb.PublishPolicyRequest(chunk=payload)]))
        call = publish(iter([pb.PublishPolicyRequest(announcement=message)]))
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        assert list((tmp_path / "weight_distribution" / "versions").iterdir()) == []
        await running.client.publish(snapshot(version(1)), TREE)
        head, _ = await running.client.head()
        assert head is not None
        assert head.version == version(1)


async def test_version_that_a_full_disk_refuses_leaves_no_trace_and_can_be_repeated(
    tmp_path: Path, bus: Bus
) -> None:
    async with serving(tmp_path, bus) as running:
        with (
            file_size_limited(1 << 20),
            pytest.raises(UnavailableError, match="cannot be written") as refused,
        ):
            await with_status(lambda: running.client.publish(snapshot(version(0), large_tensors()), TREE))
        assert refused.value.retryable, "the learner publishes it again"
        assert list((tmp_path / "weight_distribution" / "versions").iterdir()) == []
        await running.client.publish(snapshot(version(0), large_tensors()), TREE)
        head, _ = await running.client.head()
        assert head is not None
        assert head.version == version(0)


async def test_restarted_service_serves_and_announces_stored_versions(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    async with serving(tmp_path, bus) as running:
        await running.client.publish(snapshot(version(1), large_tensors()), TREE)
    async with serving(tmp_path, bus) as running:
        head = await announced(bus, topology)
        assert head is not None
        assert_equal_tensors(await running.client.pull(head, head.names), large_tensors())
        await running.client.publish(snapshot(version(2)), TREE)
        assert (await bus.stream_state(topology.stream("POLICY"))).messages == 2


@pytest.mark.own_broker
async def test_version_written_but_not_announced_is_announced_after_a_restart(
    tmp_path: Path, bus: Bus, nats: Broker, topology: Topology
) -> None:
    async with serving(tmp_path, bus) as running:
        await running.client.publish(snapshot(version(1)), TREE)
        nats.kill()
        publishing = asyncio.create_task(running.client.publish(snapshot(version(2)), TREE))
        while version(2) not in (await running.client.head())[1]:
            await asyncio.sleep(0.01)
        publishing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await publishing
        nats.start()
    async with serving(tmp_path, bus):
        async with asyncio.timeout(60.0):
            while (head := await announced(bus, topology)) is None or head.version != version(2):
                await asyncio.sleep(0.05)
        assert head.inline_snapshot() is not None


async def test_announcement_that_the_broker_lost_returns(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    async with serving(tmp_path, bus) as running:
        await running.client.publish(snapshot(version(1)), TREE)
        stream = topology.stream("POLICY")
        await cast("Any", bus)._client.jsm().delete_stream(stream)  # the effect of a broker with a lost disk
        await bus.bootstrap(topology.streams(max_tasks=64))
        async with asyncio.timeout(60.0):
            while (head := await announced(bus, topology)) is None:
                await asyncio.sleep(0.05)
        assert head.version == version(1)
        await running.client.publish(snapshot(version(2)), TREE)


async def test_lost_disk_is_filled_again_by_the_learner_without_a_second_announcement(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    async with serving(tmp_path / "one", bus) as running:
        await running.client.publish(snapshot(version(1)), TREE)
    async with serving(tmp_path / "two", bus) as running:
        assert (await running.client.head())[0] is None
        await running.client.publish(snapshot(version(1)), TREE)
        assert (await running.client.head())[1] == [version(1)]
        assert (await bus.stream_state(topology.stream("POLICY"))).messages == 1


async def test_pull_notices_a_file_that_changed_on_disk(tmp_path: Path, bus: Bus) -> None:
    async with serving(tmp_path, bus) as running:
        await running.client.publish(snapshot(version(1), large_tensors()), TREE)
        head, _ = await running.client.head()
        assert head is not None
        (path,) = (tmp_path / "weight_distribution" / "versions").iterdir()
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(bytes(data))
        with pytest.raises(CorruptionError, match="digest"):
            await running.client.pull(head, head.names)


async def test_garbage_on_policy_ends_no_process_now_or_after_a_restart(
    tmp_path: Path, bus: Bus, topology: Topology
) -> None:
    async def head_is(expected: PolicyVersion) -> None:
        async with asyncio.timeout(60.0):
            while True:
                with contextlib.suppress(RecordError):
                    found = await announced(bus, topology)
                    if found is not None and found.version == expected:
                        return
                await asyncio.sleep(0.01)

    async def put_garbage(name: str) -> None:
        await bus.publish(topology.policy("default"), b"garbage", message_id=name)

    async with serving(tmp_path, bus) as running:
        await put_garbage("before any version")
        await running.client.publish(snapshot(version(0)), TREE)
        await put_garbage("while it runs")
        await head_is(version(0))
        await running.client.publish(snapshot(version(1)), TREE)
        await put_garbage("right before it stops")
    async with serving(tmp_path, bus) as running:
        await head_is(version(1))
        await running.client.publish(snapshot(version(2)), TREE)
        await head_is(version(2))
        kept = await bus.last(topology.stream("QUARANTINE"), topology.quarantine("weight_distribution"))
        assert kept is not None
        assert kept.data == b"garbage"
        assert "cannot be parsed" in kept.headers[HEADER_REASON]


async def test_tensor_of_a_hundred_thousand_dimensions_is_refused(tmp_path: Path, bus: Bus) -> None:
    message = pb.PublishPolicyRequest()
    message.announcement.CopyFrom(announce(snapshot(version(0)), TREE)[0])
    message.announcement.tensors[0].shape.extend([1] * 100_000)
    async with serving(tmp_path, bus) as running:

        async def send() -> None:
            await cast("Any", running.channel).stream_unary(PUBLISH)(iter([message.SerializeToString()]))

        with pytest.raises(grpc.aio.AioRpcError, match="dimensions") as caught:
            await with_status(send)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        await running.client.publish(snapshot(version(0)), TREE)
