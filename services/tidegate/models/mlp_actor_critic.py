"""Two small networks: a policy over discrete actions, and a value.

The maths is written once and runs under numpy in actors, which never load torch, and under torch in the learner: the
caller passes the module (``xp``) that its arrays belong to. Parameters are one flat dict of float32 arrays by name,
as published. The two networks share nothing, so that an actor computes only one, and an inaccurate value does not
distort the policy's features.

Shapes: B observations, O their size, A actions.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from tidegate.core.errors import ConfigError, RecordError
from tidegate.core.records import Array

if TYPE_CHECKING:
    from torch import Tensor

ArrayT = TypeVar("ArrayT", NDArray[np.float32], "Tensor")

# Orthogonal layers keep the scale of activations through tanh; a nearly uniform initial policy explores, and a
# confident one takes thousands of steps to unlearn (Andrychowicz 2021, section 3.2).
HIDDEN_GAIN: float = 2.0**0.5
POLICY_GAIN = 0.01
VALUE_GAIN = 1.0


class ArrayModule(Protocol):
    """The functions of numpy and torch that the networks use."""

    @property
    def tanh(self) -> Any:
        """Elementwise hyperbolic tangent."""
        ...


class MlpSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Observations, actions and size of a policy.

    ``hidden``: units of each tanh layer, of either network. ``input_scale``: factor of each component of an
    observation, to bring it near ±1; much smaller components are learnt late. Empty scales none.

    Raises:
        ConfigError: a size is not positive, or ``input_scale`` has another length than the observation.
    """

    observation_size: int
    num_actions: int
    hidden: tuple[int, ...] = (64, 64)
    input_scale: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Check the sizes."""
        if min(self.observation_size, self.num_actions, *self.hidden) < 1:
            raise ConfigError(f"An mlp_actor_critic policy needs positive sizes, not {self}")
        if self.input_scale and len(self.input_scale) != self.observation_size:
            raise ConfigError(
                f"input_scale has {len(self.input_scale)} factors for observations of {self.observation_size}",
                fix="give one factor per component, or none",
            )


def parameter_shapes(spec: MlpSpec) -> dict[str, tuple[int, ...]]:
    """Every parameter's shape by name, in the order of computation; weights are (inputs, outputs)."""
    shapes: dict[str, tuple[int, ...]] = {"input_scale": (spec.observation_size,)}
    for network, num_outputs in (("policy", spec.num_actions), ("value", 1)):
        sizes = (spec.observation_size, *spec.hidden, num_outputs)
        for layer, (num_inputs, num_units) in enumerate(pairwise(sizes)):
            shapes[f"{network}.{layer}.weight"] = (num_inputs, num_units)
            shapes[f"{network}.{layer}.bias"] = (num_units,)
    return shapes


def init_params(spec: MlpSpec, rng: np.random.Generator) -> dict[str, Array]:
    """Fresh parameters: orthogonal weights, zero biases, and the fixed ``input_scale``, which is not trained."""
    last_layer = len(spec.hidden)
    output_gains = {f"policy.{last_layer}.weight": POLICY_GAIN, f"value.{last_layer}.weight": VALUE_GAIN}
    params: dict[str, Array] = {}
    for name, shape in parameter_shapes(spec).items():
        if name.endswith(".weight"):
            params[name] = _orthogonal(shape, rng, gain=output_gains.get(name, HIDDEN_GAIN))
        else:
            params[name] = np.zeros(shape, dtype=np.float32)
    params["input_scale"] = np.array(spec.input_scale or (1.0,) * spec.observation_size, dtype=np.float32)
    return params


def _orthogonal(shape: tuple[int, ...], rng: np.random.Generator, *, gain: float) -> NDArray[np.float32]:
    """Saxe 2014: rows or columns, whichever are fewer, are orthonormal times ``gain``."""
    num_inputs, num_units = shape
    normal = rng.standard_normal((max(shape), min(shape)))
    basis, triangle = np.linalg.qr(normal)
    basis = basis * np.sign(np.diag(triangle))  # otherwise QR is biased towards some rotations
    return (gain * (basis if num_inputs >= num_units else basis.T)).astype(np.float32)


def check_params(spec: MlpSpec, params: Mapping[str, Array]) -> None:
    """Check that ``params`` are the parameters of this network.

    Raises:
        RecordError: a name is missing or unknown, or a shape or dtype differs; the message names the first.
    """
    shapes = parameter_shapes(spec)
    for name in sorted(shapes.keys() | params.keys()):
        if name not in params:
            problem = f"tensor {name!r} is missing"
        elif name not in shapes:
            problem = f"tensor {name!r} is unknown to it"
        elif tuple(params[name].shape) != shapes[name]:
            problem = f"tensor {name!r} has the shape {tuple(params[name].shape)}, not {shapes[name]}"
        elif params[name].dtype != np.float32:
            problem = f"tensor {name!r} is {params[name].dtype}, not float32"
        else:
            continue
        raise RecordError(
            f"These parameters do not fit an mlp_actor_critic of {spec}: {problem}",
            why="they come from a network of another size or kind",
            fix="use the policy section that they were trained with, or start from other parameters",
        )


def trainable(params: Mapping[str, ArrayT]) -> dict[str, ArrayT]:
    """The parameters that an optimiser changes, in order."""
    return {name: value for name, value in params.items() if name != "input_scale"}


def policy_logits(params: Mapping[str, ArrayT], observations: ArrayT, xp: ArrayModule) -> ArrayT:
    """Unnormalised log-probabilities (..., A) of the actions, for raw observations (..., O)."""
    return _network("policy", params, observations, xp)


def state_values(params: Mapping[str, ArrayT], observations: ArrayT, xp: ArrayModule) -> ArrayT:
    """The value network's output (...) for raw observations (..., O), in units of the objective's ``value_scale``."""
    return _network("value", params, observations, xp)[..., 0]


def forward(params: Mapping[str, ArrayT], observations: ArrayT, xp: ArrayModule) -> tuple[ArrayT, ArrayT]:
    """Both: logits (..., A) and values (...)."""
    return policy_logits(params, observations, xp), state_values(params, observations, xp)


def _network(name: str, params: Mapping[str, ArrayT], observations: ArrayT, xp: ArrayModule) -> ArrayT:
    last_layer = (len(params) - 1) // 4 - 1  # two arrays a layer, two networks, one scale
    hidden: Any = observations * params["input_scale"]  # numpy's stubs type every product as float64
    for layer in range(last_layer):
        hidden = xp.tanh(hidden @ params[f"{name}.{layer}.weight"] + params[f"{name}.{layer}.bias"])
    return hidden @ params[f"{name}.{last_layer}.weight"] + params[f"{name}.{last_layer}.bias"]


def sample_actions(
    logits_BA: NDArray[np.float32], rng: np.random.Generator
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Sample one action per row from the softmax of its logits, and its logprob; both (B,).

    By inverse transform: one uniform number per row. An action of probability 0 is never sampled.
    """
    shifted_BA = logits_BA - logits_BA.max(axis=1, keepdims=True)
    cumulative_BA = np.exp(shifted_BA).cumsum(axis=1)
    totals_B = cumulative_BA[:, -1]
    draws_B = rng.random(len(logits_BA), dtype=np.float32) * totals_B
    actions_B = (draws_B[:, None] >= cumulative_BA[:, :-1]).sum(axis=1, dtype=np.int32)
    logprobs_B = shifted_BA[np.arange(len(logits_BA)), actions_B] - np.log(totals_B)
    return actions_B, logprobs_B
