"""Distributions of continuous actions: Gaussians of independent components, plain or squashed by tanh.

Policies act in units in which a bounded component reaches from -1 to 1; ``environment_actions`` converts to the bounds.

Shapes: B rows, K components of an action, P = 2 K outputs: the means, then the logarithms of the standard deviations.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate.core.errors import ConfigError
from tidegate.core.spaces import BoxSpace
from tidegate.models.array_functions import ArrayModule, constant
from tidegate.models.differentiated import Differentiated, Rows

# Haarnoja 2018 and its successors bound the logarithm so that neither deviation nor density leaves float32.
LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
# The largest squashed action that is recorded: float32's distance to 1 leaves atanh no more precision than this.
SQUASHED_MAX = 1.0 - 1e-6
# Bounds beyond this are float32's way to write "none" (CartPole's velocities have 3.4e38).
BOUND_MAX = 1e30
# Nodes of the quadrature for a squashed entropy; 32 leave an error below 1e-3 nats for deviations up to e.
QUADRATURE_NODES = 32


class DiagonalGaussian:
    """Independent Gaussians whose deviations are parameters of the policy, not of the observation.

    Recorded actions are as sampled: an environment gets them clipped to its bounds, and the logprob is of what was
    sampled, so that it needs no correction.
    """

    action_dtype = "float32"

    def __init__(self, space: BoxSpace) -> None:
        """Raises ConfigError if the space is not of a floating type."""
        self._bounds = _Bounds(space)
        self._num_components = math.prod(space.shape)
        self.action_shape = space.shape
        self.num_outputs = 2 * self._num_components
        self.num_shared_outputs = self._num_components

    def logprobs(self, outputs: Any, actions: Any, xp: ArrayModule) -> Any:
        """See ``ActionDistribution``."""
        mean, log_std = _mean_and_log_std(outputs, self._num_components, xp)
        return _logprobs(mean, log_std, actions.reshape(mean.shape), xp).sum(axis=-1)

    def entropy(self, outputs: Any, xp: ArrayModule) -> Any:
        """See ``ActionDistribution``."""
        _, log_std = _mean_and_log_std(outputs, self._num_components, xp)
        return (log_std + (0.5 + LOG_SQRT_2PI)).sum(axis=-1)

    def logprobs_and_entropy(self, outputs: Any, actions: Any, xp: ArrayModule) -> tuple[Any, Any]:
        """See ``ActionDistribution``."""
        return self.logprobs(outputs, actions, xp), self.entropy(outputs, xp)

    def differentiated(self, outputs_BP: Rows, actions: NDArray[Any]) -> Differentiated:
        """See ``DifferentiatedDistribution``.

        ∂ log π/∂μ = e/σ, ∂ log π/∂ log σ = e² − 1 and ∂H/∂ log σ = 1 with e = (a − μ)/σ.
        """
        mean_BK, log_std_BK = _mean_and_log_std(outputs_BP, self._num_components, np)
        precision_BK = np.exp(-log_std_BK)
        errors_BK = (actions.reshape(mean_BK.shape) - mean_BK) * precision_BK
        logprobs_B = _log_densities(errors_BK, log_std_BK).sum(axis=-1)
        # Beyond the bounds a deviation is constant.
        within_BK = outputs_BP[:, self._num_components :] == log_std_BK

        def by_outputs(by_logprobs_B: Rows, by_entropy_B: Rows) -> Rows:
            by_mean_BK = by_logprobs_B[:, None] * errors_BK * precision_BK
            by_log_std_BK = by_logprobs_B[:, None] * (errors_BK * errors_BK - 1.0) + by_entropy_B[:, None]
            return np.concatenate([by_mean_BK, by_log_std_BK * within_BK], axis=1)

        return Differentiated(logprobs_B, self.entropy(outputs_BP, np), by_outputs)

    def sample(
        self, outputs_BP: NDArray[np.float32], rng: np.random.Generator
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """See ``ActionDistribution``."""
        mean_BK, log_std_BK = _mean_and_log_std(outputs_BP, self._num_components, np)
        noise_BK = rng.standard_normal((len(outputs_BP), self._num_components), dtype=np.float32)
        actions_BK = mean_BK + np.exp(log_std_BK) * noise_BK
        logprobs_B = _log_densities(noise_BK, log_std_BK).sum(axis=1)
        return actions_BK.reshape(-1, *self.action_shape), logprobs_B

    def mode(self, outputs_BP: NDArray[np.float32]) -> NDArray[np.float32]:
        """The means."""
        return outputs_BP[:, : self._num_components].reshape(-1, *self.action_shape)

    def environment_actions(self, actions: NDArray[np.float32]) -> NDArray[Any]:
        """See ``ActionDistribution``."""
        return self._bounds.actions(actions)


class SquashedGaussian:
    """tanh of independent Gaussians whose deviations depend on the observation, as SAC uses (Haarnoja 2018, app. C).

    Recorded actions are in (-1, 1), and their logprobs are densities there. Every component needs both bounds.
    """

    action_dtype = "float32"
    num_shared_outputs = 0

    def __init__(self, space: BoxSpace) -> None:
        """Raises ConfigError if a component lacks a bound."""
        self._bounds = _Bounds(space)
        if not self._bounds.are_all_finite():
            raise ConfigError(
                "Squashed actions need bounds",
                why=f"the environment's actions reach from {space.low} to {space.high}",
                fix="wrap the environment so that its actions have bounds, or set policy.kind to mlp and"
                " policy.squash_actions to false",
            )
        self._num_components = math.prod(space.shape)
        self.action_shape = space.shape
        self.num_outputs = 2 * self._num_components
        nodes_Q, weights_Q = np.polynomial.hermite_e.hermegauss(QUADRATURE_NODES)
        self._nodes_Q = nodes_Q.astype(np.float32)
        self._weights_Q = (weights_Q / weights_Q.sum()).astype(np.float32)

    def logprobs(self, outputs: Any, actions: Any, xp: ArrayModule) -> Any:
        """See ``ActionDistribution``."""
        mean, log_std = _mean_and_log_std(outputs, self._num_components, xp)
        inner = xp.arctanh(xp.clip(actions.reshape(mean.shape), -SQUASHED_MAX, SQUASHED_MAX))
        return (_logprobs(mean, log_std, inner, xp) - _log_slope(inner, xp)).sum(axis=-1)

    def entropy(self, outputs: Any, xp: ArrayModule) -> Any:
        """The entropy before tanh plus the mean logarithm of tanh's slope, by Gauss-Hermite quadrature."""
        mean, log_std = _mean_and_log_std(outputs, self._num_components, xp)
        nodes_Q = constant(self._nodes_Q, outputs, xp)
        inner = mean[..., None] + xp.exp(log_std)[..., None] * nodes_Q
        slopes = (_log_slope(inner, xp) * constant(self._weights_Q, outputs, xp)).sum(axis=-1)
        return (log_std + (0.5 + LOG_SQRT_2PI) + slopes).sum(axis=-1)

    def logprobs_and_entropy(self, outputs: Any, actions: Any, xp: ArrayModule) -> tuple[Any, Any]:
        """See ``ActionDistribution``."""
        return self.logprobs(outputs, actions, xp), self.entropy(outputs, xp)

    def from_noise(self, outputs: Any, noise: Any, xp: ArrayModule) -> tuple[Any, Any]:
        """Actions (..., *action_shape) and logprobs (...) of standard normal noise (..., K).

        Differentiable by ``outputs``: the reparameterised sample of SAC's policy loss.
        """
        mean, log_std = _mean_and_log_std(outputs, self._num_components, xp)
        inner = mean + xp.exp(log_std) * noise
        logprobs = _log_densities(noise, log_std) - _log_slope(inner, xp)
        actions = xp.tanh(inner).reshape(*mean.shape[:-1], *self.action_shape)
        return actions, logprobs.sum(axis=-1)

    def sample(
        self, outputs_BP: NDArray[np.float32], rng: np.random.Generator
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """See ``ActionDistribution``. The logprob is that of the recorded action, clipped inside (-1, 1)."""
        noise_BK = rng.standard_normal((len(outputs_BP), self._num_components), dtype=np.float32)
        actions, _ = self.from_noise(outputs_BP, noise_BK, np)
        actions = np.clip(actions, np.float32(-SQUASHED_MAX), np.float32(SQUASHED_MAX))
        return actions, self.logprobs(outputs_BP, actions, np)

    def mode(self, outputs_BP: NDArray[np.float32]) -> NDArray[np.float32]:
        """Tanh of the means, which is greedy and not the density's mode."""
        return np.tanh(outputs_BP[:, : self._num_components]).reshape(-1, *self.action_shape)

    def environment_actions(self, actions: NDArray[np.float32]) -> NDArray[Any]:
        """See ``ActionDistribution``."""
        return self._bounds.actions(actions)


class _Bounds:
    """Converts actions in units of the policy to the environment's bounds."""

    def __init__(self, space: BoxSpace) -> None:
        if not np.issubdtype(np.dtype(space.dtype), np.floating):
            raise ConfigError(
                f"Actions of the type {space.dtype} in a Box have no distribution here",
                why="a Gaussian is continuous",
                fix="wrap the environment so that its actions are MultiDiscrete, or a Box of float32",
            )
        low, high = _per_component(space.low, space.shape), _per_component(space.high, space.shape)
        has_low, has_high = np.abs(low) < BOUND_MAX, np.abs(high) < BOUND_MAX
        self._bounded = has_low & has_high
        self._low = np.where(has_low, low, -np.inf)
        self._high = np.where(has_high, high, np.inf)
        self._scale = np.where(self._bounded, (high - low) / 2.0, 1.0)
        self._middle = np.where(self._bounded, low + self._scale, 0.0)
        self._dtype = np.dtype(space.dtype)

    def are_all_finite(self) -> bool:
        """Whether each component has both bounds."""
        return bool(self._bounded.all())

    def actions(self, actions: NDArray[np.float32]) -> NDArray[Any]:
        """In units of the environment, inside of its bounds, of its type."""
        scaled = self._middle + self._scale * actions
        return np.clip(scaled, self._low, self._high).astype(self._dtype)


def _per_component(bound: tuple[float, ...], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """One bound for all components, or one for each."""
    return np.broadcast_to(np.array(bound).reshape(() if len(bound) == 1 else shape), shape)


def _mean_and_log_std(outputs: Any, num_components: int, xp: ArrayModule) -> tuple[Any, Any]:
    log_std = xp.clip(outputs[..., num_components:], LOG_STD_MIN, LOG_STD_MAX)
    return outputs[..., :num_components], log_std


def _logprobs(mean: Any, log_std: Any, values: Any, xp: ArrayModule) -> Any:
    """Log densities of each component."""
    return _log_densities((values - mean) * xp.exp(-log_std), log_std)


def _log_densities(errors: Any, log_std: Any) -> Any:
    """Of each component that lies ``errors`` standard deviations from its mean."""
    return -0.5 * errors * errors - log_std - LOG_SQRT_2PI


def _log_slope(inner: Any, xp: ArrayModule) -> Any:
    """log(1 - tanh²(u)) without the cancellation: 2 (log 2 - u - softplus(-2u))."""
    return 2.0 * (math.log(2.0) - inner - xp.logaddexp(-2.0 * inner, xp.zeros_like(inner)))
