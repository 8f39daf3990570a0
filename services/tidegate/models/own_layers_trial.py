"""Tries a policy with layers of a user's own before a run: numpy beside torch, rows beside each other, gradients.

An actor computes it under numpy and the learner under torch, so code that differs between the two would train on
importance weights of an error.

Shapes: B rows, P outputs.
"""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch

from tidegate.core.errors import ConfigError
from tidegate.core.records import Array
from tidegate.core.spaces import recorded_dtype, recorded_shape
from tidegate.models.array_functions import ArrayModule
from tidegate.models.own_layers import PREFIX
from tidegate.models.policy_port import MemoryPolicy, SegmentPolicy

ROWS = 8
# Relative to outputs of size 1: float32 sums in another order differ by some 1e-6.
TOLERANCE = 1e-4


def try_own_layers(policy: SegmentPolicy, *, written: str) -> None:
    """Compute a small batch both ways, and a gradient.

    Raises:
        ConfigError: the two differ, an output is not finite, a row depends on another, or nothing would be trained.
    """
    rng = np.random.default_rng(0)
    params = _moved(policy, rng)
    observations = _made_up(policy, rng)
    found = _computed(policy, params, observations, np)
    if not all(np.isfinite(array).all() for array in found):
        raise _refused(written, "its outputs on a small batch are not finite")
    tensors = {name: torch.as_tensor(value) for name, value in params.items()}
    trained = {name: value.requires_grad_() for name, value in policy.trainable(tensors).items()}
    tensors |= trained
    in_torch = _computed(
        policy, tensors, {name: torch.as_tensor(rows) for name, rows in observations.items()}, torch
    )
    difference = _difference(*zip(found, (tensor.detach().numpy() for tensor in in_torch), strict=True))
    if not difference <= TOLERANCE:
        raise _refused(
            written,
            f"numpy and torch differ by {difference:.2g}: actors compute by the one, the learner by the other",
        )
    first = {name: rows[:1] for name, rows in observations.items()}
    alone = _difference((found[0][:1], _computed(policy, params, first, np)[0]))
    if not alone <= TOLERANCE:
        raise _refused(
            written, f"the output of an observation depends on the others of its batch, by {alone:.2g}"
        )
    _check_gradients(in_torch[0].sum() + in_torch[1].sum(), trained, written=written)


def _computed(
    policy: SegmentPolicy, params: Mapping[str, Any], observations: Mapping[str, Any], xp: ArrayModule
) -> tuple[Any, Any]:
    """Outputs and values as actors (numpy) or the learner compute them; with memory outputs and the state after."""
    if not isinstance(policy, MemoryPolicy):
        return policy.outputs_and_values(params, observations, xp)
    num_rows = len(next(iter(observations.values())))
    state_BM: Array = np.random.default_rng(1).normal(0.0, 0.5, (ROWS, policy.memory_size)).astype(np.float32)
    state_BM = state_BM[:num_rows]
    if xp is np:
        return policy.stepper(params)(observations, state_BM)
    sequences = observations, torch.as_tensor(state_BM), torch.tensor([num_rows]), xp
    return policy.unrolled(params, *sequences)[0], policy.memory_after(params, *sequences)


def _check_gradients(total: torch.Tensor, trained: Mapping[str, torch.Tensor], *, written: str) -> None:
    found = torch.autograd.grad(total, list(trained.values()), allow_unused=True)
    gradients = cast("tuple[torch.Tensor | None, ...]", found)
    unused = [
        name.removeprefix(PREFIX)
        for name, gradient in zip(trained, gradients, strict=True)
        if gradient is None and name.startswith(PREFIX)
    ]
    if unused:
        raise _refused(written, f"its features do not depend on {', '.join(unused[:4])}")


def _moved(policy: SegmentPolicy, rng: np.random.Generator) -> dict[str, Array]:
    """Fresh parameters, moved a little, as after some training."""
    params = policy.init_params(rng)
    for name in policy.trainable(params):
        params[name] = params[name] + rng.normal(0.0, 0.1, params[name].shape).astype(np.float32)
    return params


def _made_up(policy: SegmentPolicy, rng: np.random.Generator) -> dict[str, Array]:
    made: dict[str, Array] = {}
    for name, leaf in policy.observations.items():
        shape, dtype = (ROWS, *recorded_shape(leaf)), recorded_dtype(leaf)
        is_real = np.dtype(dtype).kind == "f"
        drawn: Any = rng.standard_normal(shape) if is_real else rng.integers(0, 2, shape)
        made[name] = np.asarray(drawn).astype(dtype)
    return made


def _difference(*pairs: tuple[Array, Array]) -> float:
    """The largest difference, relative where outputs are above 1."""
    return max(float(np.max(np.abs(one - other) / np.maximum(1.0, np.abs(one)))) for one, other in pairs)


def _refused(written: str, why: str) -> ConfigError:
    return ConfigError(
        f"policy.kind {written} cannot be trained", why=why, fix="correct its features(): docs/own_code.md"
    )
