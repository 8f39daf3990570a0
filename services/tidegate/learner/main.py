"""How the lifecycle builds the learner."""

import asyncio
from collections.abc import Callable

import torch

from tidegate.core.errors import UnavailableError
from tidegate.learner.checkpoint import CheckpointFolder
from tidegate.learner.config import LearnerConfig
from tidegate.learner.first_policy import warm_up
from tidegate.learner.loops import Learner
from tidegate.learner.optim.language_model import LanguageModelTrainer
from tidegate.learner.optim.port import Trainer
from tidegate.learner.optim.registry import TRAINERS, choose_device
from tidegate.learner.reporting import Reporter
from tidegate.learner.servicer import LearnerServicer
from tidegate.learner.steps_log import StepsLog
from tidegate.learner.warmup import WarmupProgress
from tidegate.runtime.service import ServiceContext, ServiceParts, ServiceSpec


async def build(context: ServiceContext, config: LearnerConfig) -> ServiceParts:
    """Fresh parameters from the run's seed; the loop restores a checkpoint over them if there is one."""
    settings = context.settings
    torch.set_num_threads(config.threads)
    device = choose_device(config.device)
    trainer = TRAINERS[settings.policy.kind](settings, config, device)
    context.log.info("trainer_ready", policy=settings.policy.kind, device=str(device))

    def make_first_policy() -> None:
        if isinstance(trainer, LanguageModelTrainer):
            warm_up(trainer, settings, config, report=report_warmup, log=context.log)

    def report_warmup(progress: WarmupProgress) -> None:
        if context.drain.requested:
            raise UnavailableError("The warm-up was stopped")
        context.log.info("warming_up", steps=progress.steps, loss=progress.loss, solved=progress.solved)
        context.stats.set("warmup_steps", progress.steps)
        context.stats.set("warmup_solved_share", progress.solved)

    log = await asyncio.to_thread(
        StepsLog, context.data_dir / "steps.jsonl", bytes_max=config.steps_file_bytes_max
    )
    folder = await asyncio.to_thread(
        CheckpointFolder, context.data_dir / "checkpoints", keep=config.keep_checkpoints
    )
    return assemble(
        context, config, trainer=trainer, folder=folder, log=log, make_first_policy=make_first_policy
    )


def assemble(
    context: ServiceContext,
    config: LearnerConfig,
    *,
    trainer: Trainer,
    folder: CheckpointFolder,
    log: StepsLog,
    make_first_policy: Callable[[], None],
) -> ServiceParts:
    """The parts of a learner around a trainer; the parts close ``log``."""
    learner = Learner(
        context,
        config,
        trainer=trainer,
        folder=folder,
        reporter=Reporter(context, log),
        make_first_policy=make_first_policy,
    )

    async def close() -> None:
        log.close()

    return ServiceParts(
        loops={"train": learner.run}, servicers=[LearnerServicer(learner).registration()], close=close
    )


SPEC = ServiceSpec(name="learner", config_type=LearnerConfig, build=build)
