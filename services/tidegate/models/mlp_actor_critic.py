"""Two small networks beside each other: a policy over discrete actions, and a value.

The maths is written once and runs under numpy in actors, which never load torch, and under torch in the learner: the
caller passes the module (``xp``) that its arrays belong to. Parameters are one flat dict of float32 arrays by name,
which is what is published. The two networks share nothing, so that an actor computes half, and a value that is still
wrong does not spoil the policy's features.

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

# Orthogonal layers keep the scale of what passes through tanh; a nearly uniform first policy explores, and a policy
# that starts out sure of itself takes thousands of steps to unlearn (Andrychowicz 2021, section 3.2).
HIDDEN_GAIN: float = 2.0**0.5
POLICY_GAIN = 0.01
VALUE_GAIN = 1.0


class ArrayModule(Protocol):
    """What of numpy and torch the networks need."""

    @property
    def tanh(self) -> Any:
        """Elementwise hyperbolic tangent."""
        ...


class MlpSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a policy sees, does, and how large it is.

    ``hidden``: units of each tanh layer, of either network. ``input_scale``: what each component of an observation
    is multiplied by, to bring it near ±1; components that stay much smaller are learnt late. Empty leaves all as they
    are.

    Raises:
        ConfigError: a size is not positive, or ``input_scale`` has another length than the observation.
    """

    observation_size: int
    num_actions: int
    hidden: tuple[int, ...] = (64, 64)
    input_scale: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what no network can be built from."""
        if min(self.observation_size, self.num_actions, *self.hidden) < 1:
            raise ConfigError(f"An mlp_actor_critic policy needs positive sizes, not {self}")
        if self.input_scale and len(self.input_scale) != self.observation_size:
            raise ConfigError(
                f"input_scale has {len(self.input_scale)} factors for observations of {self.observation_size}",
                fix="give one factor a component, or none at all",
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
    basis = basis * np.sign(np.diag(triangle))  # without it QR prefers some rotations
    return (gain * (basis if num_inputs >= num_units else basis.T)).astype(np.float32)


def check_params(spec: MlpSpec, params: Mapping[str, Array]) -> None:
    """Whether ``params`` are the parameters of this network.

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
    hidden: Any = observations * params["input_scale"]  # numpy's stubs take every product for float64
    for layer in range(last_layer):
        hidden = xp.tanh(hidden @ params[f"{name}.{layer}.weight"] + params[f"{name}.{layer}.bias"])
    return hidden @ params[f"{name}.{last_layer}.weight"] + params[f"{name}.{last_layer}.bias"]


def sample_actions(
    logits_BA: NDArray[np.float32], rng: np.random.Generator
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """One action a row, drawn as the softmax of its logits says, and its logprob; both (B,).

    By the inverse of the cumulative distribution: one uniform number a row. An action of probability 0 is never drawn.
    """
    shifted_BA = logits_BA - logits_BA.max(axis=1, keepdims=True)
    cumulative_BA = np.exp(shifted_BA).cumsum(axis=1)
    totals_B = cumulative_BA[:, -1]
    draws_B = rng.random(len(logits_BA), dtype=np.float32) * totals_B
    actions_B = (draws_B[:, None] >= cumulative_BA[:, :-1]).sum(axis=1, dtype=np.int32)
    logprobs_B = shifted_BA[np.arange(len(logits_BA)), actions_B] - np.log(totals_B)
    return actions_B, logprobs_B
