"""The convolutional policy: its graph beside torch, torch beside loops over windows, its parameters and refusals."""

import math
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray

from tidegate.core.errors import ConfigError, NotFoundError, RecordError
from tidegate.core.records import Array
from tidegate.core.spaces import (
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    EnvironmentDescription,
    MultiBinarySpace,
    MultiDiscreteSpace,
    Space,
    is_image,
    recorded_shape,
)
from tidegate.models import onnx_graph
from tidegate.models.cnn import CnnPolicy
from tidegate.models.convolutions import image_layout
from tidegate.models.policies import build_policy
from tidegate.models.policy_port import SegmentPolicy
from tidegate.runtime.config import PolicyConfig


def images(*shape: int) -> BoxSpace:
    return BoxSpace(shape, "uint8", (0.0,), (255.0,))


STACK = images(4, 40, 44)
MIXED = DictSpace(
    {
        "camera": images(40, 40, 3),
        "speed": BoxSpace((2,), "float32", (-1.0,), (1.0,)),
        "gear": DiscreteSpace(5),
        "map": images(36, 38),
    }
)
PUSH = BoxSpace((2,), "float32", (-2.0,), (2.0,))


def network(observations: Space = STACK, actions: Space | None = None, **settings: Any) -> SegmentPolicy:
    chosen: dict[str, Any] = {"features": 24, **settings}
    description = EnvironmentDescription("Made-v0", observations, actions or DiscreteSpace(6))
    return build_policy(description, PolicyConfig(kind="cnn", **chosen))


def fresh(policy: SegmentPolicy, seed: int = 0) -> dict[str, Array]:
    """Parameters whose biases and residual layers are not zero, as after some training."""
    rng = np.random.default_rng(seed)
    params = policy.init_params(rng)
    for name in policy.trainable(params):
        params[name] = params[name] + rng.normal(0.0, 0.02, params[name].shape).astype(np.float32)
    return params


def seen(policy: SegmentPolicy, seed: int, *shape: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    observations: dict[str, Array] = {}
    for name, leaf in policy.observations.items():
        size = (*shape, *recorded_shape(leaf))
        if is_image(leaf):
            observations[name] = rng.integers(0, 256, size, dtype=np.uint8)
        elif isinstance(leaf, DiscreteSpace):
            observations[name] = rng.integers(0, leaf.num_values, size).astype(np.int32)
        else:
            observations[name] = rng.standard_normal(size).astype(np.float32)
    return observations


def tensors(arrays: dict[str, Array]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(array) for name, array in arrays.items()}


@torch.no_grad()
def by_torch(policy: SegmentPolicy, params: dict[str, Array], observations: dict[str, Array]) -> list[Array]:
    outputs, values = policy.outputs_and_values(tensors(params), tensors(observations), torch)
    return [outputs.numpy(), values.numpy()]


def assert_equal_to_rounding(ours: Array, theirs: Array) -> None:
    """Equal to the rounding of float32 sums, whose order differs between libraries."""
    assert ours.dtype == theirs.dtype == np.float32
    np.testing.assert_allclose(ours, theirs, rtol=0.0, atol=2e-6 * max(1.0, float(np.abs(theirs).max())))


@pytest.mark.parametrize("name", ["shallow", "nature", "impala"])
@pytest.mark.parametrize(
    "observations",
    [STACK, images(40, 44, 3), images(40, 44, 9), images(40, 44), images(2, 40, 40, 3), MIXED],
    ids=str,
)
@pytest.mark.parametrize("num_envs", [1, 5])
def test_graph_of_actors_gives_the_outputs_of_torch(name: str, observations: Space, num_envs: int) -> None:
    policy = network(observations, network=name)
    for seed in range(2):
        params = fresh(policy, seed)
        batch = seen(policy, seed, num_envs)
        outputs, _ = by_torch(policy, params, batch)
        assert_equal_to_rounding(policy.runner(params)(batch), outputs)
        assert np.abs(outputs).max() > 1e-3


@pytest.mark.parametrize(
    ("actions", "settings"),
    [
        (DiscreteSpace(6, start=2), {}),
        (MultiDiscreteSpace((2,), (3, 4), (0, 0)), {}),
        (MultiBinarySpace((3,)), {}),
        (PUSH, {}),
        (PUSH, {"squash_actions": True}),
    ],
    ids=str,
)
def test_every_action_distribution_has_its_heads(actions: Space, settings: dict[str, Any]) -> None:
    policy = network(MIXED, actions, normalise_observations=True, **settings)
    params = fresh(policy)
    params |= policy.updated_statistics(params, seen(policy, 3, 100))
    batch = seen(policy, 0, 7)
    outputs, values = by_torch(policy, params, batch)
    assert outputs.shape == (7, policy.actions.num_outputs)
    assert values.shape == (7,)
    assert_equal_to_rounding(policy.runner(params)(batch), outputs)
    taken, logprobs = policy.actions.sample(outputs, np.random.default_rng(0))
    assert taken.shape == (7, *policy.actions.action_shape)
    assert np.isfinite(logprobs).all()


def test_numpy_and_torch_agree_on_both_heads_and_keep_leading_dimensions() -> None:
    policy = network(MIXED)
    params, batch = fresh(policy), seen(policy, 0, 3, 2)
    outputs, values = by_torch(policy, params, batch)
    assert outputs.shape == (3, 2, 6)
    assert values.shape == (3, 2)
    assert_equal_to_rounding(policy.action_outputs(params, batch, np), outputs)
    assert_equal_to_rounding(policy.values(params, batch, np), values)


def slow_convolution(
    images_BCHW: NDArray[np.float64], weight: Array, bias: Array, *, stride: int = 1, padding: int = 0
) -> NDArray[np.float64]:
    """One pixel of the result after the other."""
    padded = np.pad(images_BCHW, [(0, 0), (0, 0), (padding, padding), (padding, padding)])
    kernel = weight.shape[-1]
    height, width = ((side - kernel) // stride + 1 for side in padded.shape[2:])
    result = np.empty((len(padded), len(weight), height, width))
    for row in range(height):
        for column in range(width):
            top, left = row * stride, column * stride
            window = padded[:, :, top : top + kernel, left : left + kernel]
            result[:, :, row, column] = np.tensordot(
                window, weight.astype(np.float64), axes=([1, 2, 3], [1, 2, 3])
            )
    return result + bias[:, None, None]


def slow_pool(images_BCHW: NDArray[np.float64]) -> NDArray[np.float64]:
    padded = np.pad(images_BCHW, [(0, 0), (0, 0), (1, 1), (1, 1)], constant_values=-np.inf)
    height, width = ((side + 1) // 2 for side in images_BCHW.shape[2:])
    result = np.empty((*images_BCHW.shape[:2], height, width))
    for row in range(height):
        for column in range(width):
            window = padded[:, :, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3]
            result[:, :, row, column] = window.max(axis=(2, 3))
    return result


def slow_nature(params: dict[str, Array], images_BCHW: NDArray[np.float64]) -> NDArray[np.float64]:
    return slow_convolutions(params, images_BCHW, strides=(4, 2, 1))


def slow_shallow(params: dict[str, Array], images_BCHW: NDArray[np.float64]) -> NDArray[np.float64]:
    return slow_convolutions(params, images_BCHW, strides=(4, 2))


def slow_convolutions(
    params: dict[str, Array], images_BCHW: NDArray[np.float64], *, strides: Sequence[int]
) -> NDArray[np.float64]:
    for number, stride in enumerate(strides):
        layer = f"images.observations.{number}"
        images_BCHW = slow_convolution(
            images_BCHW, params[f"{layer}.weight"], params[f"{layer}.bias"], stride=stride
        ).clip(0.0)
    return images_BCHW


def slow_impala(params: dict[str, Array], images_BCHW: NDArray[np.float64]) -> NDArray[np.float64]:
    def layer(images_BCHW: NDArray[np.float64], name: str) -> NDArray[np.float64]:
        name = f"images.observations.{name}"
        return slow_convolution(images_BCHW, params[f"{name}.weight"], params[f"{name}.bias"], padding=1)

    for section in range(3):
        images_BCHW = slow_pool(layer(images_BCHW, f"{section}"))
        for block in range(2):
            inner = layer(images_BCHW.clip(0.0), f"{section}.{block}.first")
            images_BCHW = images_BCHW + layer(inner.clip(0.0), f"{section}.{block}.residual")
    return images_BCHW.clip(0.0)


@pytest.mark.parametrize(
    ("name", "slow"), [("shallow", slow_shallow), ("nature", slow_nature), ("impala", slow_impala)]
)
def test_torch_computes_the_published_network(name: str, slow: Any) -> None:
    policy = network(images(2, 36, 37), network=name)
    params, batch = fresh(policy), seen(policy, 0, 3)
    convolved = slow(params, batch["observations"] / 255.0).reshape(3, -1)
    features = (convolved @ params["features.weight"] + params["features.bias"]).clip(0.0)
    outputs, values = by_torch(policy, params, batch)
    expected = features @ params["policy.weight"] + params["policy.bias"]
    np.testing.assert_allclose(outputs, expected, rtol=0.0, atol=1e-5)
    expected = features @ params["value.weight"] + params["value.bias"]
    np.testing.assert_allclose(values, expected[:, 0], rtol=0.0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "num_parameters"),
    [
        # Mnih 2013's: 32 x 9 x 9 inputs of 256 units.
        ("shallow", 4_112 + 8_224 + 663_808 + 1_542 + 257),
        # Mnih 2015's network for six actions with a value, counted by hand.
        ("nature", 8_224 + 32_832 + 36_928 + 1_606_144 + 3_078 + 513),
        # Espeholt 2018: 15 convolutions, then 32 x 11 x 11 inputs of 256 units.
        ("impala", 592 + 4 * 2_320 + 4_640 + 4 * 9_248 + 9_248 + 4 * 9_248 + 991_488 + 1_542 + 257),
    ],
)
def test_networks_have_the_published_sizes(name: str, num_parameters: int) -> None:
    policy = network(images(4, 84, 84), network=name, features=0)
    assert sum(math.prod(shape) for shape in policy.parameter_shapes().values()) == num_parameters


@pytest.mark.parametrize("name", ["shallow", "nature", "impala"])
def test_fresh_policy_is_nearly_uniform_and_its_weights_are_orthogonal(name: str) -> None:
    policy = network(network=name)
    params = policy.init_params(np.random.default_rng(0))
    policy.check_params(params)
    assert {name: array.shape for name, array in params.items()} == policy.parameter_shapes()
    outputs, values = by_torch(policy, params, seen(policy, 0, 50))
    assert np.ptp(outputs, axis=1).max() < 0.1
    assert np.abs(values).max() < 5.0
    first = params["images.observations.0.weight"]
    rows = first.reshape(len(first), -1)
    np.testing.assert_allclose(rows @ rows.T, 2.0 * np.eye(len(first)), atol=1e-5)


def test_residual_blocks_first_pass_their_input_on() -> None:
    params = network(network="impala").init_params(np.random.default_rng(0))
    residual = [name for name in params if name.endswith("residual.weight")]
    assert len(residual) == 6
    assert not any(params[name].any() for name in residual)


def test_runner_keeps_the_version_that_it_was_made_for() -> None:
    policy = network()
    batch = seen(policy, 0, 4)
    old, new = fresh(policy, 1), fresh(policy, 2)
    expected = [by_torch(policy, params, batch)[0] for params in (old, new)]
    runners = [policy.runner(params) for params in (old, new)]
    old.clear()
    new.clear()
    for runner, outputs in zip(runners, expected, strict=True):
        assert_equal_to_rounding(runner(batch), outputs)
    assert not np.allclose(expected[0], expected[1])


def test_graph_is_valid_and_holds_no_weights() -> None:
    policy = network(MIXED, network="impala")
    assert isinstance(policy, CnnPolicy)
    shapes = {name: recorded_shape(leaf) for name, leaf in policy.observations.items()}
    model = onnx_graph.session_model(
        policy.network,
        parameter_shapes=policy.parameter_shapes(),
        image_shapes={name: shape for name, shape in shapes.items() if is_image(policy.observations[name])},
        has_numbers=True,
    )
    assert len(model.graph) < 16_000
    graph = onnx.load_from_string(model.graph)
    for tensor in graph.graph.initializer:
        if tensor.name in model.parameters:  # the checker looks for the file of a tensor outside of the graph
            zeros = np.zeros(tuple(tensor.dims), np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(zeros, tensor.name))
    checker: Any = onnx.checker
    checker.check_model(graph, full_check=True)
    assert set(model.parameters) == set(policy.parameter_shapes())


@pytest.mark.parametrize(
    ("shape", "channels"),
    [
        ((4, 40, 44), 4),
        ((40, 44, 3), 3),
        ((40, 44, 12), 12),
        ((40, 44), 1),
        ((2, 40, 44, 3), 6),
        ((40, 40, 40), 40),
    ],
)
def test_channels_are_at_the_shorter_end(shape: tuple[int, ...], channels: int) -> None:
    layout = image_layout(images(*shape))
    assert layout.channels == channels
    assert {layout.height, layout.width} <= {40, 44}


def test_parameters_of_another_network_are_refused() -> None:
    policy = network()
    params = fresh(policy)
    for broken in (
        {**params, "features.bias": params["features.bias"][:3]},
        {**params, "more": params["features.bias"]},
        {name: array for name, array in params.items() if name != "value.weight"},
    ):
        with pytest.raises(RecordError, match=r"a cnn \(nature, 24 features\) for Made-v0"):
            policy.check_params(broken)


@pytest.mark.parametrize(
    ("observations", "settings", "message"),
    [
        (BoxSpace((4,), "float32", (-1.0,), (1.0,)), {}, "shows no images"),
        (BoxSpace((4, 84, 84), "float32", (0.0,), (1.0,)), {}, "shows no images"),
        (images(4, 35, 84), {}, "Images of 2x9 pixels are too small for the layer images.observations.2"),
        (images(4, 7, 84), {}, "set policy.network to impala"),
        (STACK, {"input_scale": (1.0,)}, "input_scale is set with policy.kind cnn"),
    ],
)
def test_policy_that_does_not_fit_is_refused(
    observations: Space, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        network(observations, **settings)


def test_images_too_small_for_nature_fit_impala() -> None:
    policy = network(images(3, 7, 7), network="impala")
    params, batch = fresh(policy), seen(policy, 0, 2)
    assert_equal_to_rounding(policy.runner(params)(batch), by_torch(policy, params, batch)[0])


def test_missing_onnxruntime_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = network()
    monkeypatch.setitem(sys.modules, "tidegate.models.onnx_graph", None)
    monkeypatch.delattr("tidegate.models.onnx_graph")
    with pytest.raises(NotFoundError, match=r"tidegate\[images\]"):
        policy.runner(fresh(policy))


ACTOR = """
import sys
import numpy as np
from tidegate.core.spaces import BoxSpace, DiscreteSpace, EnvironmentDescription
from tidegate.models.policies import build_policy
from tidegate.runtime.config import PolicyConfig

space = BoxSpace((4, 40, 40), "uint8", (0.0,), (255.0,))
policy = build_policy(EnvironmentDescription("Made-v0", space, DiscreteSpace(3)), PolicyConfig(kind="cnn"))
params = policy.init_params(np.random.default_rng(0))
assert "onnxruntime" not in sys.modules, "a learner needs no onnxruntime"
outputs = policy.runner(params)({"observations": np.zeros((2, 4, 40, 40), np.uint8)})
assert outputs.shape == (2, 3)
assert "onnxruntime" in sys.modules
assert "torch" not in sys.modules, "an actor loads no torch"
"""


def test_actor_loads_no_torch_and_a_learner_no_onnxruntime() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ACTOR], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
