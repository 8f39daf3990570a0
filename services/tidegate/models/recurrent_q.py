"""A Q-network with memory: a dueling head over a policy with memory.

Shapes: B environments, A actions, M numbers of state, R rows of packed sequences, Q sequences.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from tidegate.core.records import Array
from tidegate.core.spaces import EnvironmentDescription, Leaf
from tidegate.models.array_functions import ArrayModule
from tidegate.models.epsilon_greedy import EpsilonGreedy
from tidegate.models.policy_port import PolicyRunner, VersionRunner
from tidegate.models.q_network import dueling
from tidegate.models.recurrent import RecurrentPolicy

TensorT = TypeVar("TensorT")


class RecurrentQNetwork:
    """``models.policy_port.MemoryPolicy`` whose outputs are the values of actions, for Discrete actions.

    ``body``: gives advantages as outputs and V as value; its parameters are those of the Q-network.
    """

    def __init__(self, body: RecurrentPolicy, actions: EpsilonGreedy) -> None:
        self._body = body
        self.actions = actions
        self.memory_size = body.memory_size

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
        """Refuse, as every policy with memory."""
        return self._body.action_outputs(params, observations, xp)

    def values(self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule) -> Any:
        """Refuse, as every policy with memory."""
        return self._body.values(params, observations, xp)

    def outputs_and_values(
        self, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule
    ) -> tuple[Any, Any]:
        """Refuse, as every policy with memory."""
        return self._body.outputs_and_values(params, observations, xp)

    def runner(self, params: Mapping[str, Array], *, threads: int = 1) -> PolicyRunner:
        """Refuse, as every policy with memory."""
        return self._body.runner(params, threads=threads)

    def stepper(self, params: Mapping[str, Array], *, threads: int = 1) -> VersionRunner:
        """See ``MemoryPolicy``; the outputs are the values (B, A) of all actions."""
        body = self._body.pair_stepper(params, threads=threads)

        def step(observations: Mapping[str, Array], memory_BM: Array) -> tuple[Array, Array]:
            advantages_BA, values_B, memory_BM = body(observations, memory_BM)
            return dueling(advantages_BA, values_B, np), memory_BM

        return step

    def unrolled(
        self,
        params: Mapping[str, Any],
        observations: Mapping[str, Any],
        memory_QM: Any,
        batch_sizes: Any,
        xp: ArrayModule,
    ) -> tuple[Any, Any]:
        """See ``MemoryPolicy``: the values (R, A) of all actions, and those (R,) of the best."""
        q_RA = dueling(*self._body.unrolled(params, observations, memory_QM, batch_sizes, xp), xp)
        return q_RA, xp.amax(q_RA, -1)

    def memory_after(
        self,
        params: Mapping[str, Any],
        observations: Mapping[str, Any],
        memory_QM: Any,
        batch_sizes: Any,
        xp: ArrayModule,
    ) -> Any:
        """See ``MemoryPolicy``."""
        return self._body.memory_after(params, observations, memory_QM, batch_sizes, xp)

    def updated_statistics(
        self, params: Mapping[str, Array], observations: Mapping[str, Array]
    ) -> dict[str, Array]:
        """See ``SegmentPolicy``."""
        return self._body.updated_statistics(params, observations)
