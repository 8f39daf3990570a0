"""The trainer of each algorithm: one literal table, beside ``learner.algorithm``, which loads no torch.

A trainer's objectives are literal tables of their own, by name and one function each: ``algorithms.objectives`` for
networks of segments, ``algorithms.grpo`` for language models. A new objective is a line there; a new algorithm is a
line here and in ``learner.algorithm``, and a file beside this one.
"""

from typing import Protocol

import torch

from tidegate.core.errors import ConfigError
from tidegate.core.spaces import EnvironmentDescription
from tidegate.learner.algorithm import AlgorithmName, find_algorithm
from tidegate.learner.config import LearnerConfig
from tidegate.learner.optim.actor_critic import ActorCriticTrainer
from tidegate.learner.optim.applied_gradients import AppliedGradientsTrainer
from tidegate.learner.optim.language_model import LanguageModelTrainer
from tidegate.learner.ranks.port import ALONE, Ranks, SharedTrainer
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
    """The trainer of segments.

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


def applied_gradients(
    settings: Settings,
    config: LearnerConfig,
    device: torch.device,
    ranks: Ranks = ALONE,
    *,
    description: EnvironmentDescription | None = None,
) -> AppliedGradientsTrainer:
    """The trainer of gradients that actors computed; each rank makes the same update.

    Raises:
        ConfigError: the policy does not fit the environment.
    """
    del ranks
    assert description is not None, "the environment of segments is described before the learner is built"
    policy = build_policy(description, settings.policy)
    return AppliedGradientsTrainer(policy, config.actor_critic, seed=settings.seed, device=device)


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
    ) -> SharedTrainer:
        """A trainer with fresh parameters."""
        ...


TRAINERS: dict[AlgorithmName, MakeTrainer] = {
    "actor_critic": actor_critic,
    "applied_gradients": applied_gradients,
    "language_model": language_model,
}


def open_trainer(
    settings: Settings,
    config: LearnerConfig,
    device: torch.device,
    ranks: Ranks = ALONE,
    *,
    description: EnvironmentDescription | None = None,
) -> SharedTrainer:
    """The trainer of ``learner.algorithm``, with fresh parameters.

    Raises:
        ConfigError: it cannot train this policy, or the policy does not fit the environment.
    """
    name, _ = find_algorithm(config.algorithm, policy_kind=settings.policy.kind)
    return TRAINERS[name](settings, config, device, ranks, description=description)


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
