"""A policy of segments as one ONNX graph: observations as the environment gives them, greedy actions as it takes them.

Inputs are named as the recorded tensors are: ``observations``, or ``observations.<part>`` for each part of a Dict or
Tuple; outputs are ``action`` and ``outputs``, those of the action distribution. All have the batch in front.

Only a process that exports a policy imports this module.
"""

from collections.abc import Mapping

import numpy as np

from tidegate.core.records import Array
from tidegate.core.spaces import BoxSpace, Leaf, MultiBinarySpace, recorded_shape
from tidegate.models.inputs import recorded_leaf
from tidegate.models.onnx_writer import GraphWriter
from tidegate.models.policy_port import SegmentPolicy
from tidegate.models.traced_arrays import BATCH, TracedArray, traced_parameters

ACTION, OUTPUTS = "action", "outputs"


def policy_graph(policy: SegmentPolicy, params: Mapping[str, Array], metadata: Mapping[str, str]) -> bytes:
    """The serialised model, with parameters and ``metadata`` inside.

    Raises:
        ConfigError: the policy uses a function that has no form in a graph.
    """
    writer = GraphWriter()
    observations: dict[str, TracedArray] = {}
    for name, leaf in policy.observations.items():
        dtype, shape = _type_in_environment(leaf), recorded_shape(leaf)
        value = writer.input(name, dtype, shape)
        observations[name] = recorded_leaf(
            leaf, TracedArray(writer, value, dtype=dtype, shape=(BATCH, *shape))
        )
    outputs = policy.action_outputs(traced_parameters(writer, params), observations, np)
    # The distribution's methods for actors are typed for numpy alone.
    actions: TracedArray = policy.actions.environment_actions(policy.actions.mode(outputs))  # pyright: ignore[reportAssignmentType]
    return writer.model(
        {
            name: (array.value, array.dtype, array.shape[1:])
            for name, array in ((ACTION, actions), (OUTPUTS, outputs))
        },
        metadata,
    )


def _type_in_environment(leaf: Leaf) -> str:
    """The type of a Gymnasium observation."""
    if isinstance(leaf, BoxSpace):
        return leaf.dtype
    return "int8" if isinstance(leaf, MultiBinarySpace) else "int64"
