"""Distributions of discrete actions: one choice, or several independent ones. Actions count from 0.

Shapes: B rows, A values of one choice, K choices, N the most values of any of them, P outputs of the network.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate.models.array_functions import ArrayModule, constant, log_softmax, take_last
from tidegate.models.differentiated import Differentiated, Rows

# The logit of a value that a choice does not have, where choices of different sizes share one array; exp() of it is 0.
ABSENT = -1e9


class Categorical:
    """One of ``num_values`` actions; its outputs are logits. ``start`` is the environment's first action."""

    num_shared_outputs = 0
    action_shape: tuple[int, ...] = ()
    action_dtype = "int32"

    def __init__(self, num_values: int, *, start: int = 0) -> None:
        self.num_outputs = num_values
        self.nums_values = (num_values,)
        self._start = start

    def logprobs(self, outputs: Any, actions: Any, xp: ArrayModule) -> Any:
        """See ``ActionDistribution``."""
        return take_last(log_softmax(outputs, xp), actions, xp)

    def entropy(self, outputs: Any, xp: ArrayModule) -> Any:
        """See ``ActionDistribution``."""
        return _entropy(log_softmax(outputs, xp), xp)

    def logprobs_and_entropy(self, outputs: Any, actions: Any, xp: ArrayModule) -> tuple[Any, Any]:
        """See ``ActionDistribution``."""
        logprobs = log_softmax(outputs, xp)
        return take_last(logprobs, actions, xp), _entropy(logprobs, xp)

    def differentiated(self, outputs_BP: Rows, actions: NDArray[Any]) -> Differentiated:
        """See ``DifferentiatedDistribution``: ∂ log π(a)/∂z = 1[a] − π, ∂H/∂z = −π (log π + H) of logits z."""
        logprobs_BA = log_softmax(outputs_BP, np)
        probabilities_BA = np.exp(logprobs_BA)
        entropy_B = -(probabilities_BA * logprobs_BA).sum(axis=-1)
        taken_B1 = actions[:, None]

        def by_outputs(by_logprobs_B: Rows, by_entropy_B: Rows) -> Rows:
            by_logprobs_B1 = by_logprobs_B[:, None]
            gradient_BA = -probabilities_BA * (
                by_logprobs_B1 + by_entropy_B[:, None] * (logprobs_BA + entropy_B[:, None])
            )
            of_taken_B1 = np.take_along_axis(gradient_BA, taken_B1, axis=-1)
            np.put_along_axis(gradient_BA, taken_B1, of_taken_B1 + by_logprobs_B1, axis=-1)
            return gradient_BA

        return Differentiated(take_last(logprobs_BA, actions, np), entropy_B, by_outputs)

    def sample(
        self, outputs_BP: NDArray[np.float32], rng: np.random.Generator
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """See ``ActionDistribution``."""
        return sample_rows(outputs_BP, rng)

    def mode(self, outputs_BP: NDArray[np.float32]) -> NDArray[np.int32]:
        """The most probable action of each row."""
        return outputs_BP.argmax(axis=-1).astype(np.int32)

    def environment_actions(self, actions: NDArray[np.int32]) -> NDArray[np.int32]:
        """See ``ActionDistribution``."""
        return actions + np.int32(self._start) if self._start else actions


class MultiCategorical:
    """Independent choices: the parts of MultiDiscrete, or the flags of MultiBinary as two values each.

    Its outputs are the logits of the first choice, then of the second and so on. ``shape``: of an environment's action;
    recorded actions are flat, (K,). ``dtype``: of what the environment is given.
    """

    num_shared_outputs = 0
    action_dtype = "int32"

    def __init__(
        self,
        nums_values: tuple[int, ...],
        *,
        shape: tuple[int, ...],
        starts: tuple[int, ...] = (),
        dtype: str = "int32",
    ) -> None:
        self.nums_values = nums_values
        self.num_outputs = sum(nums_values)
        self.action_shape = (len(nums_values),)
        self._shape = shape
        self._dtype = np.dtype(dtype)
        self._starts_K = np.array(starts or (0,) * len(nums_values), dtype=np.int32)
        values_N = np.arange(max(nums_values))
        self._present_KN = values_N < np.array(nums_values)[:, None]
        first_outputs_K1 = np.cumsum((0, *nums_values[:-1]))[:, None]
        # An absent value points at the choice's first output, and is then set to ABSENT.
        self._columns_KN = np.where(self._present_KN, first_outputs_K1 + values_N, first_outputs_K1)

    def logprobs(self, outputs: Any, actions: Any, xp: ArrayModule) -> Any:
        """See ``ActionDistribution``."""
        return take_last(log_softmax(self._logits(outputs, xp), xp), actions, xp).sum(axis=-1)

    def entropy(self, outputs: Any, xp: ArrayModule) -> Any:
        """See ``ActionDistribution``."""
        return _entropy(log_softmax(self._logits(outputs, xp), xp), xp).sum(axis=-1)

    def logprobs_and_entropy(self, outputs: Any, actions: Any, xp: ArrayModule) -> tuple[Any, Any]:
        """See ``ActionDistribution``."""
        logprobs = log_softmax(self._logits(outputs, xp), xp)
        return take_last(logprobs, actions, xp).sum(axis=-1), _entropy(logprobs, xp).sum(axis=-1)

    def sample(
        self, outputs_BP: NDArray[np.float32], rng: np.random.Generator
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """See ``ActionDistribution``."""
        logits_BKN: NDArray[np.float32] = self._logits(outputs_BP, np)
        actions, logprobs = sample_rows(logits_BKN.reshape(-1, logits_BKN.shape[-1]), rng)
        shape = logits_BKN.shape[:2]
        return actions.reshape(shape), logprobs.reshape(shape).sum(axis=1)

    def mode(self, outputs_BP: NDArray[np.float32]) -> NDArray[np.int32]:
        """The most probable value of each choice."""
        return self._logits(outputs_BP, np).argmax(axis=-1).astype(np.int32)

    def environment_actions(self, actions: NDArray[np.int32]) -> NDArray[Any]:
        """See ``ActionDistribution``."""
        return (actions + self._starts_K).astype(self._dtype).reshape(len(actions), *self._shape)

    def _logits(self, outputs: Any, xp: ArrayModule) -> Any:
        """Logits (..., K, N) of outputs (..., P)."""
        logits = outputs[..., self._columns_KN]
        if self._present_KN.all():
            return logits
        return xp.where(constant(self._present_KN, outputs, xp), logits, ABSENT)


def _entropy(logprobs: Any, xp: ArrayModule) -> Any:
    return -(xp.exp(logprobs) * logprobs).sum(axis=-1)


def sample_rows(
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
