"""Q-networks: the values of all actions by a dueling head over the networks that policies have.

Q(s, a) = V(s) + A(s, a) − mean over actions of A(s, ·): a network of a policy gives both parts, its outputs as
advantages and its value as V. What every action has in common is then learnt from all of them.

Source: Wang 2016, eq. 9.

Shapes: B rows, A actions.
"""

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import numpy as np

from tidegate.core.records import Array
from tidegate.core.spaces import EnvironmentDescription, Leaf
from tidegate.models.array_functions import ArrayModule
from tidegate.models.epsilon_greedy import EpsilonGreedy
from tidegate.models.policy_port import PairRunner, PolicyRunner, SegmentPolicy

TensorT = TypeVar("TensorT")


class DuelingBody(SegmentPolicy, Protocol):
    """A policy whose outputs and values an actor may have together."""

    def pair_runner(self, params: Mapping[str, Array], *, threads: int = 1) -> PairRunner:
        """As ``runner``, of outputs and values."""
        ...


def dueling(advantages: Any, values: Any, xp: ArrayModule) -> Any:
    """Q (..., A) of advantages (..., A) and values (...)."""
    return advantages - xp.mean(advantages, -1, keepdims=True) + values.reshape(*values.shape, 1)


class QNetwork:
    """``models.policy_port.SegmentPolicy`` whose outputs are the values of actions, for Discrete actions.

    ``body``: gives advantages as outputs and V as value; its parameters are those of the Q-network.
    """

    memory_size = 0

    def __init__(self, body: DuelingBody, actions: EpsilonGreedy) -> None:
        self._body = body
        self.actions = actions

    @property
    def description(self) -> EnvironmentDescription:
        """See ``SegmentPolicy``."""
        return self._body.description

    @property
    def observations(self) -> dict[str, Leaf]:
        """See ``SegmentPolicy``."""
        return self._body.observations

    @property
    def has_statistics(self) -> bool:
        """See ``SegmentPolicy``."""
        return self._body.has_statistics

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """See ``SegmentPolicy``."""
        return self._body.parameter_shapes()

    def init_params(self, rng: np.random.Generator) -> dict[str, Array]:
        """See ``SegmentPolicy``."""
        return self._body.init_params(rng)

    def check_params(self, params: Mapping[str, Array]) -> None:
        """See ``SegmentPolicy``."""
        self._body.check_params(params)

    def trainable(self, params: Mapping[str, TensorT]) -> dict[str, TensorT]:
        """See ``SegmentPolicy``."""
        return self._body.trainable(params)

    def action_outputs(
        self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule
    ) -> Any:
        """The values (..., A) of all actions."""
        return dueling(*self._body.outputs_and_values(params, observations, xp), xp)

    def values(self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule) -> Any:
        """The value (...) of the best action."""
        return self.outputs_and_values(params, observations, xp)[1]

    def outputs_and_values(
        self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule
    ) -> tuple[Any, Any]:
        """See ``SegmentPolicy``."""
        q = self.action_outputs(params, observations, xp)
        return q, xp.amax(q, -1)

    def runner(self, params: Mapping[str, Array], *, threads: int = 1) -> PolicyRunner:
        """See ``SegmentPolicy``."""
        run = self._body.pair_runner(params, threads=threads)
        return lambda observations: dueling(*run(observations), np)

    def updated_statistics(
        self, params: Mapping[str, Array], observations: Mapping[str, Array]
    ) -> dict[str, Array]:
        """See ``SegmentPolicy``."""
        return self._body.updated_statistics(params, observations)
