"""The learner's device."""

import os

import structlog

from tidegate.learner.config import LearnerConfig
from tidegate.models.devices import ChosenDevice, choose_device, find_cuda


def open_device(
    config: LearnerConfig, log: structlog.stdlib.BoundLogger, *, local_rank: int | None = None
) -> ChosenDevice:
    """The device of ``learner.device``, logged with the reason; with ``local_rank`` each rank has its own.

    Raises:
        ConfigError: a GPU is asked for and torch finds none, or fewer than ranks.
    """
    chosen = choose_device(
        config.device,
        setting="learner.device",
        cuda=find_cuda(),
        environ=os.environ,
        local_rank=local_rank,
    )
    log.info("device_chosen", device=chosen.device, why=chosen.why)
    return chosen
