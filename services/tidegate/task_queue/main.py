"""The entry point of the task queue: what is built before its loops run."""

import os
from collections.abc import Coroutine
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from tidegate.core.curriculum import Curriculum, Strategy
from tidegate.core.errors import ConfigError
from tidegate.core.ids import RunId
from tidegate.core.mixed_curriculum import MixedCurriculum, PromptChoice
from tidegate.core.own_weights import too_many_bins
from tidegate.runtime.config import Settings, WorkloadConfig
from tidegate.runtime.live_settings import run_file_limits
from tidegate.runtime.policy_watch import PolicyWatch
from tidegate.runtime.replication.opening import Kind
from tidegate.runtime.replication.service import ServiceReplica
from tidegate.runtime.service import Loop, ServiceContext, ServiceParts, ServiceSpec
from tidegate.runtime.settings_loop import SettingsFollower
from tidegate.runtime.snapshots.servicer import RecordsServicer, SnapshotServicer
from tidegate.runtime.task_secret import read_task_secrets
from tidegate.task_queue.config import TaskQueueConfig
from tidegate.task_queue.dataset import HELD_OUT_FILE, TRAIN_FILE, Dataset, open_dataset
from tidegate.task_queue.dataset_import import import_dataset
from tidegate.task_queue.evaluation import Evaluation
from tidegate.task_queue.journal import Journal, open_journal
from tidegate.task_queue.journal_file import FILE_NAME, SCHEMA_VERSION
from tidegate.task_queue.loops import TaskQueue, TaskSource
from tidegate.task_queue.own_curriculum.loop import WeightsLoop
from tidegate.task_queue.own_curriculum.process import CurriculumDeadlines, CurriculumProcess
from tidegate.task_queue.servicer import TaskQueueServicer
from tidegate.task_queue.snapshot import add_journal, journal_moment
from tidegate.task_queue.state import Workload, check_limits
from tidegate.task_queue.sweep import Sweep
from tidegate.wire.clients.trajectory_store import TrajectoryStoreClient


async def build(context: ServiceContext, config: TaskQueueConfig) -> ServiceParts:
    """Open the journal, read the dataset, and put the loops together.

    Raises:
        ConfigError: the dataset is missing or malformed, or the settings would make the loop wait for itself.
        StaleFolderError: the journal belongs to another run.
        CorruptionError: the journal cannot be read.
    """
    settings = context.settings
    workload = _workload(settings)
    ceiling = run_file_limits(settings, context.live.staleness)
    check_limits(ceiling, group_size=workload.group_size)
    data = Path(settings.data_dir) / "data"
    if workload.kind == "group" and not settings.workload.envs:
        import_dataset(settings.workload.dataset, data, files_dir=settings.files_dir)
    prompts = open_dataset(data / TRAIN_FILE) if workload.kind == "group" else None
    if config.evaluation_every_versions and workload.kind == "group":
        check_held_out(data / HELD_OUT_FILE, settings.workload)

    path = context.data_dir / FILE_NAME
    journal, replica = await _open_replicated(context, path)
    journal.keep_dataset_size(len(prompts) if prompts is not None else 0)
    journal.set_retired(retired=False)
    policy = PolicyWatch(context)
    curriculum = _curriculum(prompts, settings, config)
    queue = TaskQueue(
        context,
        config,
        journal=journal,
        workload=workload,
        source=TaskSource(prompts or (), curriculum),
        store=TrajectoryStoreClient(context.channel("trajectory_store")),
        policy=policy,
        ceiling=ceiling,
        secrets=read_task_secrets(settings),
        caught_up=replica.caught_up,
    )
    context.live.on_change(lambda: queue.change_ceiling(run_file_limits(settings, context.live.staleness)))
    sweep = Sweep(queue)
    loops: dict[str, Loop] = {
        "policy_watch": policy.run,
        "follow_policy": queue.follow_policy,
        "follow_limits": queue.follow_limits,
        "outcomes": queue.outcomes,
        "admit": queue.admit,
        "sweep": sweep.run,
        "settings": SettingsFollower(context).follow,
        **replica.loops(),
    }
    if config.evaluation_every_versions:
        loops["evaluation"] = Evaluation(queue).run
    process = None
    if curriculum is not None and (own := config.own_curriculum(folder=settings.files_dir)) is not None:
        process = CurriculumProcess(own, _deadlines(config), environ=_without_secrets(settings))
        weights = _weights(context, curriculum, process, journal=journal, policy=policy)
        loops |= {"curriculum": weights.run, "admit": partial(_admit, queue, weights)}

    async def close() -> None:
        if process is not None:
            await process.close()
        await replica.close()
        journal.close()
        if prompts is not None:
            prompts.close()

    servicer = TaskQueueServicer(journal, sweep, path=path)
    folder = Path(settings.data_dir)
    snapshots = SnapshotServicer(
        partial(journal_moment, path=path), folder=folder, staging_in=context.data_dir
    )
    records = RecordsServicer(partial(add_journal, path=path), folder=folder, staging_in=context.data_dir)
    return ServiceParts(
        loops=loops,
        servicers=[
            servicer.registration(replica.before_answer),
            snapshots.registration(),
            records.registration(),
        ],
        close=close,
    )


def turn(context: ServiceContext, _config: TaskQueueConfig) -> Coroutine[Any, Any, None] | None:
    """Waits until this task queue owns the journal's replica; None for a run that has one task queue."""
    return _replica(context).turn()


def _replica(context: ServiceContext) -> ServiceReplica:
    create = partial(_create_journal, run_id=context.settings.run)
    return ServiceReplica(
        context, Kind(context.settings.run, SCHEMA_VERSION, context.data_dir / FILE_NAME, create)
    )


async def _open_replicated(context: ServiceContext, path: Path) -> tuple[Journal, ServiceReplica]:
    replica = _replica(context)
    await replica.begin()
    journal = open_journal(path, run_id=context.settings.run)
    await replica.follow(journal.connection)
    return journal, replica


def _create_journal(path: Path, *, run_id: RunId) -> None:
    open_journal(path, run_id=run_id).close()


def _without_secrets(settings: Settings) -> dict[str, str]:
    """The environment of code that is not the platform's own."""
    secret = settings.postgres.uri_env if settings.postgres is not None else ""
    return {name: value for name, value in os.environ.items() if name != secret}


def _workload(settings: Settings) -> Workload:
    workload = settings.workload
    text = workload.kind == "text"
    return Workload(
        run_id=settings.run,
        kind="group" if text else "segment",
        env_id=workload.label,
        group_size=workload.num_samples if text else 1,
        unroll_length=workload.unroll_length,
        sampler=workload.sampler,
        seed=settings.seed,
    )


def check_held_out(path: Path, workload: WorkloadConfig) -> None:
    """Refuse at the start what an actor would only find out when it evaluates.

    Raises:
        ConfigError: no problems are held out, or some are of no environment of the run.
    """
    for name, part in workload.by_name().items():
        setting = f"the dataset of {name}" if workload.envs else "workload.dataset"
        holds_out = part.dataset.holds_out or (not workload.envs and path.exists())
        if part.dataset.path and not holds_out:
            raise ConfigError(
                f"task_queue.evaluation_every_versions is set and {setting} holds no problems out",
                why="the score on trained problems does not measure what was learned",
                fix=f"set held_out_share, held_out_split or held_out_path of {setting}, or no evaluations",
            )
    with closing(open_dataset(path)) as held_out:
        _check_names(held_out, workload, file=path.name)


def _curriculum(prompts: Dataset | None, settings: Settings, config: TaskQueueConfig) -> PromptChoice | None:
    if prompts is None:
        return None
    if config.curriculum == "uniform" or config.curriculum == "learnable":
        return _choice(prompts, settings, strategy=config.curriculum)
    curriculum = _choice(prompts, settings, strategy="own")
    why = too_many_bins(curriculum.names)
    if why:
        raise ConfigError(
            "task_queue.curriculum cannot be a curriculum of one's own here",
            why=why,
            fix="give the prompts fewer bins, or use learnable",
        )
    return curriculum


def _choice(prompts: Dataset, settings: Settings, *, strategy: Strategy) -> PromptChoice:
    _check_names(prompts, settings.workload, file=TRAIN_FILE)
    if not settings.workload.envs:
        return Curriculum(prompts.bins, seed=settings.seed, strategy=strategy)
    weights = settings.workload.weights()
    there = set(prompts.env_of.values())
    lacking = next((name for name, weight in weights.items() if weight and name not in there), None)
    if lacking is not None:
        raise _wrong_names(f"has no prompts of {lacking!r}", settings.workload, file=TRAIN_FILE)
    return MixedCurriculum(
        prompts.bins, env_of=prompts.env_of, weights=weights, seed=settings.seed, strategy=strategy
    )


def _check_names(dataset: Dataset, workload: WorkloadConfig, *, file: str) -> None:
    """Whether each row is of an environment of the run, which it need not name where there is one."""
    known = {*workload.weights(), *(() if workload.envs else ("",))}
    wrong = next((name for name in dataset.env_of.values() if name not in known), None)
    if wrong is not None:
        raise _wrong_names(f"has prompts of {wrong!r}", workload, file=file)


def _wrong_names(problem: str, workload: WorkloadConfig, *, file: str) -> ConfigError:
    return ConfigError(
        f"{file} of the run {problem}",
        why=f"the run file names {', '.join(workload.weights())}",
        fix=f"remove {file} from the run folder's data, or write its rows with these names as `env`",
    )


def _weights(
    context: ServiceContext,
    curriculum: PromptChoice,
    process: CurriculumProcess,
    *,
    journal: Journal,
    policy: PolicyWatch,
) -> WeightsLoop:
    return WeightsLoop(
        curriculum,
        drain=context.drain,
        stats=context.stats,
        log=context.log,
        seed=context.settings.seed,
        weigh=process.weigh,
        state=lambda: journal.curriculum,
        step=lambda: policy.head.version.step if policy.head else 0,
        keep=journal.keep_weights,
    )


async def _admit(queue: TaskQueue, weights: WeightsLoop) -> None:
    await weights.first_answer()
    await queue.admit()


def _deadlines(config: TaskQueueConfig) -> CurriculumDeadlines:
    return CurriculumDeadlines(config.curriculum_deadline_s, config.curriculum_start_deadline_s)


SPEC = ServiceSpec(name="task_queue", config_type=TaskQueueConfig, build=build, turn=turn)
