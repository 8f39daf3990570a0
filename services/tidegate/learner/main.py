"""The entry point of the learner, alone or as rank 0 of several, and of the other ranks."""

import asyncio
import dataclasses
import os
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import structlog
import torch

from tidegate.catalogue import learner as statistics
from tidegate.core.errors import ConfigError, UnavailableError
from tidegate.core.spaces import EnvironmentDescription
from tidegate.core.staleness import StalenessLimits
from tidegate.learner.algorithm import find_algorithm
from tidegate.learner.begun_policy import begin_from_another
from tidegate.learner.checkpoint import CheckpointFolder
from tidegate.learner.config import LearnerConfig
from tidegate.learner.device import open_device
from tidegate.learner.environment_file import write_environment
from tidegate.learner.first_policy import warm_up
from tidegate.learner.loops import Learner
from tidegate.learner.optim.language_model import LanguageModelTrainer
from tidegate.learner.optim.port import Trainer
from tidegate.learner.optim.registry import TrainerSetting, open_trainer
from tidegate.learner.optim.several_updates import SeveralUpdates
from tidegate.learner.ranks.agreement import check_same_settings
from tidegate.learner.ranks.following import Follower
from tidegate.learner.ranks.group import RankGroup
from tidegate.learner.ranks.leading import LeadingTrainer
from tidegate.learner.ranks.membership import Membership, membership
from tidegate.learner.ranks.port import SharedTrainer
from tidegate.learner.replay_batches import ReplaySupply
from tidegate.learner.reporting import StepReporter
from tidegate.learner.servicer import LearnerServicer
from tidegate.learner.snapshot import add_lines, learner_moment
from tidegate.learner.standby import TurnKeeper, await_turn, has_standbys, turn_client
from tidegate.learner.steps_log import STEPS_FILE, StepsLog
from tidegate.learner.token_gaps_log import TOKEN_GAPS_FILE, TokenGapsLog
from tidegate.learner.trajectory_batches import TrajectorySupply
from tidegate.learner.update_speed import UpdateSpeed, find_update_speed
from tidegate.learner.warmup import WarmupProgress
from tidegate.learner.warmup_record import WarmupRecord
from tidegate.models.model_folder import base_digest
from tidegate.runtime.config import Settings
from tidegate.runtime.described_environment import ask_description
from tidegate.runtime.drain import Drain
from tidegate.runtime.gpu_statistics import with_gpu_statistics
from tidegate.runtime.races import run_until
from tidegate.runtime.service import Build, ServiceContext, ServiceParts, ServiceSpec
from tidegate.runtime.service_credentials import accepted_tokens, channels_of
from tidegate.runtime.settings_loop import SettingsFollower
from tidegate.runtime.snapshots.servicer import RecordsServicer, SnapshotServicer
from tidegate.wire.clients.learner_turn import LearnerTurnClient
from tidegate.wire.clients.trajectory_store import TrajectoryStoreClient

# In the data folder of the learner.
CHECKPOINTS = "checkpoints"


class OpenedTrainer(msgspec.Struct, frozen=True, eq=False):
    """What takes a learner longest before it can begin: the trainer, with its model loaded, on a device.

    ``leading``: the same trainer as all ranks update it together, which waits with them from now on.
    """

    local: SharedTrainer
    device: torch.device
    leading: LeadingTrainer | None = None
    num_ranks: int = 1


async def build(context: ServiceContext, config: LearnerConfig) -> ServiceParts:
    """Fresh parameters from the run's seed; the loop restores a checkpoint over them if there is one."""
    return await build_around(context, config, await open_own_trainer(context, config))


def turn(context: ServiceContext, config: LearnerConfig) -> Coroutine[Any, Any, Build] | None:
    """Waits, with its model loaded, until this learner may train; None where no other one is beside it.

    Raises:
        ConfigError: it has ranks in several pods.
    """
    return _stand_by(context, config) if has_standbys(context.settings) else None


async def _stand_by(context: ServiceContext, config: LearnerConfig) -> Build:
    member = membership(os.environ)
    if member is not None and not member.store:
        raise ConfigError(
            "A learner with ranks in several pods cannot stand by",
            why="the pods of the one that works and of the other would have to agree on which of them they are",
            fix="set learner.standbys to 0, or learner.ranks to the GPUs of one pod",
        )
    opened = await open_own_trainer(context, config)
    client = turn_client(context)
    waiting = await_turn(context, client, context.data_dir / CHECKPOINTS)
    if opened.leading is None:
        await waiting
    else:
        await _with_waiting_ranks(waiting, opened.leading, context)
    return partial(_build_with_turn, context, config, opened, client)


async def _with_waiting_ranks(
    waiting: Coroutine[Any, Any, None], leading: LeadingTrainer, context: ServiceContext
) -> None:
    """Wait with the other ranks, which are stopped when this one drains.

    Raises:
        RankLostError, RankLeavingError: the group has to form again.
    """
    async with AsyncExitStack() as unless_turn:
        unless_turn.push_async_callback(asyncio.to_thread, leading.stop)
        await run_until(leading.watch(context.drain), waiting)
        if not context.drain.requested:
            unless_turn.pop_all()


async def _build_with_turn(
    context: ServiceContext, config: LearnerConfig, opened: OpenedTrainer, client: LearnerTurnClient
) -> ServiceParts:
    parts = await build_around(context, config, opened)
    keeper = TurnKeeper(context, client)

    async def close() -> None:
        if parts.close is not None:
            await parts.close()
        await keeper.close()

    loops = {**parts.loops, "train": keeper.around(parts.loops["train"]), "turn": keeper.run}
    return dataclasses.replace(parts, loops=loops, close=close)


async def open_own_trainer(context: ServiceContext, config: LearnerConfig) -> OpenedTrainer:
    """The trainer of this process, alone or as rank 0, once the environment was described."""
    settings = context.settings
    torch.set_num_threads(config.threads)
    member = membership(os.environ)
    description = (
        await ask_description(context.channel("environment"), context.drain, context.log)
        if settings.workload.kind == "segments"
        else None
    )
    if description is not None:
        await asyncio.to_thread(write_environment, context.data_dir, description)
    if member is not None:
        local, group = await asyncio.to_thread(join_ranks, member, config, settings, description)
        leading = LeadingTrainer(local, group, stats=context.stats)
        return OpenedTrainer(local, group.device, leading, group.count)
    chosen = open_device(config, context.log)
    context.stats.label(statistics.DEVICE, f"{chosen.device}: {chosen.why}")
    device = chosen.torch_device()
    setting = TrainerSetting(settings, config, device, description=description)
    return OpenedTrainer(await asyncio.to_thread(open_trainer, setting), device)


async def build_around(context: ServiceContext, config: LearnerConfig, opened: OpenedTrainer) -> ServiceParts:
    """The parts of a learner whose trainer is open."""
    settings, local, leading, device = context.settings, opened.local, opened.leading, opened.device
    num_ranks = opened.num_ranks
    _notice_ranks(context, config, num_ranks=num_ranks)
    context.log.info("trainer_ready", policy=settings.policy.kind, ranks=num_ranks)

    def make_first_policy() -> WarmupRecord | None:
        warmed: WarmupRecord | None = None
        if begin_from_another(local, Path(settings.data_dir) / "data"):
            context.log.info("begun_from_another_run")
        elif isinstance(local, LanguageModelTrainer):
            warmed = warm_up(
                local,
                settings,
                config,
                report=partial(_report_warmup, context),
                between=follow_warmup,
                log=context.log,
            )
        if leading is not None:
            leading.share()
        return warmed

    def follow_warmup(steps: int) -> None:
        if context.drain.requested:
            raise UnavailableError("The warm-up was stopped", why="the learner is draining")
        context.stats.set(statistics.WARMUP_STEPS, steps)

    log = await asyncio.to_thread(
        StepsLog, context.data_dir / STEPS_FILE, bytes_max=config.steps_file_bytes_max
    )
    folder = await asyncio.to_thread(
        CheckpointFolder, context.data_dir / CHECKPOINTS, keep=config.keep_checkpoints
    )
    trainer: Trainer = leading or local
    if config.updates_per_version > 1:
        trainer = SeveralUpdates(trainer, count=config.updates_per_version)
    parts = assemble(
        context,
        config,
        trainer=trainer,
        folder=folder,
        log=log,
        make_first_policy=make_first_policy,
        speed=find_update_speed(settings, config, device=device, ranks=num_ranks),
    )
    if device.type == "cuda":
        parts = await with_gpu_statistics(parts, context)
    return parts if leading is None else _with_ranks(parts, leading, context)


def _report_warmup(context: ServiceContext, progress: WarmupProgress) -> None:
    """Log an evaluation, and show it in the live view.

    Raises:
        UnavailableError: the learner is draining.
    """
    if context.drain.requested:
        raise UnavailableError("The warm-up was stopped", why="the learner is draining")
    context.stats.set(statistics.WARMUP_STEPS, progress.steps)
    if progress.heldout_loss is None:
        context.stats.set(statistics.WARMUP_SOLVED_SHARE, progress.solved)
        context.log.info("warming_up", steps=progress.steps, loss=progress.loss, solved=progress.solved)
    else:
        context.stats.set(statistics.WARMUP_HELDOUT_LOSS, progress.heldout_loss)
        context.log.info(
            "warming_up", steps=progress.steps, loss=progress.loss, heldout_loss=progress.heldout_loss
        )


def _notice_ranks(context: ServiceContext, config: LearnerConfig, *, num_ranks: int) -> None:
    """Report the number of ranks; warn when it differs from the configured one or some would idle."""
    settings = context.settings
    context.stats.set(statistics.REPLICAS, num_ranks)
    if config.ranks > num_ranks:
        context.log.warning(
            "ranks_missing",
            ranks=num_ranks,
            wanted=config.ranks,
            fix="start them with torchrun, or without WORLD_SIZE",
        )
    num_groups = settings.batch_size // settings.workload.num_samples
    num_groups = max(1, num_groups // config.updates_per_version // config.language_model.minibatches)
    if settings.workload.kind != "segments" and num_groups < num_ranks:
        context.log.warning(
            "ranks_idle",
            why=f"a minibatch has {num_groups} whole groups for {num_ranks} ranks: some wait for the others",
            fix="raise batch_size, or lower the ranks, learner.language_model.minibatches or updates_per_version",
        )


def assemble(
    context: ServiceContext,
    config: LearnerConfig,
    *,
    trainer: Trainer,
    folder: CheckpointFolder,
    log: StepsLog,
    make_first_policy: Callable[[], WarmupRecord | None],
    speed: UpdateSpeed,
) -> ServiceParts:
    """The parts of a learner around a trainer; the parts close the logs."""
    gaps_log = TokenGapsLog(context.data_dir / TOKEN_GAPS_FILE)
    learner = Learner(
        context,
        config,
        trainer=trainer,
        make_supply=partial(open_supply, context.settings, config, context.live.limits),
        folder=folder,
        reporter=StepReporter(context, log, gaps_log),
        make_first_policy=make_first_policy,
        speed=speed,
    )

    run_folder = Path(context.settings.data_dir)
    snapshots = SnapshotServicer(
        partial(learner_moment, checkpoints=context.data_dir / CHECKPOINTS),
        folder=run_folder,
        staging_in=context.data_dir,
    )
    records = RecordsServicer(add_lines, folder=run_folder, staging_in=context.data_dir)

    async def close() -> None:
        log.close()
        gaps_log.close()

    return ServiceParts(
        loops={"train": learner.run, "settings": SettingsFollower(context).follow},
        servicers=[
            LearnerServicer(learner, checkpoints=context.data_dir / CHECKPOINTS).registration(),
            snapshots.registration(),
            records.registration(),
        ],
        close=close,
    )


def open_supply(
    settings: Settings,
    config: LearnerConfig,
    budget: Callable[[], StalenessLimits],
    store: TrajectoryStoreClient,
) -> TrajectorySupply | ReplaySupply:
    """Where the batches of the run's algorithm come from; ``budget``: in force at the moment.

    Raises:
        ConfigError: no algorithm trains the policy.
    """
    _, algorithm = find_algorithm(config.algorithm, policy_kind=settings.policy.family)
    if algorithm.replay == "none":
        return TrajectorySupply(store, batch_size=settings.batch_size, budget=budget)
    return ReplaySupply(
        store,
        batch_size=settings.batch_size,
        budget=budget,
        units_per_trajectory=settings.workload.unroll_length * settings.workload.num_envs,
    )


def _with_ranks(parts: ServiceParts, leading: LeadingTrainer, context: ServiceContext) -> ServiceParts:
    """The parts of rank 0, which ends when another rank does and stops the others when it ends."""

    async def close() -> None:
        await asyncio.to_thread(leading.stop, completed=context.drain.completed)
        if parts.close is not None:
            await parts.close()

    loops = {**parts.loops, "ranks": lambda: leading.watch(context.drain)}
    return dataclasses.replace(parts, loops=loops, close=close)


def join_ranks(
    member: Membership,
    config: LearnerConfig,
    settings: Settings,
    description: EnvironmentDescription | None,
) -> tuple[SharedTrainer, RankGroup]:
    """This rank's trainer and group, once all ranks joined and their settings agree.

    Raises:
        RankLostError: not all joined within ``rank_timeout_s``.
        RankMismatchError: a rank has another run file, model, or version of torch or of this program.
        ConfigError: there is no device for this rank.
    """
    torch.set_num_threads(config.threads)
    policy = settings.policy
    log = structlog.get_logger(f"learner-rank-{member.rank}")
    device = open_device(config, log, local_rank=member.local_rank).torch_device()
    group = RankGroup(member, device=device, timeout_s=config.rank_timeout_s)
    check_same_settings(
        group,
        msgspec.json.encode((settings.run, settings.seed, policy, settings.workload)),
        # Not its measured rate, which differs from one answer to the next.
        msgspec.msgpack.encode(description and (description.observation_space, description.action_space)),
        msgspec.json.encode(config),
        str(torch.__version__).encode(),
        # Otherwise adapters would silently be trained on different models.
        base_digest(policy.kind, path=policy.path, lora_rank=policy.lora.rank).encode(),
    )
    return open_trainer(TrainerSetting(settings, config, device, group, description)), group


def join_as_follower(
    member: Membership, config: LearnerConfig, settings: Settings
) -> tuple[SharedTrainer, RankGroup]:
    """``join_ranks`` of a rank that has no context of a service, in a thread without an event loop.

    Raises:
        TidegateError: as ``join_ranks``; or the environment is not described in time.
    """

    async def ask() -> EnvironmentDescription:
        channels, log = channels_of(settings, "learner"), structlog.get_logger(f"learner-rank-{member.rank}")
        try:
            return await ask_description(channels.get("environment"), Drain(), log)
        finally:
            await channels.close()

    description = asyncio.run(ask()) if settings.workload.kind == "segments" else None
    return join_ranks(member, config, settings, description)


def follow_instead(config: LearnerConfig, settings: Settings) -> Coroutine[Any, Any, int] | None:
    """The coroutine of a rank other than 0; None when this process is the service.

    Raises:
        ConfigError: the environment names no rank of a group.
    """
    member = membership(os.environ)
    if member is None or member.rank == 0:
        return None
    return Follower(
        member,
        partial(join_as_follower, member, config, settings),
        # One rank per pod serves health; on one machine rank 0 has the address.
        listen=settings.listen if member.local_rank == 0 else "",
        accepted=accepted_tokens(settings),
        drain_timeout_s=settings.drain_timeout_s,
    ).run()


SPEC = ServiceSpec(name="learner", config_type=LearnerConfig, build=build, instead=follow_instead, turn=turn)
