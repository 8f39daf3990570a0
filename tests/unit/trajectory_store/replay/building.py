"""A store that replays, fed by one environment's stream, for the tests of this package."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tests.support.replay import Stream
from tests.unit.trajectory_store.building import FORK, LIMITS, MAIN, NOW_S, RUN, at, message_of
from tidegate.core.ids import GroupId, LineageName, PolicyVersion, TaskId, TrajectoryId, trajectory_id
from tidegate.core.records import EpisodeEnd, Trajectory, VersionSpan
from tidegate.core.staleness import Fresh, Lineage, StalenessLimits
from tidegate.runtime.config import WorkloadConfig
from tidegate.trajectory_store import reading
from tidegate.trajectory_store.config import ReplayConfig, TrajectoryStoreConfig
from tidegate.trajectory_store.intake import ArrivedMessage
from tidegate.trajectory_store.replay.plan import plan_replay
from tidegate.trajectory_store.replay.replay import Committed, Replay
from tidegate.trajectory_store.replay.sampled_batches import SampledCommit
from tidegate.trajectory_store.store import Store
from tidegate.wire.clients.trajectory_store import ConsumedBatch, Consumption, Dropped
from tidegate.wire.samples import ReplaySample, decode_sample

T, N = 4, 2
UNITS = T * N
BATCH = 4
WIDE = StalenessLimits(max_lag=10_000, max_age_s=1e9)

__all__ = ["FORK", "LIMITS", "MAIN", "NOW_S", "RUN", "at"]


def replay_config(**changes: Any) -> TrajectoryStoreConfig:
    """Room for four segments, transitions of one step, without a limit on uses or a pace."""
    wanted = ReplayConfig(unit="transition", capacity=4 * UNITS, uses_max=0, min_fill=1)
    return TrajectoryStoreConfig(replay=msgspec.structs.replace(wanted, **changes))


def open_replay(folder: Path, config: TrajectoryStoreConfig | None = None) -> Store:
    wanted = config or replay_config()
    workload = WorkloadConfig(kind="segments", env="CartPole-v1", num_envs=N, unroll_length=T)
    plan = plan_replay(wanted, workload, batch_size=BATCH, max_lag=LIMITS.max_lag, seed=0)
    return Store(folder, run_id=RUN, config=wanted, now_s=NOW_S, replay=plan)


def started_replay(folder: Path, config: TrajectoryStoreConfig | None = None) -> Store:
    store = open_replay(folder, config)
    store.open_lineage(Lineage(name=MAIN), learner_id="learner-0", consumed=(), now_s=NOW_S)
    return store


def segment_message(
    index: int,
    *,
    stream: Stream | None = None,
    version: PolicyVersion | None = None,
    started_at_s: float = NOW_S,
) -> ArrivedMessage:
    """The ``index``-th segment of a stream, named ``t-<index>.0``."""
    made = stream or Stream(7, num_envs=N, end_chance=0.1)
    made.extend((index + 1) * T)
    task = TaskId(f"t-{index}")
    tensors = made.segment(index * T, T)
    return message_of(
        Trajectory(
            trajectory_id=trajectory_id(task, sample_index=0),
            run_id=RUN,
            task_id=task,
            group_id=GroupId(task),
            group_size=1,
            spans=(VersionSpan(version=version or at(0), start=0, stop=T),),
            tensors=tensors,
            num_steps=int(np.count_nonzero(tensors["valid"])),
            episodes=(EpisodeEnd(float(index), 3, 1),),
            started_at_s=started_at_s,
            finished_at_s=started_at_s,
            stream_id="stream-0",
            stream_position=index,
        )
    )


def replay_of(store: Store) -> Replay:
    assert store.replay is not None
    return store.replay


def insert(store: Store, *indexes: int, version: PolicyVersion | None = None) -> None:
    intake = store.ingest([segment_message(index, version=version) for index in indexes], now_s=NOW_S)
    assert intake.refused == []


def sample(
    store: Store,
    version: PolicyVersion,
    *,
    batch_size: int = BATCH,
    limits: StalenessLimits = WIDE,
    learner_id: str = "learner-0",
) -> ReplaySample | None:
    batch = replay_of(store).sample(
        version, batch_size=batch_size, limits=limits, learner_id=learner_id, now_s=NOW_S
    )
    return None if batch is None else decode_sample(batch.frame)


def sampled(store: Store, version: PolicyVersion, *, batch_size: int = BATCH) -> ReplaySample:
    batch = sample(store, version, batch_size=batch_size)
    assert batch is not None
    return batch


def consumptions(batch: ReplaySample, *, lag: int = 0) -> list[Consumption]:
    return [
        Consumption(row.trajectory_id, Fresh(lag=lag, span=0, age_s=1.0))
        for row in batch.rows
        if row.is_unused
    ]


def commit(
    store: Store,
    batch: ReplaySample,
    version: PolicyVersion,
    *,
    priorities: Sequence[float] | None = None,
    max_lag: int = 0,
) -> Committed:
    return replay_of(store).commit(
        batch.batch_id,
        version=version,
        sampled=SampledCommit(batch.ids, max_lag),
        priorities=None if priorities is None else np.array(priorities, np.float32),
        consumptions=consumptions(batch),
        now_s=NOW_S,
    )


def update(store: Store, version: PolicyVersion, *, batch_size: int = BATCH) -> ReplaySample:
    """One update of ``version``: sampled and committed."""
    batch = sampled(store, version, batch_size=batch_size)
    commit(store, batch, version)
    return batch


def held_by_checkpoint(batch: ReplaySample, version: PolicyVersion) -> ConsumedBatch:
    """The batch as a checkpoint holds it whose commit was not acknowledged."""
    units: dict[TrajectoryId, list[int]] = {}
    for unit, row in zip(batch.ids.tolist(), batch.row_of.tolist(), strict=True):
        units.setdefault(batch.rows[int(row)].trajectory_id, []).append(unit % UNITS)
    return ConsumedBatch(batch.batch_id, version, consumptions(batch), units=units)


def fork(
    store: Store,
    *,
    step: int,
    name: LineageName = FORK,
    parent: LineageName = MAIN,
    held: Sequence[ConsumedBatch] = (),
) -> int:
    return store.open_lineage(
        Lineage(name=name, parent=parent, fork_step=step), learner_id="learner-1", consumed=held, now_s=NOW_S
    )


def uses_of(store: Store) -> dict[int, int]:
    """How often each resident unit was used, as the sampler counts it."""
    buffer = replay_of(store).buffer
    found: dict[int, int] = {}
    for slot in buffer.pages.slots:
        seq = buffer.pages.page(slot).header.seq
        for place, count in enumerate(buffer.offers.uses(slot).tolist()):
            if count:
                found[seq * UNITS + place] = count
    return found


def replay_totals(store: Store, version: PolicyVersion | None = None) -> Any:
    """What an audit counts from the file."""
    totals = reading.totals(store.ledger_path, at=version).replay
    assert totals is not None
    return totals


def dropped(name: str) -> Dropped:
    return Dropped(trajectory_id(TaskId(name), sample_index=0), "invalid", "a test")
