"""How the trajectory store is put together."""

import os
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from tidegate.core.errors import ConfigError
from tidegate.runtime.clock import Clock
from tidegate.runtime.policy_watch import PolicyWatch
from tidegate.runtime.replication.opening import Kind
from tidegate.runtime.replication.service import ServiceReplica
from tidegate.runtime.service import ServiceContext, ServiceParts, ServiceSpec
from tidegate.runtime.settings_loop import SettingsFollower
from tidegate.runtime.snapshots.servicer import RecordsServicer, SnapshotServicer
from tidegate.runtime.task_secret import TaskSecrets, read_task_secrets
from tidegate.trajectory_store.config import TrajectoryStoreConfig
from tidegate.trajectory_store.folder_lock import lock_folder
from tidegate.trajectory_store.learner_turn_servicer import LearnerTurnServicer
from tidegate.trajectory_store.ledger import Ledger
from tidegate.trajectory_store.loops import DrainLoop, ExpiryLoop, IntakeLoop, ReportLoop
from tidegate.trajectory_store.payload_replica import PayloadReplica
from tidegate.trajectory_store.replay.plan import plan_replay
from tidegate.trajectory_store.replay.replay import REPLAY_FOLDER
from tidegate.trajectory_store.schema import LEDGER_FILE, SCHEMA_VERSION
from tidegate.trajectory_store.segments import SEGMENTS_FOLDER
from tidegate.trajectory_store.servicer import TrajectoryStoreServicer
from tidegate.trajectory_store.snapshot import add_ledger, ledger_moment
from tidegate.trajectory_store.store import Store


async def build(context: ServiceContext, config: TrajectoryStoreConfig) -> ServiceParts:
    """Open the ledger and put the parts together; nothing is read yet.

    Raises:
        ConfigError: the residency limit cannot hold one batch, so nothing would ever be trained; or replay could only
            stand still.
        StaleFolderError: the folder belongs to another run, or another store has it open.
        CorruptionError: the ledger cannot be read.
    """
    settings = context.settings
    replay = plan_replay(
        config,
        settings.workload,
        batch_size=settings.batch_size,
        max_lag=settings.staleness.max_lag,
        seed=settings.seed,
    )
    if replay is None and config.max_resident_trajectories < settings.batch_size:
        raise ConfigError(
            f"`max_resident_trajectories` is {config.max_resident_trajectories}, a batch needs"
            f" {settings.batch_size}",
            why="the store would stop fetching before a batch is full, and wait for ever",
            fix="raise trajectory_store.max_resident_trajectories, or lower batch_size",
        )
    secrets = read_task_secrets(settings)
    if secrets is None:
        context.log.warning(
            "tasks_not_signed", why="no secret of tasks is configured: every message is believed"
        )
    replica = await _begun_replica(context)
    store = Store(
        context.data_dir,
        run_id=settings.run,
        config=config,
        now_s=context.clock.now_s(),
        replay=replay,
        task_secrets=partial(_accepted, secrets, context.clock) if secrets is not None else None,
    )
    await replica.follow(store.ledger.connection)
    servicer = TrajectoryStoreServicer(store, context.clock, budget=context.live.limits)
    policy = PolicyWatch(context)
    folder, ledger = Path(settings.data_dir), store.ledger_path
    snapshots = SnapshotServicer(
        partial(ledger_moment, path=ledger), folder=folder, staging_in=context.data_dir
    )
    records = RecordsServicer(partial(add_ledger, path=ledger), folder=folder, staging_in=context.data_dir)

    async def close() -> None:
        await replica.close()
        store.close()

    return ServiceParts(
        loops={
            "intake": IntakeLoop(context, config, store, policy, caught_up=replica.caught_up).run,
            "expiry": ExpiryLoop(context, config, store, policy, is_away=lambda: replica.is_away).run,
            "policy": policy.run,
            "report": ReportLoop(context, store).run,
            "drain": DrainLoop(context, servicer).run,
            "settings": SettingsFollower(context).follow,
            **replica.loops(),
        },
        servicers=[
            servicer.registration(replica.before_answer),
            LearnerTurnServicer(store, context.clock).registration(replica.before_answer),
            snapshots.registration(),
            records.registration(),
        ],
        close=close,
    )


def turn(context: ServiceContext, _config: TrajectoryStoreConfig) -> Coroutine[Any, Any, None] | None:
    """Waits until this store owns the ledger's replica; None for a run that has one store."""
    return _replica(context).turn()


def _replica(context: ServiceContext) -> ServiceReplica:
    folder, run_id = context.data_dir, context.settings.run
    create = partial(_create_ledger, run_id=run_id)
    return ServiceReplica(
        context,
        Kind(run_id, SCHEMA_VERSION, folder / LEDGER_FILE, create),
        files=PayloadReplica(folder / SEGMENTS_FOLDER, replay=folder / REPLAY_FOLDER),
    )


async def _begun_replica(context: ServiceContext) -> ServiceReplica:
    replica = _replica(context)
    # No second store on this folder takes the replica of the first.
    lock = lock_folder(context.data_dir)
    try:
        await replica.begin()
    finally:
        os.close(lock)
    return replica


def _create_ledger(path: Path, *, run_id: str) -> None:
    Ledger.open(path, run_id=run_id).close()


def _accepted(secrets: Callable[[], TaskSecrets], clock: Clock) -> tuple[bytes, ...]:
    return secrets().accepted(now_s=clock.now_s())


SPEC = ServiceSpec(name="trajectory_store", config_type=TrajectoryStoreConfig, build=build, turn=turn)
