"""Recomputes the updates of a run bit for bit: the same trainer, state, batches and numbers.

Checkpoints hold a trainer's whole state, its random state included, and an update is a function of that state, of its
batch in order, and of its number. On the same kind of processor, with the same versions of torch and of this program
and the same ``learner.threads``, each update gives the same parameters to the last bit.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import structlog
import torch

from tidegate.core.errors import ConfigError
from tidegate.core.records import Array, Trajectory
from tidegate.core.spaces import EnvironmentDescription
from tidegate.learner.algorithm import find_algorithm
from tidegate.learner.begun_policy import begin_from_another
from tidegate.learner.checkpoint import Checkpoint
from tidegate.learner.config import LearnerConfig
from tidegate.learner.device import find_device
from tidegate.learner.first_policy import warm_up
from tidegate.learner.optim.language_model import LanguageModelTrainer
from tidegate.learner.optim.port import Trainer, TrainerState
from tidegate.learner.optim.registry import TrainerSetting, open_trainer
from tidegate.learner.optim.several_updates import SeveralUpdates
from tidegate.learner.recovery import recompute
from tidegate.runtime.config import Settings


def check_recomputable(settings: Settings, config: LearnerConfig) -> None:
    """Check that updates can be recomputed.

    Raises:
        ConfigError: they cannot; the message says why.
    """
    _, algorithm = find_algorithm(config.algorithm, policy_kind=settings.policy.family)
    if algorithm.replay != "none":
        raise ConfigError(
            f"Updates of learner.algorithm {config.algorithm} cannot be recomputed",
            why="the store writes over the segments that units of replay were drawn from",
        )
    if config.ranks > 1:
        raise ConfigError(
            f"Updates of {config.ranks} ranks cannot be recomputed here",
            why="each rank's share is added up in the group's order, which one process does not repeat bit for bit",
        )


class Recomputer:
    """A trainer of a run, set to one of its versions, that recomputes the updates after it."""

    def __init__(
        self, settings: Settings, config: LearnerConfig, *, description: EnvironmentDescription | None
    ) -> None:
        """Fresh parameters, as the run's first learner made them.

        Raises:
            ConfigError: updates of this run cannot be recomputed.
        """
        check_recomputable(settings, config)
        torch.set_num_threads(config.threads)
        device = find_device(config).torch_device()
        local = open_trainer(TrainerSetting(settings, config, device, description=description))
        self._local = local
        self._settings, self._config = settings, config
        self._tiers = settings.response.tiers_in_force()
        self._trainer: Trainer = (
            SeveralUpdates(local, count=config.updates_per_version)
            if config.updates_per_version > 1
            else local
        )

    def begin(self, checkpoint: Checkpoint | None) -> None:
        """Go to a checkpoint, or, without one, to the run's first policy: a language model is warmed up again.

        Raises:
            StaleFolderError: the checkpoint holds another network or another optimiser.
        """
        if checkpoint is not None:
            self._trainer.restore(checkpoint.policy, checkpoint.trainer)
        elif begin_from_another(self._local, Path(self._settings.data_dir) / "data"):
            return
        elif isinstance(self._local, LanguageModelTrainer):
            warm_up(
                self._local,
                self._settings,
                self._config,
                report=lambda _: None,
                log=structlog.get_logger("replay"),
            )

    def update(
        self, trajectories: Sequence[Trajectory], lags: Sequence[int], *, number: int
    ) -> dict[str, float]:
        """Recompute the ``number``-th update of the ancestry; returns its metrics.

        Raises:
            RecordError: a trajectory does not fit the policy.
        """
        return recompute(self._trainer, trajectories, lags, number=number, tiers=self._tiers)

    def policy(self) -> dict[str, Array]:
        """The parameters as they are published."""
        return self._trainer.policy()

    def state(self) -> TrainerState:
        """The trainer's other state, as checkpoints hold it."""
        return self._trainer.state()


def differing(made: dict[str, Array], kept: dict[str, Array]) -> list[str]:
    """The tensors that are not equal to the last bit, by name; those that only one side has among them."""
    return sorted(
        name
        for name in made.keys() | kept.keys()
        if name not in made
        or name not in kept
        or made[name].dtype != kept[name].dtype
        or made[name].shape != kept[name].shape
        or np.ascontiguousarray(made[name]).tobytes() != np.ascontiguousarray(kept[name]).tobytes()
    )
