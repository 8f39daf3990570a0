"""Small trajectories, messages and stores for the tests of this package."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from tidegate.core.audit import BudgetTotals, LedgerTotals
from tidegate.core.ids import GroupId, LineageName, PolicyVersion, RunId, TaskId, TrajectoryId, trajectory_id
from tidegate.core.records import EpisodeEnd, StageTiming, Trajectory, VersionSpan
from tidegate.core.staleness import Fresh, Lineage, StalenessLimits
from tidegate.trajectory_store.config import TrajectoryStoreConfig
from tidegate.trajectory_store.intake import ArrivedMessage
from tidegate.trajectory_store.reading import totals
from tidegate.trajectory_store.store import Batch, Store
from tidegate.wire.clients.trajectory_store import ConsumedBatch, Consumption
from tidegate.wire.frame import encode_frame
from tidegate.wire.subjects import HEADER_TRAJECTORY_IDS

RUN = RunId("test-run")
MAIN = LineageName("0-aaaa")
FORK = LineageName("1-bbbb")
NOW_S = 1000.0
LIMITS = StalenessLimits(max_lag=4, max_age_s=60.0)
NUM_STEPS = 4


def at(step: int, lineage: LineageName = MAIN) -> PolicyVersion:
    return PolicyVersion(lineage=lineage, step=step)


def make_trajectory(
    task: str,
    *,
    index: int = 0,
    version: PolicyVersion | None = None,
    group_size: int = 1,
    started_at_s: float = NOW_S,
    reward: float | None = None,
    spans: tuple[VersionSpan, ...] | None = None,
) -> Trajectory:
    """A trajectory of four steps, with everything a ledger keeps of one."""
    return Trajectory(
        trajectory_id=trajectory_id(TaskId(task), sample_index=index),
        run_id=RUN,
        task_id=TaskId(task),
        group_id=GroupId(task),
        group_size=group_size,
        spans=spans or (VersionSpan(version=version or at(0), start=0, stop=NUM_STEPS),),
        tensors={
            "behavior_logprobs": np.full(NUM_STEPS, -0.5, np.float32),
            "tokens": np.arange(NUM_STEPS, dtype=np.int64),
        },
        num_steps=NUM_STEPS,
        reward=reward,
        episodes=(EpisodeEnd(episode_return=20.0, length=20, position=1),),
        curriculum_bin="easy",
        length_tokens=NUM_STEPS,
        started_at_s=started_at_s,
        finished_at_s=started_at_s + 1.0,
        stages=(StageTiming("trajectory.generate", "actor-0", started_at_s, started_at_s + 1.0),),
    )


def make_group(task: str, size: int, *, version: PolicyVersion | None = None) -> list[Trajectory]:
    return [make_trajectory(task, index=index, version=version, group_size=size) for index in range(size)]


def message_of(*trajectories: Trajectory, received_at_s: float | None = None) -> ArrivedMessage:
    return ArrivedMessage(
        data=encode_frame(trajectories),
        headers={HEADER_TRAJECTORY_IDS: ",".join(item.trajectory_id for item in trajectories)},
        received_at_s=max(each.finished_at_s for each in trajectories)
        if received_at_s is None
        else received_at_s,
    )


def open_store(folder: Path, *, config: TrajectoryStoreConfig | None = None, now_s: float = NOW_S) -> Store:
    return Store(folder, run_id=RUN, config=config or TrajectoryStoreConfig(), now_s=now_s)


def started_store(folder: Path, *, config: TrajectoryStoreConfig | None = None) -> Store:
    """A store whose first lineage a learner has opened."""
    store = open_store(folder, config=config)
    store.open_lineage(Lineage(name=MAIN), learner_id="learner-0", consumed=(), now_s=NOW_S)
    return store


def lease(
    store: Store,
    version: PolicyVersion,
    *,
    batch_size: int = 1,
    now_s: float = NOW_S,
    limits: StalenessLimits = LIMITS,
) -> Batch | None:
    return store.lease(version, batch_size=batch_size, limits=limits, learner_id="learner-0", now_s=now_s)


def consumed(ids: list[TrajectoryId], *, lag: int = 0) -> list[Consumption]:
    return [Consumption(item, Fresh(lag=lag, span=0, age_s=1.0)) for item in ids]


def accept(store: Store, *tasks: str, step: int = 0) -> None:
    store.ingest([message_of(make_trajectory(task, version=at(step))) for task in tasks], now_s=NOW_S)


def leased(store: Store, step: int, *, batch_size: int = 1) -> Batch:
    batch = lease(store, at(step), batch_size=batch_size)
    assert batch is not None
    return batch


def commit(store: Store, batch: Batch, step: int, *, lag: int = 0) -> None:
    store.commit(
        batch.batch_id, version=at(step), consumptions=consumed(batch.trajectory_ids, lag=lag), now_s=NOW_S
    )


def fork(store: Store, *, step: int, held: Sequence[ConsumedBatch] = ()) -> int:
    return store.open_lineage(
        Lineage(name=FORK, parent=MAIN, fork_step=step), learner_id="learner-1", consumed=held, now_s=NOW_S
    )


def counted(path: Path) -> LedgerTotals:
    """A ledger's counts as a live store has them in memory: without the judgement of each use, which audits make."""
    return msgspec.structs.replace(totals(path), budgets=BudgetTotals())


def state_of(store: Store, name: str) -> tuple[str, str]:
    status = store.trajectory(name)
    return status.state, status.reason
