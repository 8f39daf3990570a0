"""The store as a service: a real broker, real gRPC, the typed client."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.support.broker import Broker
from tests.support.calls import with_status
from tests.support.otlp_sink import otlp_sink
from tests.support.service_harness import channel_of_test, make_context, running, until
from tests.support.settings import make_settings
from tests.unit.trajectory_store.building import LIMITS, MAIN, at, make_group, make_trajectory
from tidegate.catalogue import trajectory_store as statistics
from tidegate.catalogue.telemetry import ATTR_REASON
from tidegate.core.errors import (
    ConfigError,
    ConflictError,
    CorruptionError,
    NotFoundError,
    RecordError,
    StaleFolderError,
)
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.core.records import DROP_REASONS, Trajectory
from tidegate.core.staleness import Fresh, Lineage
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import StalenessConfig, TelemetryConfig
from tidegate.runtime.live_settings import LiveSections
from tidegate.runtime.service import ServiceContext
from tidegate.runtime.telemetry import open_telemetry
from tidegate.trajectory_store import servicer
from tidegate.trajectory_store.config import TrajectoryStoreConfig
from tidegate.trajectory_store.main import build
from tidegate.v1 import trajectory_pb2
from tidegate.v1 import trajectory_store_service_pb2 as pb
from tidegate.v1.trajectory_store_service_pb2_grpc import TrajectoryStoreServiceStub
from tidegate.wire.clients.remote import remote_errors
from tidegate.wire.clients.streamed_batches import LeasedBatch
from tidegate.wire.clients.trajectory_store import (
    ConsumedBatch,
    Consumption,
    Dropped,
    TrajectoryStoreClient,
)
from tidegate.wire.digest import digest_of
from tidegate.wire.frame import encode_frame
from tidegate.wire.subjects import HEADER_REASON, HEADER_REFERENCE, HEADER_TRAJECTORY_IDS

pytestmark = pytest.mark.integration

WAIT_S = 60.0


class Peers:
    """An actor and a learner, as the store sees them."""

    def __init__(self, context: ServiceContext) -> None:
        self.context = context
        self.bus = context.bus
        self.client = TrajectoryStoreClient(channel_of_test(context, "trajectory_store"))
        self.stub = TrajectoryStoreServiceStub(channel_of_test(context, "trajectory_store"))

    def now_s(self) -> float:
        return self.context.clock.now_s()

    def trajectory(self, task: str, *, version: PolicyVersion | None = None) -> Trajectory:
        return make_trajectory(task, version=version, started_at_s=self.now_s())

    async def send(self, *group: Trajectory) -> None:
        await self.send_bytes(
            encode_frame(group), [item.trajectory_id for item in group], f"{group[0].task_id}:scored"
        )

    async def send_bytes(
        self, data: bytes, names: Sequence[str], message_id: str, *, is_reference: bool = False
    ) -> None:
        headers = {HEADER_TRAJECTORY_IDS: ",".join(names)}
        if is_reference:
            headers[HEADER_REFERENCE] = "1"
        await self.bus.publish(
            self.context.topology.trajectories(0), data, message_id=message_id, headers=headers
        )

    async def open(self, lineage: Lineage | None = None, *, consumed: Sequence[ConsumedBatch] = ()) -> int:
        _, revived = await self.client.open_lineage(
            lineage or Lineage(name=MAIN), learner_id="learner-0", consumed=consumed
        )
        return revived

    async def lease(
        self, version: PolicyVersion, *, batch_size: int = 1, max_wait_s: float = WAIT_S
    ) -> LeasedBatch | None:
        return await self.client.lease_batch(
            version, batch_size=batch_size, limits=LIMITS, max_wait_s=max_wait_s, learner_id="learner-0"
        )

    async def leased(self, version: PolicyVersion, *, batch_size: int = 1) -> LeasedBatch:
        batch = await self.lease(version, batch_size=batch_size)
        assert batch is not None
        return batch

    async def commit(self, batch: LeasedBatch, version: PolicyVersion) -> None:
        await self.client.commit_batch(batch.batch_id, version=version, consumptions=consumptions(batch))


def consumptions(batch: LeasedBatch) -> list[Consumption]:
    return [Consumption(item.trajectory_id, Fresh(lag=0, span=0, age_s=0.1)) for item in batch.trajectories]


@asynccontextmanager
async def store_of(
    nats: Broker, bus: Bus, tmp_path: Path, config: TrajectoryStoreConfig | None = None
) -> AsyncGenerator[Peers, None]:
    settings = make_settings(tmp_path / "run", broker_url=nats.url, max_lag=LIMITS.max_lag)
    context = make_context("trajectory_store", settings, bus=bus)
    async with running(build, config or TrajectoryStoreConfig(), context):
        yield Peers(context)


@pytest.fixture
async def peers(nats: Broker, bus: Bus, tmp_path: Path) -> AsyncIterator[Peers]:
    async with store_of(nats, bus, tmp_path) as peers:
        await peers.open()
        yield peers


async def quarantined(peers: Peers) -> tuple[str, bytes]:
    stream = peers.context.topology.stream("QUARANTINE")
    subject = peers.context.topology.quarantine("trajectory_store")
    stored = await peers.bus.last(stream, subject)
    assert stored is not None
    return stored.headers[HEADER_REASON], stored.data


async def test_stranger_that_went_away_gives_its_batch_back_and_its_late_commit_is_refused(
    tmp_path: Path, bus: Bus, nats: Broker
) -> None:
    config = TrajectoryStoreConfig(lease_timeout_s=1.0, expiry_period_s=0.2)
    async with store_of(nats, bus, tmp_path, config) as peers:
        await peers.open()
        await peers.send(peers.trajectory("t-1"))
        stolen = await peers.client.lease_batch(
            at(0), batch_size=1, limits=LIMITS, max_wait_s=WAIT_S, learner_id="stranger"
        )
        assert stolen is not None
        ours = await peers.lease(at(0))
        assert ours is not None
        assert ours.trajectories[0].trajectory_id == stolen.trajectories[0].trajectory_id
        with pytest.raises(ConflictError, match="Nothing of this commit counts as trained"):
            await peers.commit(stolen, at(0))
        renewal = await peers.client.renew_leases([stolen.batch_id], learner_id="stranger")
        assert renewal.lost == {stolen.batch_id}
        # What a learner trained and lost may be in any batch from now on.
        again = await peers.client.lease_batch(
            at(1), batch_size=1, limits=LIMITS, max_wait_s=0.0, learner_id="learner-0", held=[stolen.batch_id]
        )
        assert again is None


async def test_trajectory_goes_from_its_message_to_a_gradient(peers: Peers) -> None:
    sent = peers.trajectory("t-1")
    await peers.send(sent)
    batch = await peers.leased(at(0))
    assert [item.trajectory_id for item in batch.trajectories] == ["t-1.0"]
    np.testing.assert_array_equal(batch.trajectories[0].tensors["tokens"], sent.tensors["tokens"])
    await peers.commit(batch, at(0))

    totals, head = await peers.client.ledger()
    assert (totals.trained, totals.available, totals.leased) == (1, 0, 0)
    assert head == at(1)
    status = await peers.client.trajectory("t-1.0")
    assert (status.state, status.trained_at) == ("trained", at(0))
    assert [stage.stage for stage in status.stages] == [
        "trajectory.generate",
        "store.append",
        "trajectory.consume",
    ]
    outcomes, _ = await peers.client.watch_outcomes(0, limit=10, max_wait_s=0.0)
    assert [(outcome.state, outcome.trained_at) for outcome in outcomes] == [
        ("accepted", None),
        ("trained", at(0)),
    ]


async def test_batch_of_any_size_arrives_whole(peers: Peers) -> None:
    # Within the head, the head and one chunk, the head and several.
    for number, megabytes in enumerate((0.1, 0.3, 1.0, 2.0)):
        tensor = np.random.default_rng(number).random(int(megabytes * 2**20) // 4 // 8, dtype=np.float32)
        sent = [
            msgspec.structs.replace(item, tensors={**item.tensors, "extra": tensor + index})
            for index, item in enumerate(peers.trajectory(f"t-{number}-{index}") for index in range(8))
        ]
        for trajectory in sent:
            await peers.send(trajectory)
        batch = await peers.leased(at(number), batch_size=8)
        got = {item.trajectory_id: item.tensors["extra"] for item in batch.trajectories}
        assert got.keys() == {item.trajectory_id for item in sent}
        for item in sent:
            np.testing.assert_array_equal(got[item.trajectory_id], item.tensors["extra"])
        await peers.commit(batch, at(number))


async def test_message_leaves_the_stream_once_the_ledger_has_it(peers: Peers) -> None:
    await peers.send(peers.trajectory("t-1"))
    await peers.leased(at(0))
    async with asyncio.timeout(WAIT_S):
        while (await peers.bus.stream_state(peers.context.topology.stream("TRAJECTORIES"))).messages:
            await asyncio.sleep(0.01)


async def test_waiting_lease_is_answered_by_the_arrival_that_fills_the_batch(peers: Peers) -> None:
    waiting = asyncio.create_task(peers.lease(at(0), batch_size=2))
    await peers.send(peers.trajectory("t-1"))
    await until(lambda: peers.context.stats.value(statistics.AVAILABLE_TRAJECTORIES) == 1)
    assert not waiting.done()
    await peers.send(peers.trajectory("t-2"))
    batch = await waiting
    assert batch is not None
    assert [item.trajectory_id for item in batch.trajectories] == ["t-1.0", "t-2.0"]


async def test_lease_without_a_batch_in_time_is_answered_empty(peers: Peers) -> None:
    assert await peers.lease(at(0), max_wait_s=0.05) is None


async def test_waiting_watcher_receives_the_next_outcome(peers: Peers) -> None:
    waiting = asyncio.create_task(peers.client.watch_outcomes(0, limit=10, max_wait_s=WAIT_S))
    await asyncio.sleep(0.05)
    assert await peers.client.drop_unarrived([Dropped(peers.trajectory("t-9").trajectory_id, "failed")]) == 1
    outcomes, cursor = await waiting
    assert [(outcome.trajectory_id, outcome.state, outcome.reason) for outcome in outcomes] == [
        ("t-9.0", "dropped", "failed")
    ]
    assert await peers.client.watch_outcomes(cursor, limit=10, max_wait_s=0.0) == ([], cursor)


async def test_acceptances_wait_for_the_gradient_while_the_learner_is_behind(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicer, "ACCEPTED_LINGER_BEHIND_S", 2 * WAIT_S)
    await peers.send(peers.trajectory("t-1"))
    batch = await peers.leased(at(0))
    _, cursor = await peers.client.watch_outcomes(0, limit=10, max_wait_s=WAIT_S)
    waiting = asyncio.create_task(peers.client.watch_outcomes(cursor, limit=10, max_wait_s=WAIT_S))
    await peers.send(peers.trajectory("t-2"))
    # What is available counts t-1, too, when the last report came before its lease.
    await until(lambda: peers.context.stats.value(statistics.ACCEPTED) == 2)
    assert not waiting.done()
    await peers.commit(batch, at(0))
    outcomes, _ = await waiting
    assert [(outcome.trajectory_id, outcome.state) for outcome in outcomes] == [
        ("t-2.0", "accepted"),
        ("t-1.0", "trained"),
    ]


async def test_acceptances_are_reported_soon_while_the_learner_waits(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicer, "ACCEPTED_LINGER_BEHIND_S", 2 * WAIT_S)
    lease = asyncio.create_task(peers.lease(at(0), batch_size=2))
    await peers.send(peers.trajectory("t-1"))
    outcomes, cursor = await peers.client.watch_outcomes(0, limit=10, max_wait_s=WAIT_S)
    assert [(outcome.trajectory_id, outcome.state) for outcome in outcomes] == [("t-1.0", "accepted")]
    await peers.send(peers.trajectory("t-2"))
    outcomes, _ = await peers.client.watch_outcomes(cursor, limit=10, max_wait_s=WAIT_S)
    assert [(outcome.trajectory_id, outcome.state) for outcome in outcomes] == [("t-2.0", "accepted")]
    assert await lease is not None


async def test_batch_whose_answer_was_lost_is_given_again_at_the_same_version(peers: Peers) -> None:
    await peers.send(peers.trajectory("t-1"))
    first = await peers.leased(at(0))
    again = await peers.leased(at(0))
    assert again.batch_id == first.batch_id


async def test_malformed_message_is_quarantined_and_its_trajectories_are_dropped(peers: Peers) -> None:
    await peers.send_bytes(b"no frame at all", ["t-1.0", "t-1.1"], "t-1:scored")
    await peers.send(peers.trajectory("t-2"))
    assert (await peers.leased(at(0))).trajectories[0].trajectory_id == "t-2.0"
    await until(lambda: peers.context.stats.value(statistics.QUARANTINED) == 1)
    reason, body = await quarantined(peers)
    assert "begins with" in reason
    assert body == b"no frame at all"
    status = await peers.client.trajectory("t-1.1")
    assert (status.state, status.reason) == ("dropped", "invalid")
    assert (await peers.client.ledger())[0].dropped == {"invalid": 2}


async def test_impossible_record_is_refused_and_counted(peers: Peers) -> None:
    record = peers.trajectory("t-1")
    record.tensors["behavior_logprobs"] = np.full(4, np.nan, np.float32)
    await peers.send(record)
    await peers.send(peers.trajectory("t-2", version=at(0, LineageName("9-dead"))))
    await until(lambda: peers.context.stats.value(statistics.DROPPED_BECAUSE.member("invalid")) == 2)
    assert "behavior_logprobs" in (await peers.client.trajectory("t-1.0")).detail
    assert "9-dead" in (await peers.client.trajectory("t-2.0")).detail


async def test_record_of_a_group_that_arrives_twice_is_stored_once(peers: Peers) -> None:
    group = make_group("t-1", 2)
    frame = encode_frame(group)
    names = [item.trajectory_id for item in group]
    await peers.send_bytes(frame, names, "first")
    await peers.send_bytes(frame, names, "second")
    await until(lambda: peers.context.stats.value(statistics.DUPLICATES) == 2)
    assert (await peers.client.ledger())[0].rows() == 2


async def test_frame_too_large_for_a_message_is_uploaded_and_referred_to(peers: Peers) -> None:
    record = peers.trajectory("t-1")
    record.tensors["activations"] = np.random.default_rng(0).random((700, 1024), np.float32)
    frame = encode_frame([record])
    reference = await peers.client.upload("t-1:scored", frame)
    assert await peers.client.upload("t-1:scored", frame) == reference
    await peers.send_bytes(reference, ["t-1.0"], "t-1:scored", is_reference=True)
    batch = await peers.leased(at(0))
    np.testing.assert_array_equal(batch.trajectories[0].tensors["activations"], record.tensors["activations"])
    await peers.send_bytes(reference, ["t-1.0"], "again", is_reference=True)
    await until(lambda: peers.context.stats.value(statistics.DUPLICATES) == 1)
    assert peers.context.stats.value(statistics.QUARANTINED) == 0


async def test_reference_to_an_upload_that_never_came_is_refused(peers: Peers) -> None:
    reference = trajectory_pb2.PayloadReference(payload_id="p", size=9, digest=digest_of(b"never sent"))
    await peers.send_bytes(reference.SerializeToString(), ["t-1.0"], "t-1:scored", is_reference=True)
    await until(lambda: peers.context.stats.value(statistics.DROPPED_BECAUSE.member("invalid")) == 1)


async def test_upload_that_does_not_match_its_digest_is_refused(peers: Peers) -> None:
    async def broken() -> AsyncIterator[pb.UploadPayloadRequest]:
        reference = trajectory_pb2.PayloadReference(payload_id="p", size=4, digest=digest_of(b"abcd"))
        yield pb.UploadPayloadRequest(reference=reference)
        yield pb.UploadPayloadRequest(chunk=b"abcx")

    async def headless() -> AsyncIterator[pb.UploadPayloadRequest]:
        yield pb.UploadPayloadRequest(chunk=b"abcd")

    async def upload(requests: Callable[[], AsyncIterator[pb.UploadPayloadRequest]]) -> None:
        with remote_errors("trajectory_store"):
            await peers.stub.UploadPayload(requests())

    with pytest.raises(CorruptionError):
        await with_status(partial(upload, broken))
    with pytest.raises(RecordError):
        await with_status(partial(upload, headless))


async def test_learner_that_was_replaced_can_neither_commit_nor_lease(peers: Peers) -> None:
    await peers.send(peers.trajectory("t-1"))
    batch = await peers.leased(at(0))
    await peers.open(Lineage(name=LineageName("1-bbbb"), parent=MAIN, fork_step=0))
    with pytest.raises(ConflictError):
        await peers.commit(batch, at(0))
    with pytest.raises(ConflictError):
        await peers.lease(at(1), max_wait_s=0.0)
    assert (await peers.leased(at(0, LineageName("1-bbbb")))).trajectories[0].trajectory_id == "t-1.0"


async def test_restored_learner_gets_the_trajectories_of_its_lost_updates(peers: Peers) -> None:
    for task in ("t-1", "t-2"):
        await peers.send(peers.trajectory(task))
    first = await peers.leased(at(0))
    second_waits = await peers.leased(at(1))
    await peers.commit(second_waits, at(1))
    kept = ConsumedBatch(first.batch_id, at(0), consumptions(first))
    fork = Lineage(name=LineageName("1-bbbb"), parent=MAIN, fork_step=1)
    assert await peers.open(fork, consumed=[kept]) == 1
    totals, head = await peers.client.ledger()
    assert (totals.trained, totals.available, totals.revived) == (1, 1, 1)
    assert head == at(1, LineageName("1-bbbb"))


async def test_stale_trajectories_are_dropped_without_a_lease_request(
    nats: Broker, bus: Bus, tmp_path: Path
) -> None:
    config = TrajectoryStoreConfig(expiry_period_s=0.05)
    async with store_of(nats, bus, tmp_path, config) as peers:
        await peers.open()
        assert await peers.lease(at(5), max_wait_s=0.0) is None
        await peers.send(peers.trajectory("t-1", version=at(0)))
        await until(lambda: peers.context.stats.value(statistics.DROPPED_BECAUSE.member("stale")) == 1)


async def test_no_batch_is_leased_beyond_the_stores_own_budget_whatever_a_learner_asks(peers: Peers) -> None:
    own = peers.context.live.sections
    peers.context.live.take(LiveSections(StalenessConfig(max_lag=1)))
    await peers.send(peers.trajectory("t-1", version=at(0)))
    assert await peers.lease(at(2), max_wait_s=0.0) is None, "its budget was lowered before the learner's"
    await peers.send(peers.trajectory("t-2", version=at(1)))
    batch = await peers.leased(at(2))
    assert [item.trajectory_id for item in batch.trajectories] == ["t-2.0"]
    peers.context.live.take(own)
    await peers.commit(batch, at(2))
    totals, _ = await peers.client.read_ledger(at=None)
    assert totals.budgets.widest == 1, "judged by the budget in force when it was leased"


async def test_full_store_leaves_messages_in_the_stream_until_a_gradient_frees_capacity(
    nats: Broker, bus: Bus, tmp_path: Path
) -> None:
    config = TrajectoryStoreConfig(max_resident_trajectories=2, fetch_messages_max=1)
    async with store_of(nats, bus, tmp_path, config) as peers:
        await peers.open()
        for index in range(5):
            await peers.send(peers.trajectory(f"t-{index}"))
        await until(lambda: peers.context.stats.value(statistics.FULL_S) > 0.1)
        totals, _ = await peers.client.ledger()
        assert 2 <= totals.available <= 3  # messages of the running fetch still arrive
        for step in range(5):
            batch = await peers.leased(at(step))
            await peers.commit(batch, at(step))
        assert (await peers.client.ledger())[0].trained == 5


async def test_trajectory_and_its_drop_are_seen_in_its_trace(nats: Broker, bus: Bus, tmp_path: Path) -> None:
    with otlp_sink() as sink:
        settings = make_settings(tmp_path / "run", broker_url=nats.url, max_lag=LIMITS.max_lag)
        context = make_context("trajectory_store", settings, bus=bus)
        telemetry = open_telemetry(
            TelemetryConfig(otlp_endpoint=sink.endpoint, sample_ratio=1.0),
            service="trajectory_store",
            instance="trajectory_store",
            run="test-run",
            board=context.stats,
        )
        context = replace(context, telemetry=telemetry)
        sampled, unsampled = telemetry.root(), "00-" + "1" * 32 + "-" + "2" * 16 + "-00"
        async with running(build, TrajectoryStoreConfig(), context):
            peers = Peers(context)
            await peers.open()
            await peers.send(msgspec.structs.replace(peers.trajectory("t-1"), trace_parent=sampled))
            await peers.send(msgspec.structs.replace(peers.trajectory("t-2"), trace_parent=unsampled))
            await until(lambda: context.stats.value(statistics.AVAILABLE_TRAJECTORIES) == 2)
            assert await peers.lease(at(LIMITS.max_lag + 1), max_wait_s=0.0) is None
            await until(lambda: context.stats.value(statistics.DROPPED_BECAUSE.member("stale")) == 2)
        telemetry.close()
    appended = [span for span in sink.spans if span.name == "store.append"]
    assert {span.trace_id.hex() for span in appended} == {sampled[3:35], "1" * 32}
    assert any("versions behind" in span.status.message for span in appended)
    generated = [span for span in sink.spans if span.name == "trajectory.generate"]
    assert [span.trace_id.hex() for span in generated] == ["1" * 32]
    dropped = {
        item.value.string_value: point.as_double
        for point in sink.metric(statistics.DROPPED_BECAUSE.metric).sum.data_points
        for item in point.attributes
        if item.key == ATTR_REASON
    }
    assert dropped == {reason: 2.0 if reason == "stale" else 0.0 for reason in DROP_REASONS}


async def test_draining_store_answers_its_long_polls(nats: Broker, bus: Bus, tmp_path: Path) -> None:
    async with store_of(nats, bus, tmp_path) as peers:
        await peers.open()
        lease = asyncio.create_task(peers.lease(at(0)))
        watch = asyncio.create_task(peers.client.watch_outcomes(0, limit=1, max_wait_s=WAIT_S))
        await asyncio.sleep(0.1)
        peers.context.drain.request()
        assert await lease is None
        assert await watch == ([], 0)


async def test_store_too_small_for_a_batch_is_refused_at_the_start(
    nats: Broker, bus: Bus, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="max_resident_trajectories"):
        async with store_of(nats, bus, tmp_path, TrajectoryStoreConfig(max_resident_trajectories=1)):
            pass


async def test_second_store_on_one_folder_is_refused(peers: Peers) -> None:
    with pytest.raises(StaleFolderError, match="in use"):
        await build(peers.context, TrajectoryStoreConfig())


async def test_unknown_trajectory_and_unknown_reason_are_named(peers: Peers) -> None:
    with pytest.raises(NotFoundError, match="t-404"):
        await peers.client.trajectory("t-404.0")
    request = pb.DropUnarrivedRequest(dropped=[pb.DroppedTrajectory(trajectory_id="t-1.0", reason="bored")])
    with pytest.raises(RecordError, match="bored"), remote_errors("trajectory_store"):
        await peers.stub.DropUnarrived(request)
