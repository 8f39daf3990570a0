"""A policy that acts by saying who it is: each action is the node of the oracle's tree whose policy chose it.

So an actor's segment shows which policy really made each step, whatever version the inference service named.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate.core.errors import RecordError
from tidegate.core.records import Array
from tidegate.core.spaces import OBSERVATIONS, BoxSpace, Leaf
from tidegate.models.policy_port import PolicyRunner
from tidegate.sim.oracle import NODE_TENSOR
from tidegate.sim.paced_engine import Pace
from tidegate.sim.process import Worker

SEEN = BoxSpace(shape=(1,), dtype="float32", low=(0.0,), high=(1.0,))


class NodeActions:
    """``models.distributions.SampledActions``: the outputs themselves, without chance."""

    num_outputs = 1
    action_shape: tuple[int, ...] = ()
    action_dtype = "int32"

    def sample(
        self, outputs_BP: NDArray[np.float32], rng: np.random.Generator
    ) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """The node of each row, and a logprob of 0."""
        del rng
        return outputs_BP[:, 0].astype(np.int32), np.zeros(len(outputs_BP), np.float32)


class PacedPolicy:
    """``models.policy_port.StepPolicy`` whose one parameter is its node, and whose calls take the time of ``pace``."""

    memory_size = 0
    actions = NodeActions()

    def __init__(self, pace: Pace) -> None:
        self._pace = pace

    @property
    def observations(self) -> dict[str, Leaf]:
        """One number."""
        return {OBSERVATIONS: SEEN}

    def check_params(self, params: Mapping[str, Array]) -> None:
        """Check that there is a node.

        Raises:
            RecordError: there is none.
        """
        if NODE_TENSOR not in params:
            raise RecordError(f"A policy of the simulation has no tensor {NODE_TENSOR!r}")

    def runner(self, params: Mapping[str, Array], *, threads: int = 1) -> PolicyRunner:
        """One version; called in a worker."""
        del threads
        node = params[NODE_TENSOR]

        def run(observations: Mapping[str, Array]) -> NDArray[np.float32]:
            Worker.current().pause(self._pace.call_s)
            return np.tile(node, (len(observations[OBSERVATIONS]), 1)).astype(np.float32)

        return run
