"""The network of each environment: one literal table.

Actor and learner build the same network from it without opening an environment. A new environment for
``mlp_actor_critic`` is a line here; ``policy.hidden`` of the run file sets the network's size.
"""

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.models.mlp_actor_critic import MlpSpec

MLP_SPECS: dict[str, MlpSpec] = {
    # The pole's angle stays within ±0.2 while an episode lasts; unscaled, training at a lag of 4 versions took 106,000
    # steps to the target instead of 74,000 (means of 5 seeds).
    "CartPole-v1": MlpSpec(observation_size=4, num_actions=2, input_scale=(1.0, 1.0, 5.0, 1.0)),
}


def mlp_spec(env: str, *, hidden: tuple[int, ...]) -> MlpSpec:
    """The network for an environment, with ``hidden`` units a layer.

    Raises:
        ConfigError: the environment is not in the table.
    """
    if env not in MLP_SPECS:
        raise ConfigError(
            f"There is no mlp_actor_critic policy for the environment {env!r}",
            why=f"models/registry.py has {', '.join(sorted(MLP_SPECS))}",
            fix="use one of them, or add a line with the size of its observations and its actions",
        )
    return msgspec.structs.replace(MLP_SPECS[env], hidden=hidden)
