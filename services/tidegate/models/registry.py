"""The environments whose description is known without asking the environment service: one literal table."""

import math

from tidegate.core.errors import ConfigError
from tidegate.core.spaces import BoxSpace, DiscreteSpace, EnvironmentDescription

DESCRIPTIONS: dict[str, EnvironmentDescription] = {
    "CartPole-v1": EnvironmentDescription(
        env_id="CartPole-v1",
        observation_space=BoxSpace(
            shape=(4,),
            dtype="float32",
            low=(-4.8, -math.inf, -0.41887903, -math.inf),
            high=(4.8, math.inf, 0.41887903, math.inf),
        ),
        action_space=DiscreteSpace(2),
        max_episode_steps=500,
        is_vectorised=True,
    ),
}


def describe(env_id: str) -> EnvironmentDescription:
    """The description of an environment.

    Raises:
        ConfigError: the environment is not in the table.
    """
    if env_id not in DESCRIPTIONS:
        raise ConfigError(
            f"There is no description of the environment {env_id!r}",
            why=f"models/registry.py has {', '.join(sorted(DESCRIPTIONS))}",
            fix="use one of them, or add a line with its spaces",
        )
    return DESCRIPTIONS[env_id]
