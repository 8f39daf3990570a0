"""A run folder as a stopped platform leaves it, written by the services' own code."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

from tidegate.cli.accounting import journal_path, ledger_path
from tidegate.core.curriculum import CurriculumState
from tidegate.core.ids import (
    GroupId,
    LineageName,
    PolicyVersion,
    RunId,
    TaskId,
    TrajectoryId,
    task_id,
    trajectory_at,
)
from tidegate.core.records import EpisodeEnd, StageTiming, Task, Trajectory, VersionSpan
from tidegate.core.staleness import Fresh, Lineage, StalenessLimits
from tidegate.launch.forking import CHECKPOINTS
from tidegate.launch.run_file import read_run_file
from tidegate.launch.run_folder import new_record, write_record
from tidegate.launch.run_record import RunRecord
from tidegate.learner.checkpoint import Checkpoint, CheckpointFolder
from tidegate.learner.optim.port import TrainerState
from tidegate.learner.state import TrainingProgress
from tidegate.learner.steps_log import StepLine, StepsLog
from tidegate.task_queue.journal import open_journal
from tidegate.trajectory_store.config import TrajectoryStoreConfig
from tidegate.trajectory_store.intake import ArrivedMessage
from tidegate.trajectory_store.store import Store
from tidegate.wire.clients.trajectory_store import Consumption, Dropped
from tidegate.wire.frame import encode_frame
from tidegate.wire.subjects import HEADER_TRAJECTORY_IDS

RUNS = Path(__file__).parents[3] / "runs"
CARTPOLE = RUNS / "cartpole.yaml"
ARITHMETIC = RUNS / "arithmetic.yaml"
LINEAGE = LineageName("0-aaaa")
START_S = 1_800_000_000.0
NUM_STEPS = 64


def id_of(seq: int) -> TrajectoryId:
    return trajectory_at(seq, 0)


def write_run(folder: Path) -> RunRecord:
    """``run.json`` alone: a run whose services never started."""
    record = new_record(read_run_file(CARTPOLE, ["staleness.max_lag=4"]))
    folder.mkdir(parents=True, exist_ok=True)
    write_record(folder, record)
    return record


def write_text_run(
    folder: Path,
    *,
    updates: int = 5,
    overrides: Sequence[str] = (),
    metrics: Mapping[str, float] = MappingProxyType({}),
) -> RunRecord:
    """A run of a language model without evaluations: its steps, and nothing of its other services."""
    record = new_record(read_run_file(ARITHMETIC, ["task_queue.evaluation_every_versions=0", *overrides]))
    write_record(folder, record)
    log = StepsLog(folder / "learner" / "steps.jsonl", bytes_max=1 << 20)
    for step in range(1, updates + 1):
        log.append(
            StepLine(
                step=step, lineage=LINEAGE, at_s=START_S + step, samples=8, env_steps=32 * step, lag_mean=0.5,
                lag_max=1, by_lag={0: 4, 1: 4}, age_mean_s=1.0, mean_return=None, mean_reward=0.1 * step, loss=0.1,
                ess=0.9, clipped_fraction=0.01, wait_s=0.2, train_s=0.3, publish_s=0.01,
                metrics={
                    "entropy": 1.5 - 0.1 * step, "grad_norm": 0.7, "learning_rate": 3e-4, "ratio_mean": 1.01,
                    "mismatch_kl": 0.02, "mismatch_kl_lag_0": 1e-9, "mismatch_kl_lag_1": 0.04,
                    "completion_tokens_mean": 3.5, "completion_tokens_max": 4.0, "zero_signal_fraction": 0.25,
                    "my_own_figure": 7.0, **metrics,
                },
            )
        )  # fmt: skip
    log.close()
    return record


def write_completions(folder: Path, completions: Sequence[tuple[str, str, float]]) -> RunRecord:
    """A run of a language model whose first update trained one group: (prompt, completion, reward) each."""
    record = write_text_run(folder, updates=1)
    run, version = RunId(record.run_id), PolicyVersion(LINEAGE, 0)
    for path in (ledger_path(folder), journal_path(folder)):
        path.parent.mkdir(parents=True, exist_ok=True)
    journal = open_journal(journal_path(folder), run_id=run)
    journal.admit([_task(run, 1)], curriculum=CurriculumState())
    journal.close()
    store = Store(ledger_path(folder).parent, run_id=run, config=TrajectoryStoreConfig(), now_s=START_S)
    store.open_lineage(Lineage(name=LINEAGE), learner_id="learner-a", consumed=(), now_s=START_S)
    group = [
        Trajectory(
            trajectory_id=trajectory_at(1, index),
            run_id=run,
            task_id=TaskId(task_id(1)),
            group_id=GroupId(task_id(1)),
            group_size=len(completions),
            spans=(VersionSpan(version=version, start=0, stop=2),),
            tensors={"tokens": np.array([5, 6], np.int32), "behavior_logprobs": np.full(2, -0.5, np.float32)},
            num_steps=2,
            prompt=prompt,
            completion=completion,
            reward=reward,
            reward_components={"exact": reward, "length": 0.0},
            length_tokens=2,
            finish_reason="stop",
            env_id="arithmetic",
            actor_id="actor-0",
            started_at_s=START_S,
            finished_at_s=START_S + 0.01,
        )
        for index, (prompt, completion, reward) in enumerate(completions)
    ]
    ids = ",".join(each.trajectory_id for each in group)
    message = ArrivedMessage(
        data=encode_frame(group), headers={HEADER_TRAJECTORY_IDS: ids}, received_at_s=START_S + 0.1
    )
    store.ingest([message], now_s=START_S + 0.1)
    limits = StalenessLimits(max_lag=4, max_age_s=300.0)
    batch = store.lease(
        version, batch_size=len(group), limits=limits, learner_id="learner-a", now_s=START_S + 1
    )
    assert batch is not None
    consumptions = [Consumption(each, Fresh(lag=0, span=0, age_s=1.0)) for each in batch.trajectory_ids]
    store.commit(batch.batch_id, version=version, consumptions=consumptions, now_s=START_S + 1)
    store.close()
    return record


def write_checkpoints(folder: Path, *, steps: Sequence[int]) -> RunRecord:
    """A run whose learner wrote checkpoints of these versions."""
    record = write_run(folder)
    checkpoints = CheckpointFolder(folder / CHECKPOINTS, keep=len(steps))
    for step in steps:
        checkpoints.write(_checkpoint(record, step))
    return record


def _checkpoint(record: RunRecord, step: int) -> Checkpoint:
    return Checkpoint(
        run=RunId(record.run_id),
        policy_kind="any",
        progress=TrainingProgress(version=PolicyVersion(LINEAGE, step)),
        lineages=(Lineage(name=LINEAGE),),
        consumed=(),
        policy={"w": np.full(2, step, np.float32)},
        trainer=TrainerState(tensors={}, values={}),
        written_at_s=1.0,
    )


def write_accounting(
    folder: Path, *, admitted: int = 12, arrived: int = 9, batches: int = 3, retired: int = 1
) -> RunRecord:
    """A run that admitted ``admitted`` segments, of which ``arrived`` reached the store.

    ``batches`` batches of two were trained, one lag higher each; ``retired`` of those that never arrived were
    dropped, the others are still on their way.
    """
    record = write_run(folder)
    run = RunId(record.run_id)
    for path in (ledger_path(folder), journal_path(folder)):
        path.parent.mkdir(parents=True, exist_ok=True)
    journal = open_journal(journal_path(folder), run_id=run)
    journal.admit([_task(run, seq) for seq in range(1, admitted + 1)], curriculum=CurriculumState())
    journal.close()
    store = Store(ledger_path(folder).parent, run_id=run, config=TrajectoryStoreConfig(), now_s=START_S)
    store.open_lineage(Lineage(name=LINEAGE), learner_id="learner-a", consumed=(), now_s=START_S)
    for seq in range(1, arrived + 1):
        store.ingest([_message(run, seq)], now_s=START_S + 0.1 * seq + 0.02)
    log = StepsLog(folder / "learner" / "steps.jsonl", bytes_max=1 << 20)
    for step in range(batches):
        _train(store, log, step)
    store.drop_unarrived(
        [
            Dropped(id_of(seq), "retired", "the run is ending")
            for seq in range(arrived + 1, arrived + 1 + retired)
        ],
        now_s=START_S + 10.0,
    )
    log.close()
    store.close()
    return record


def write_checkpoint(folder: Path, record: RunRecord, *, step: int) -> None:
    """Another checkpoint of a run, of the version that its learner made with ``step`` updates."""
    (folder / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    CheckpointFolder(folder / CHECKPOINTS, keep=2).write(_checkpoint(record, step))


def write_progress(folder: Path, record: RunRecord, *, seqs: Sequence[int], step: int | None = None) -> None:
    """More of a run: tasks are admitted and arrive, and an update of version ``step`` trains two that wait."""
    run = RunId(record.run_id)
    journal = open_journal(journal_path(folder), run_id=run)
    journal.admit([_task(run, seq) for seq in seqs], curriculum=journal.curriculum)
    journal.close()
    store = Store(ledger_path(folder).parent, run_id=run, config=TrajectoryStoreConfig(), now_s=START_S)
    for seq in seqs:
        store.ingest([_message(run, seq)], now_s=START_S + 0.1 * seq + 0.02)
    if step is not None:
        log = StepsLog(folder / "learner" / "steps.jsonl", bytes_max=1 << 20)
        _train(store, log, step)
        log.close()
    store.close()


def write_samples(folder: Path) -> None:
    """Two samples of admission, the last one from after it was paused."""
    (folder / "admission").mkdir(parents=True, exist_ok=True)
    working = {"at_s": START_S + 1, "num_actors": 2, "num_learners": 1, "num_stores": 1, "learner_idle_ratio": 0.6,
               "actor_steps_per_s": 900.0, "learner_samples_per_s": 3.0, "learner_busy_ratio": 0.4,
               "actor_busy_ratio": 0.97, "values": {"actor.steps_total": 5.0}}  # fmt: skip
    ended: dict[str, Any] = {"at_s": START_S + 2, "paused": True, "values": {}}
    lines = msgspec.json.Encoder().encode_lines([working, ended])
    (folder / "admission" / "stats.jsonl").write_bytes(lines + b'{"at_s": 3, "cut')


def _task(run: RunId, seq: int) -> Task:
    return Task(
        task_id=task_id(seq),
        run_id=run,
        kind="segment",
        required_version=PolicyVersion(LINEAGE, 0),
        admitted_at_s=START_S + 0.1 * seq - 0.05,
    )


def _message(run: RunId, seq: int) -> ArrivedMessage:
    started_at_s = START_S + 0.1 * seq
    trajectory = Trajectory(
        trajectory_id=id_of(seq),
        run_id=run,
        task_id=TaskId(task_id(seq)),
        group_id=GroupId(task_id(seq)),
        group_size=1,
        spans=(VersionSpan(version=PolicyVersion(LINEAGE, 0), start=0, stop=NUM_STEPS),),
        tensors={"behavior_logprobs": np.full(NUM_STEPS, -0.5, np.float32)},
        num_steps=NUM_STEPS,
        episodes=(EpisodeEnd(episode_return=20.0, length=20, position=1),),
        env_id="CartPole-v1",
        actor_id="actor-0",
        started_at_s=started_at_s,
        finished_at_s=started_at_s + 0.01,
        stages=(StageTiming("trajectory.generate", "actor-0", started_at_s, started_at_s + 0.01),),
    )
    return ArrivedMessage(
        data=encode_frame([trajectory]),
        headers={HEADER_TRAJECTORY_IDS: id_of(seq)},
        received_at_s=started_at_s + 0.02,
    )


def _train(store: Store, log: StepsLog, step: int) -> None:
    version, at_s = PolicyVersion(LINEAGE, step), START_S + 2.0 + step
    limits = StalenessLimits(max_lag=4, max_age_s=300.0)
    batch = store.lease(version, batch_size=2, limits=limits, learner_id="learner-a", now_s=at_s)
    assert batch is not None
    consumptions = [Consumption(each, Fresh(lag=step, span=0, age_s=1.0)) for each in batch.trajectory_ids]
    store.commit(batch.batch_id, version=version, consumptions=consumptions, now_s=at_s + 0.5)
    log.append(
        StepLine(
            step=step + 1, lineage=LINEAGE, at_s=at_s + 0.5, samples=2, env_steps=2 * NUM_STEPS * (step + 1),
            lag_mean=float(step), lag_max=step, by_lag={step: 2}, age_mean_s=1.0, mean_return=100.0 * step,
            mean_reward=None, loss=0.1, ess=0.9, clipped_fraction=0.0, wait_s=0.2, train_s=0.3, publish_s=0.01,
        )
    )  # fmt: skip
