"""Calls with the right credential that no learner or actor makes: refused over a real socket, and nothing changes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from tests.integration.trajectory_store.test_service import Peers, store_of
from tests.support.broker import Broker
from tests.support.calls import with_status
from tests.unit.trajectory_store.building import MAIN, at
from tidegate.core.errors import RecordError
from tidegate.core.ids import LineageName
from tidegate.core.staleness import Lineage
from tidegate.runtime.bus import Bus
from tidegate.trajectory_store import servicer
from tidegate.trajectory_store.uploads import UPLOAD_BYTES_MAX
from tidegate.v1 import trajectory_pb2
from tidegate.v1 import trajectory_store_service_pb2 as pb
from tidegate.wire.digest import digest_of

pytestmark = pytest.mark.integration


@pytest.fixture
async def peers(nats: Broker, bus: Bus, tmp_path: Path) -> AsyncIterator[Peers]:
    async with store_of(nats, bus, tmp_path) as peers:
        await peers.open()
        yield peers


async def test_version_that_no_learner_reached_is_refused_in_every_call_and_moves_nothing(
    peers: Peers,
) -> None:
    await peers.send(peers.trajectory("t-1"))
    batch = await peers.leased(at(0))
    far = at(10**9)
    forked = Lineage(name=LineageName("1-bbbb"), parent=MAIN, fork_step=10**9)
    for call in (
        lambda: peers.lease(far, max_wait_s=0.0),
        lambda: peers.commit(batch, far),
        lambda: peers.open(forked),
        lambda: peers.client.mark_checkpointed(far),
    ):
        with pytest.raises(RecordError):
            await with_status(call)
    totals, head = await peers.client.ledger()
    assert (totals.leased, totals.trained, totals.dropped, head) == (1, 0, {}, at(0))
    await peers.commit(batch, at(0))


async def test_silent_uploads_end_and_make_room_for_others(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicer, "UPLOAD_SILENCE_S", 1.0)
    silence = asyncio.Event()

    async def silent(number: int) -> AsyncIterator[pb.UploadPayloadRequest]:
        reference = trajectory_pb2.PayloadReference(
            payload_id=f"silent-{number}", size=UPLOAD_BYTES_MAX, digest=digest_of(b"%d" % number)
        )
        yield pb.UploadPayloadRequest(reference=reference)
        await silence.wait()

    # As many as fill the whole area.
    calls = [peers.stub.UploadPayload(silent(number)) for number in range(16)]
    codes = await asyncio.gather(*(call.code() for call in calls))
    assert set(codes) == {grpc.StatusCode.UNAVAILABLE}
    assert "was silent for 1 s" in str(await calls[0].details())
    await peers.client.upload("honest", b"x" * (1 << 20))
    silence.set()
