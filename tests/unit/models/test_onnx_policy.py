"""A policy as an ONNX graph, onnxruntime beside numpy, for every space: raw observations in, actions to take out."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.core.errors import ConfigError
from tidegate.core.records import Array
from tidegate.core.spaces import (
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    EnvironmentDescription,
    Leaf,
    MultiBinarySpace,
    MultiDiscreteSpace,
    Space,
    TupleSpace,
    recorded_shape,
)
from tidegate.models.inputs import recorded_leaf
from tidegate.models.normaliser import MEAN, VARIANCE
from tidegate.models.onnx_policy import policy_graph
from tidegate.models.onnx_writer import GraphWriter
from tidegate.models.policies import build_policy
from tidegate.models.policy_port import SegmentPolicy
from tidegate.models.traced_arrays import BATCH, TracedArray
from tidegate.runtime.config import PolicyConfig


def box(*shape: int, dtype: str = "float32", bound: float = math.inf) -> BoxSpace:
    return BoxSpace(shape, dtype, (-bound,), (bound,))


IMAGES = BoxSpace((40, 44, 3), "uint8", (0.0,), (255.0,))
OBSERVATIONS: dict[str, Space] = {
    "box": box(4),
    "float64 box of two dimensions": box(2, 3, dtype="float64"),
    "int box": box(2, dtype="int64", bound=5.0),
    "small image without convolutions": BoxSpace((3, 4), "uint8", (0.0,), (255.0,)),
    "discrete": DiscreteSpace(5, start=3),
    "multi discrete": MultiDiscreteSpace((3,), (2, 5, 3), (0, 1, -1)),
    "multi binary": MultiBinarySpace((2, 2)),
    "dict": DictSpace({"where": box(2), "goal": DiscreteSpace(3), "on": MultiBinarySpace((3,))}),
    "tuple": TupleSpace((DiscreteSpace(4), box(3))),
}
ACTIONS: dict[str, Space] = {
    "discrete": DiscreteSpace(4),
    "discrete from 2": DiscreteSpace(3, start=2),
    "multi discrete": MultiDiscreteSpace((3,), (2, 4, 3), (0, 5, 1)),
    "multi discrete of two dimensions": MultiDiscreteSpace((2, 2), (3, 3, 3, 3), (0, 0, 0, 0)),
    "multi binary": MultiBinarySpace((2, 3)),
    "box": BoxSpace((2,), "float32", (-2.0, 0.0), (2.0, 0.5)),
    "box of two dimensions": BoxSpace((2, 2), "float64", (-1.0,), (3.0,)),
    "box without bounds": box(3),
    "box with one bound": BoxSpace((2,), "float32", (0.0,), (math.inf,)),
}


def network(observations: Space, actions: Space = ACTIONS["discrete"], **policy: Any) -> SegmentPolicy:
    description = EnvironmentDescription("Made-v0", observations, actions)
    kind = policy.pop("kind", "mlp")
    return build_policy(description, PolicyConfig(kind=kind, hidden=(8, 6), **policy))


def clear_params(policy: SegmentPolicy, seed: int = 0) -> dict[str, Array]:
    """Parameters with clear preferences, deviations and statistics; fresh ones are nearly uniform."""
    rng = np.random.default_rng(seed)
    params = policy.init_params(rng)
    params |= {name: rng.normal(0, 0.6, value.shape).astype(np.float32) for name, value in params.items()}
    if VARIANCE in params:
        params[VARIANCE] = rng.uniform(0.1, 4.0, params[VARIANCE].shape).astype(np.float32)
        assert MEAN in params
    return params


def raw_observations(leaf: Leaf, rng: np.random.Generator, batch: int) -> Array:
    """Observations as a Gymnasium environment would give them."""
    shape = (batch, *recorded_shape(leaf))
    match leaf:
        case DiscreteSpace():
            return rng.integers(leaf.start, leaf.start + leaf.num_values, shape)
        case MultiDiscreteSpace():
            starts = np.array(leaf.starts).reshape(leaf.shape)
            return starts + rng.integers(0, np.array(leaf.nums_values).reshape(leaf.shape), shape)
        case MultiBinarySpace():
            return rng.integers(0, 2, shape).astype(np.int8)
        case _:
            if np.dtype(leaf.dtype).kind in "iu":
                high = 256 if leaf.dtype == "uint8" else 6
                return rng.integers(0, high, shape).astype(leaf.dtype)
            return rng.normal(0, 3, shape).astype(leaf.dtype)


def run(model: bytes, inputs: Mapping[str, Array]) -> dict[str, Array]:
    runtime: Any = onnxruntime
    session = runtime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def assert_graph_is_the_policy(policy: SegmentPolicy, params: Mapping[str, Array], *, batch: int = 5) -> None:
    rng = np.random.default_rng(1)
    raw = {name: raw_observations(leaf, rng, batch) for name, leaf in policy.observations.items()}
    recorded = {name: recorded_leaf(leaf, raw[name]) for name, leaf in policy.observations.items()}
    outputs = policy.action_outputs(params, recorded, np)
    actions = policy.actions.environment_actions(policy.actions.mode(outputs))
    model = policy_graph(policy, params, {"made": "here"})
    checker: Any = onnx.checker
    checker.check_model(onnx.load_from_string(model), full_check=True)
    found = run(model, raw)
    np.testing.assert_allclose(found["outputs"], outputs, rtol=2e-5, atol=2e-6)
    assert (found["action"].dtype, found["action"].shape) == (actions.dtype, actions.shape)
    if actions.dtype.kind == "f":
        np.testing.assert_allclose(found["action"], actions, rtol=2e-5, atol=2e-6)
    else:
        np.testing.assert_array_equal(found["action"], actions)


@pytest.mark.parametrize("observations", OBSERVATIONS.values(), ids=list(OBSERVATIONS))
@pytest.mark.parametrize("policy", [{}, {"normalise_observations": True}, {"activation": "relu"}], ids=str)
def test_graph_takes_raw_observations_of_every_space(observations: Space, policy: dict[str, Any]) -> None:
    made = network(observations, **policy)
    assert_graph_is_the_policy(made, clear_params(made))


@pytest.mark.parametrize("actions", ACTIONS.values(), ids=list(ACTIONS))
def test_graph_gives_actions_as_every_space_takes_them(actions: Space) -> None:
    made = network(OBSERVATIONS["box"], actions)
    for batch in (1, 7):
        assert_graph_is_the_policy(made, clear_params(made), batch=batch)


@pytest.mark.parametrize("name", ["box", "box of two dimensions"])
def test_graph_squashes_actions_into_their_bounds(name: str) -> None:
    made = network(OBSERVATIONS["dict"], ACTIONS[name], squash_actions=True)
    assert_graph_is_the_policy(made, clear_params(made))


@pytest.mark.parametrize("size", ["shallow", "nature", "impala"])
@pytest.mark.parametrize(
    "observations", [IMAGES, DictSpace({"screen": IMAGES, "speed": box(2)})], ids=["plain", "dict"]
)
def test_graph_of_images_is_the_network_of_actors(size: str, observations: Space) -> None:
    made = network(observations, kind="cnn", network=size, features=16, normalise_observations=True)
    assert_graph_is_the_policy(made, clear_params(made))


@settings(max_examples=25)
@given(st.sampled_from(list(OBSERVATIONS)), st.sampled_from(list(ACTIONS)), st.integers(0, 99), st.booleans())
def test_graph_equals_numpy_for_any_pair_of_spaces(
    observations: str, actions: str, seed: int, normalise: bool
) -> None:
    made = network(OBSERVATIONS[observations], ACTIONS[actions], normalise_observations=normalise)
    assert_graph_is_the_policy(made, clear_params(made, seed))


def test_graph_holds_metadata_and_no_more_parameters_than_it_needs() -> None:
    made = network(OBSERVATIONS["box"])
    model = onnx.load_from_string(policy_graph(made, clear_params(made), {"tidegate.version": "0-a@7"}))
    assert {entry.key: entry.value for entry in model.metadata_props} == {"tidegate.version": "0-a@7"}
    names = {tensor.name for tensor in model.graph.initializer}
    assert "policy.0.weight" in names
    assert not any(name.startswith("value.") for name in names)


def test_numpy_function_that_no_graph_has_is_refused_by_name() -> None:
    traced: Any = TracedArray(GraphWriter(), "observations", dtype=np.float32, shape=(BATCH, 4))
    with pytest.raises(ConfigError, match=r"numpy\.sin"):
        np.sin(traced)
    with pytest.raises(ConfigError, match=r"numpy\.argsort"):
        np.argsort(traced)
    calls: tuple[Callable[[], object], ...] = (
        lambda: traced.reshape(4, BATCH),
        lambda: traced[0],
        lambda: traced[:, ::2],
        lambda: traced.argmax(axis=0),
        lambda: np.broadcast_to(traced, (3, 4)),
        lambda: np.mean(traced, 0, keepdims=True),
    )
    for call in calls:
        with pytest.raises(ConfigError, match="cannot be written as an ONNX graph"):
            call()


def test_types_are_promoted_as_numpy_promotes_them() -> None:
    writer = GraphWriter()
    value = writer.input("x", np.int32, (3,))
    traced: Any = TracedArray(writer, value, dtype=np.int32, shape=(BATCH, 3))
    example = np.arange(6, dtype=np.int32).reshape(2, 3)
    results: dict[str, tuple[Any, Array]] = {
        "quotient": (traced / 3, example / 3),
        "sum": (traced + np.int64(1), example + np.int64(1)),
        "product": (np.array([0.5, 1.5, 2.5]) * traced, np.array([0.5, 1.5, 2.5]) * example),
        "same": (traced == np.array([1, 2, 3]), example == np.array([1, 2, 3])),
        "chosen": (
            np.where(np.array([True, False, True]), traced, 7),
            np.where([True, False, True], example, 7),
        ),
    }
    model = writer.model(
        {name: (each.value, each.dtype, each.shape[1:]) for name, (each, _) in results.items()}
    )
    found = run(model, {"x": example})
    for name, (_, expected) in results.items():
        assert found[name].dtype == expected.dtype, name
        np.testing.assert_array_equal(found[name], expected)
