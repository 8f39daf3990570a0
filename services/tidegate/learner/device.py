"""The learner's device."""

import os

import structlog

from tidegate.learner.config import LearnerConfig
from tidegate.models.devices import ChosenDevice, choose_device, find_cuda


def find_device(config: LearnerConfig, *, local_rank: int | None = None) -> ChosenDevice:
    """The device of ``learner.device``, and why; with ``local_rank`` each rank has its own.

    Raises:
        ConfigError: a GPU is asked for and torch finds none, or fewer than ranks.
    """
    return choose_device(
        config.device,
        setting="learner.device",
        cuda=find_cuda(),
        environ=os.environ,
        local_rank=local_rank,
    )


def open_device(
    config: LearnerConfig, log: structlog.stdlib.BoundLogger, *, local_rank: int | None = None
) -> ChosenDevice:
    """As ``find_device``, logged with the reason: for a service, whose output is its log.

    Raises:
        ConfigError: as ``find_device``.
    """
    chosen = find_device(config, local_rank=local_rank)
    log.info("device_chosen", device=chosen.device, why=chosen.why)
    return chosen
