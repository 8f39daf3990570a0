"""The trainer of each kind of policy: one literal table.

A trainer's objectives are literal tables of their own, by name and one function each: ``algorithms.objectives`` for
``mlp``, ``algorithms.grpo`` for language models. A new objective is a line there; a new kind of policy is
a line here and a file beside this one.
"""

from typing import Protocol

import torch

from tidegate.core.errors import ConfigError
from tidegate.core.spaces import EnvironmentDescription
from tidegate.learner.config import LearnerConfig
from tidegate.learner.optim.actor_critic import ActorCriticTrainer
from tidegate.learner.optim.language_model import LanguageModelTrainer
from tidegate.learner.ranks.port import ALONE, Ranks
from tidegate.models.language_models import open_language_model
from tidegate.models.policies import build_policy
from tidegate.runtime.config import Settings


def actor_critic(
    settings: Settings,
    config: LearnerConfig,
    device: torch.device,
    ranks: Ranks = ALONE,
    *,
    description: EnvironmentDescription | None = None,
) -> ActorCriticTrainer:
    """The trainer of policies of segments.

    Raises:
        ConfigError: the policy does not fit the environment.
    """
    assert description is not None, "the environment of segments is described before the learner is built"
    policy = build_policy(description, settings.policy)
    return ActorCriticTrainer(
        policy,
        config.actor_critic,
        seed=settings.seed,
        device=device,
        reward=settings.workload.reward,
        precision=config.precision,
        ranks=ranks,
    )


def language_model(
    settings: Settings,
    config: LearnerConfig,
    device: torch.device,
    ranks: Ranks = ALONE,
    *,
    description: EnvironmentDescription | None = None,
) -> LanguageModelTrainer:
    """The trainer of all language models: fresh parameters and adapters come from the run's seed.

    Raises:
        ConfigError: the sizes are invalid, or the folder holds no model.
    """
    del description  # text has no environment that is stepped
    model = open_language_model(
        settings.policy,
        trains=True,
        device=device,
        generator=torch.Generator().manual_seed(settings.seed),
    )
    return LanguageModelTrainer(
        model,
        config.language_model,
        seed=settings.seed,
        device=device,
        ranks=ranks,
        pass_tokens=config.pass_tokens,
    )


class MakeTrainer(Protocol):
    """Makes a trainer. ``description``: of the environment of segments, None for text."""

    def __call__(
        self,
        settings: Settings,
        config: LearnerConfig,
        device: torch.device,
        ranks: Ranks = ALONE,
        *,
        description: EnvironmentDescription | None = None,
    ) -> ActorCriticTrainer | LanguageModelTrainer:
        """A trainer with fresh parameters."""
        ...


TRAINERS: dict[str, MakeTrainer] = {
    "mlp": actor_critic,
    "cnn": actor_critic,
    "char_lm": language_model,
    "transformers": language_model,
}


def choose_device(wanted: str, *, local_rank: int | None = None) -> torch.device:
    """The device: ``auto`` uses CUDA where present; with ``local_rank`` each rank of a machine has its own.

    Raises:
        ConfigError: ``cuda`` is configured and there is no device, or fewer than ranks.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "learner.device is cuda, and torch finds no CUDA device",
            fix="set learner.device to auto or cpu, or run the learner on a machine with one",
        )
    if wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    if local_rank is None:
        return torch.device("cuda")
    if local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"Rank {local_rank} of this machine finds {torch.cuda.device_count()} CUDA devices",
            why="each rank computes on a device of its own",
            fix="start one rank per device (--nproc-per-node)",
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)
