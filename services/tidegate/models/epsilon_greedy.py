"""Actions of a Q-network: the best one, or with probability ε any of them.

Shapes: B rows, A actions.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate.core.errors import ConfigError
from tidegate.core.spaces import DiscreteSpace, Space
from tidegate.models.array_functions import ArrayModule, constant


class EpsilonGreedy:
    """``models.distributions.ActionDistribution`` whose outputs are the values of ``num_values`` actions.

    ``start``: the environment's first action. ``epsilons``: ε, one number or one for each row; 0 is greedy.
    """

    num_shared_outputs = 0
    action_shape: tuple[int, ...] = ()
    action_dtype = "int32"

    def __init__(
        self, num_values: int, *, start: int = 0, epsilons: float | NDArray[np.float32] = 0.0
    ) -> None:
        self.num_outputs = num_values
        self._start = start
        self._epsilons_B = np.asarray(epsilons, np.float32)

    def with_epsilons(self, epsilons_B: NDArray[np.float32]) -> "EpsilonGreedy":
        """The same actions with other ε."""
        return EpsilonGreedy(self.num_outputs, start=self._start, epsilons=epsilons_B)

    def logprobs(self, outputs: Any, actions: Any, xp: ArrayModule) -> Any:
        """See ``ActionDistribution``; minus infinity where ε is 0 and the action is not the best."""
        return xp.log(self._probabilities(actions == outputs.argmax(-1), outputs, xp))

    def entropy(self, outputs: Any, xp: ArrayModule) -> Any:
        """See ``ActionDistribution``."""
        is_best = outputs.argmax(-1) >= 0
        best, other = self._probabilities(is_best, outputs, xp), self._probabilities(~is_best, outputs, xp)
        others = (self.num_outputs - 1) * other
        # x log x is 0 at 0.
        return -(best * xp.log(best) + others * xp.log(xp.where(other > 0.0, other, 1.0)))

    def logprobs_and_entropy(self, outputs: Any, actions: Any, xp: ArrayModule) -> tuple[Any, Any]:
        """See ``ActionDistribution``."""
        return self.logprobs(outputs, actions, xp), self.entropy(outputs, xp)

    def sample(
        self, outputs_BP: NDArray[np.float32], rng: np.random.Generator
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """See ``ActionDistribution``; two random numbers a row, whatever ε is."""
        num_rows = len(outputs_BP)
        best_B = self.mode(outputs_BP)
        explores_B = rng.random(num_rows, dtype=np.float32) < self._epsilons_B
        any_B = rng.integers(self.num_outputs, size=num_rows, dtype=np.int32)
        actions_B = np.where(explores_B, any_B, best_B)
        return actions_B, np.log(self._probabilities(actions_B == best_B, outputs_BP, np))

    def mode(self, outputs_BP: NDArray[np.float32]) -> NDArray[np.int32]:
        """The action of the largest value of each row, the first one of equal ones."""
        return outputs_BP.argmax(axis=-1).astype(np.int32)

    def environment_actions(self, actions: NDArray[np.int32]) -> NDArray[np.int32]:
        """See ``ActionDistribution``."""
        return actions + np.int32(self._start) if self._start else actions

    def _probabilities(self, is_best: Any, like: Any, xp: ArrayModule) -> Any:
        epsilons = constant(self._epsilons_B, like, xp)
        return xp.where(is_best, 1.0 - epsilons, 0.0) + epsilons / self.num_outputs


def epsilon_greedy(space: Space, *, squash: bool = False) -> EpsilonGreedy:
    """The distribution for an environment's action space.

    Raises:
        ConfigError: its actions are not Discrete, or are to be bounded by tanh (``squash``).
    """
    if not isinstance(space, DiscreteSpace):
        raise ConfigError(
            "A Q-network needs Discrete actions",
            why=f"it gives one value for each action, and the environment's are {space}",
            fix="set policy.kind to mlp or cnn, or wrap the environment so that its actions are Discrete",
        )
    if squash:
        raise ConfigError(
            "policy.squash_actions is set for a Q-network",
            why="only continuous actions are bounded by tanh",
            fix="remove policy.squash_actions",
        )
    return EpsilonGreedy(space.num_values, start=space.start)
