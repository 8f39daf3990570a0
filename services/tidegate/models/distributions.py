"""Distributions of actions by the environment's space: what the outputs of a policy mean.

Written once for numpy and torch: ``xp`` is the module that the arrays belong to. Shapes: P numbers that a policy gives
for one action, B rows; "..." is any number of leading dimensions.
"""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tidegate.core.errors import ConfigError
from tidegate.core.spaces import BoxSpace, DiscreteSpace, MultiBinarySpace, MultiDiscreteSpace, Space
from tidegate.models.array_functions import ArrayModule
from tidegate.models.categorical import Categorical, MultiCategorical
from tidegate.models.gaussian import DiagonalGaussian, SquashedGaussian


class SampledActions(Protocol):
    """Actions drawn from a policy's outputs for one observation.

    ``num_outputs``: P. ``action_shape`` and ``action_dtype``: of one recorded action: () for Discrete, (K,) for
    MultiDiscrete and MultiBinary, a Box's own shape; "int32" counted from 0, or "float32" as sampled, before it is
    clipped to the bounds.
    """

    @property
    def num_outputs(self) -> int:
        """P."""
        ...

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Of one recorded action."""
        ...

    @property
    def action_dtype(self) -> str:
        """Of recorded actions."""
        ...

    def sample(
        self, outputs_BP: NDArray[np.float32], rng: np.random.Generator
    ) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """One action a row (B, *action_shape), as recorded, and its logprob (B,)."""
        ...


class ActionDistribution(SampledActions, Protocol):
    """A distribution over actions, which the learner and the environment need too.

    ``num_shared_outputs``: how many of the outputs, the last ones, are parameters of the policy that do not depend on
    the observation (a Gaussian's deviations).
    """

    @property
    def num_shared_outputs(self) -> int:
        """Outputs that are the same for every observation."""
        ...

    def logprobs(self, outputs: Any, actions: Any, xp: ArrayModule) -> Any:
        """Logprobs or log densities (...) of recorded actions (..., *action_shape); int64 under torch if discrete."""
        ...

    def entropy(self, outputs: Any, xp: ArrayModule) -> Any:
        """Entropy (...) in nats; of continuous actions the differential one, which may be negative."""
        ...

    def logprobs_and_entropy(self, outputs: Any, actions: Any, xp: ArrayModule) -> tuple[Any, Any]:
        """Both, with what they share computed once."""
        ...

    def mode(self, outputs_BP: NDArray[np.float32]) -> NDArray[Any]:
        """The greedy action of each row (B, *action_shape), as recorded."""
        ...

    def environment_actions(self, actions: NDArray[Any]) -> NDArray[Any]:
        """What ``step`` of a vector environment takes for recorded actions (B, *action_shape)."""
        ...


def action_distribution(space: Space, *, squash: bool = False) -> ActionDistribution:
    """The distribution for an environment's action space.

    ``squash``: bound continuous actions by tanh instead of clipping them.

    Raises:
        ConfigError: there is none for this space, or ``squash`` does not fit it.
    """
    if squash and not isinstance(space, BoxSpace):
        raise ConfigError(
            "policy.squash_actions is set for an environment whose actions are not continuous",
            why=f"they are {space}",
            fix="remove policy.squash_actions",
        )
    match space:
        case DiscreteSpace():
            return Categorical(space.num_values, start=space.start)
        case MultiDiscreteSpace():
            return MultiCategorical(space.nums_values, shape=space.shape, starts=space.starts)
        case MultiBinarySpace():
            num_flags = int(np.prod(space.shape))
            return MultiCategorical((2,) * num_flags, shape=space.shape, dtype="int8")
        case BoxSpace():
            return SquashedGaussian(space) if squash else DiagonalGaussian(space)
        case _:
            raise ConfigError(
                "The environment's actions have several parts, for which there is no policy",
                why=f"they are {space}",
                fix="wrap the environment so that its actions are Discrete, MultiDiscrete, MultiBinary or a Box",
            )
