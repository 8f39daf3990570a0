"""A store that replays, over a real broker and a real socket."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.integration.trajectory_store.test_service import Peers
from tests.support.broker import Broker
from tests.support.replay import Stream
from tests.support.service_harness import make_context, running
from tests.support.settings import make_settings
from tests.unit.trajectory_store.building import MAIN, at
from tests.unit.trajectory_store.replay.building import UNITS, N, T, replay_config
from tidegate.core.errors import RecordError
from tidegate.core.records import VersionSpan
from tidegate.core.staleness import Fresh, Lineage, StalenessLimits
from tidegate.runtime.bus import Bus
from tidegate.trajectory_store.main import build
from tidegate.wire.clients.trajectory_store import Consumption, SampledUnits

pytestmark = pytest.mark.integration

LIMITS = StalenessLimits(max_lag=100, max_age_s=1e6)


async def test_units_are_sampled_and_committed_with_priorities_over_a_socket(
    nats: Broker, bus: Bus, tmp_path: Path
) -> None:
    settings = make_settings(tmp_path / "run", broker_url=nats.url, max_lag=LIMITS.max_lag)
    workload = msgspec.structs.replace(settings.workload, kind="segments", num_envs=N, unroll_length=T)
    settings = msgspec.structs.replace(settings, workload=workload)
    context = make_context("trajectory_store", settings, bus=bus)
    stream = Stream(7, num_envs=N)
    async with running(build, replay_config(selector="prioritised"), context):
        peers = Peers(context)
        await peers.client.open_lineage(Lineage(name=MAIN), learner_id="learner-0")
        sent = msgspec.structs.replace(
            peers.trajectory("t-1"),
            tensors=stream.segment(0, T),
            num_steps=UNITS,
            spans=(VersionSpan(version=at(0), start=0, stop=T),),
        )
        await peers.send(sent)
        for step in range(3):
            batch = await peers.client.sample_batch(
                at(step), batch_size=16, limits=LIMITS, max_wait_s=60.0, learner_id="learner-0"
            )
            assert batch is not None
            assert [row.is_unused for row in batch.rows] == [step == 0]
            positions = batch.tensors["actions"]
            assert set(positions.tolist()) <= set(range(T))
            await peers.client.commit_batch(
                batch.batch_id,
                version=at(step),
                consumptions=[
                    Consumption(row.trajectory_id, Fresh(lag=step, span=0, age_s=0.1))
                    for row in batch.rows
                    if row.is_unused
                ],
                sampled=SampledUnits(batch.ids, np.linspace(0.1, 2.0, 16, dtype=np.float32), step),
            )
        totals, _ = await peers.client.ledger()
        assert (totals.trained, totals.max_lag_trained) == (1, 2)
        counted, names = await peers.client.read_ledger(at=at(2))
        assert (await peers.client.verify_ledger()).findings == []
        assert names == {sent.trajectory_id}
        assert counted.replay is not None
        assert (counted.replay.sampled, counted.replay.recounted, counted.replay.sampled_at) == (48, 48, 32)
        assert (await peers.client.trajectory(sent.trajectory_id)).uses == 48
        with pytest.raises(RecordError, match="leases no whole trajectories"):
            await peers.lease(at(3), max_wait_s=1.0)
