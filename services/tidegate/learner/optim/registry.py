"""The trainer of each algorithm: one literal table, beside ``learner.algorithm``, which loads no torch.

A trainer's objectives are literal tables of their own, by name and one function each: ``algorithms.objectives`` for
networks of segments, ``algorithms.grpo`` for language models. A new objective is a line there; a new algorithm is a
line here and in ``learner.algorithm``, and a file beside this one.
"""

from collections.abc import Callable

import msgspec
import torch

from tidegate.core.spaces import EnvironmentDescription
from tidegate.learner.algorithm import AlgorithmName, find_algorithm
from tidegate.learner.config import LearnerConfig
from tidegate.learner.optim.actor_critic import ActorCriticTrainer
from tidegate.learner.optim.applied_gradients import AppliedGradientsTrainer
from tidegate.learner.optim.language_model import LanguageModelTrainer
from tidegate.learner.optim.own_objective import open_objective
from tidegate.learner.optim.q_learner import QLearner
from tidegate.learner.optim.r2d2 import R2d2Learner
from tidegate.learner.optim.sac import SacTrainer
from tidegate.learner.ranks.port import ALONE, Ranks, SharedTrainer
from tidegate.models.language_models import open_language_model
from tidegate.models.policies import build_policy
from tidegate.models.policy_port import FeaturePolicy, MemoryPolicy, SegmentPolicy
from tidegate.runtime.config import Settings
from tidegate.runtime.own_policy import load_policy_code


class TrainerSetting(msgspec.Struct, frozen=True):
    """What a trainer is made from.

    ``description``: of the environment of segments; None for text. ``ranks`` make each update together.
    """

    settings: Settings
    config: LearnerConfig
    device: torch.device
    ranks: Ranks = ALONE
    description: EnvironmentDescription | None = None

    def segment_policy(self) -> SegmentPolicy:
        """The policy of segments.

        Raises:
            ConfigError: it does not fit the environment.
        """
        assert self.description is not None, "segments' environment is described before the learner is built"
        return build_policy(
            self.description,
            self.settings.policy,
            code=load_policy_code(self.settings.policy, folder=self.settings.files_dir),
        )


def actor_critic(setting: TrainerSetting) -> ActorCriticTrainer:
    """The trainer of segments.

    Raises:
        ConfigError: the policy does not fit the environment.
    """
    return ActorCriticTrainer(
        setting.segment_policy(),
        setting.config.actor_critic,
        seed=setting.settings.seed,
        device=setting.device,
        reward=setting.settings.workload.reward,
        precision=setting.config.precision,
        ranks=setting.ranks,
        updates_per_version=setting.config.updates_per_version,
    )


def applied_gradients(setting: TrainerSetting) -> AppliedGradientsTrainer:
    """The trainer of gradients that actors computed; each rank makes the same update.

    Raises:
        ConfigError: the policy does not fit the environment.
    """
    return AppliedGradientsTrainer(
        setting.segment_policy(),
        setting.config.actor_critic,
        seed=setting.settings.seed,
        device=setting.device,
    )


def language_model(setting: TrainerSetting) -> LanguageModelTrainer:
    """The trainer of all language models: fresh parameters and adapters come from the run's seed.

    Raises:
        ConfigError: the sizes are invalid, the folder holds no model, or an own objective cannot be computed with.
    """
    settings, config = setting.settings, setting.config
    model = open_language_model(
        settings.policy,
        trains=True,
        device=setting.device,
        generator=torch.Generator().manual_seed(settings.seed),
    )
    return LanguageModelTrainer(
        model,
        config.language_model,
        seed=settings.seed,
        device=setting.device,
        ranks=setting.ranks,
        pass_tokens=config.pass_tokens,
        updates_per_version=config.updates_per_version,
        objective=open_objective(config.language_model, folder=settings.files_dir),
        num_token_gaps=config.token_gaps,
    )


def q_learning(setting: TrainerSetting) -> QLearner:
    """The trainer of Q-networks from replayed transitions.

    Raises:
        ConfigError: the policy does not fit the environment.
    """
    return QLearner(
        setting.segment_policy(),
        setting.config.q_learning,
        seed=setting.settings.seed,
        device=setting.device,
        reward=setting.settings.workload.reward,
        precision=setting.config.precision,
        ranks=setting.ranks,
    )


def r2d2(setting: TrainerSetting) -> R2d2Learner:
    """The trainer of Q-networks with memory from replayed sequences.

    Raises:
        ConfigError: the policy does not fit the environment.
    """
    policy = setting.segment_policy()
    assert isinstance(policy, MemoryPolicy), "the run file's policy.memory is checked before the start"
    return R2d2Learner(
        policy,
        setting.config.q_learning,
        seed=setting.settings.seed,
        device=setting.device,
        reward=setting.settings.workload.reward,
        precision=setting.config.precision,
        ranks=setting.ranks,
    )


def sac(setting: TrainerSetting) -> SacTrainer:
    """The trainer of policies with squashed actions from replayed transitions.

    Raises:
        ConfigError: the policy does not fit the environment.
    """
    policy = setting.segment_policy()
    assert isinstance(policy, FeaturePolicy), "learner.algorithm trains no other kind by sac"
    return SacTrainer(
        policy,
        setting.config.sac,
        hidden=setting.settings.policy.hidden,
        activation=setting.settings.policy.activation,
        seed=setting.settings.seed,
        device=setting.device,
        reward=setting.settings.workload.reward,
        precision=setting.config.precision,
        ranks=setting.ranks,
    )


TRAINERS: dict[AlgorithmName, Callable[[TrainerSetting], SharedTrainer]] = {
    "actor_critic": actor_critic,
    "applied_gradients": applied_gradients,
    "language_model": language_model,
    "q_learning": q_learning,
    "r2d2": r2d2,
    "sac": sac,
}


def open_trainer(setting: TrainerSetting) -> SharedTrainer:
    """The trainer of ``learner.algorithm``, with fresh parameters.

    Raises:
        ConfigError: it cannot train this policy, or the policy does not fit the environment.
    """
    name, _ = find_algorithm(setting.config.algorithm, policy_kind=setting.settings.policy.family)
    return TRAINERS[name](setting)
