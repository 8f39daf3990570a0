"""A version of a run's policy that acts in this program, one observation at a time."""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tidegate.core.errors import ConfigError
from tidegate.core.ids import PolicyVersion
from tidegate.launch.stored_policy import StoredPolicy
from tidegate.models.policy_port import MemoryPolicy
from tidegate.vector_envs.observations import recorded_observations


class Policy:
    """Acts in an environment like the run's. One caller at a time: a policy with memory remembers the last step.

    ``version``: the one that acts.
    """

    def __init__(self, stored: StoredPolicy) -> None:
        """``stored``: the tensors, and the run that they are from.

        Raises:
            ConfigError: the run trains a language model.
        """
        if stored.file.workload.kind != "segments":
            raise ConfigError(
                "Only a policy of segments acts here",
                why=f"run {stored.run} trains a language model",
                fix="write it to a file with `tidegate policy`, and generate with transformers",
            )
        self.version: PolicyVersion = stored.version
        self._policy = stored.policy()
        self._tensors = stored.tensors
        self._run = None if isinstance(self._policy, MemoryPolicy) else self._policy.runner(self._tensors)
        self._memory: NDArray[Any] = np.zeros((1, self._policy.memory_size), np.float32)

    def reset(self) -> None:
        """Forget the episode so far; a policy without memory has nothing to forget."""
        self._memory = np.zeros_like(self._memory)

    def act(self, observation: Any, *, rng: np.random.Generator | None = None) -> Any:
        """The action for one observation, both as the Gymnasium environment gives and takes them.

        ``rng``: draws the action from the distribution; without it the action is the distribution's mode.
        """
        space, actions = self._policy.description.observation_space, self._policy.actions
        observations = recorded_observations(space, _batch_of_one(observation))
        outputs = self._outputs(observations)
        chosen = actions.mode(outputs) if rng is None else actions.sample(outputs, rng)[0]
        return actions.environment_actions(chosen)[0]

    def _outputs(self, observations: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        if self._run is not None:
            return self._run(observations)
        assert isinstance(self._policy, MemoryPolicy), "policies without memory have a runner"
        outputs, self._memory = self._policy.stepper(self._tensors)(observations, self._memory)
        return outputs


def _batch_of_one(observation: Any) -> Any:
    """An observation as a vector environment of one copy gives it."""
    if isinstance(observation, Mapping):
        parts = cast("Mapping[str, Any]", observation)
        return {name: _batch_of_one(part) for name, part in parts.items()}
    if isinstance(observation, tuple):
        return tuple(_batch_of_one(part) for part in cast("tuple[Any, ...]", observation))
    return np.asarray(observation)[None]
