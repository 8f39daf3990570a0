"""Checks what ``reset`` and ``step`` of one environment return, before a vector form fails over it obscurely."""

from typing import Any, SupportsFloat, cast

import gymnasium
import numpy as np

from tidegate.core.errors import ConfigError

RESET = "an observation and a dictionary"
STEP = "an observation, the reward, terminated, truncated and a dictionary"


class CheckedResults(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One copy while it is described; the old interface of gym is the usual mistake."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode.

        Raises:
            ConfigError: the result is not an observation of the declared shape and a dictionary.
        """
        result = cast("Any", self.env.reset(seed=seed, options=options))
        if not _is_tuple(result, 2) or not isinstance(result[1], dict):
            raise _unlike(self.env, "reset", result, RESET)
        _check_shape(self.env, "reset", result[0])
        return result

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step once.

        Raises:
            ConfigError: the result has not the five parts of a step, the observation not its declared shape, or the
                reward is no number.
        """
        result = cast("Any", self.env.step(action))
        if not _is_tuple(result, 5) or not isinstance(result[4], dict):
            raise _unlike(self.env, "step", result, STEP)
        _check_shape(self.env, "step", result[0])
        try:
            float(result[1])
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"The reward of {self.env.unwrapped} is {result[1]!r}", why="it is no number"
            ) from error
        return result


def _is_tuple(result: Any, length: int) -> bool:
    return isinstance(result, tuple) and len(cast("tuple[Any, ...]", result)) == length


def _check_shape(env: Any, method: str, observation: Any) -> None:
    """Raises ``ConfigError`` for an observation that its Box cannot hold."""
    space = env.observation_space
    if isinstance(space, gymnasium.spaces.Box) and np.shape(observation) != cast("Any", space).shape:
        raise ConfigError(
            f"{type(env.unwrapped).__name__}.{method} returns an observation of shape {np.shape(observation)}",
            why=f"its observation_space is {space}",
            fix="correct one of the two",
        )


def _unlike(env: Any, method: str, result: object, wanted: str) -> ConfigError:
    found = type(result).__name__
    if isinstance(result, tuple):
        found = f"tuple of {len(cast('tuple[Any, ...]', result))}"
    return ConfigError(
        f"{type(env.unwrapped).__name__}.{method} returns a {found}",
        why=f"Gymnasium expects a tuple with {wanted}",
        fix=f"return {wanted}",
    )
