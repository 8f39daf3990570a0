"""The literal table of ``workload.wrappers``: each setting and Gymnasium's vector wrapper that it configures."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium.wrappers.vector as gym_wrappers
import msgspec
import numpy as np

from tidegate.core.errors import ConfigError, TidegateError
from tidegate.runtime import environment_settings as settings
from tidegate.vector_envs.failures import failure_of

WRAPPERS: dict[type[msgspec.Struct], Callable[..., Any]] = {
    settings.FilterObservation: gym_wrappers.FilterObservation,
    settings.FlattenObservation: gym_wrappers.FlattenObservation,
    settings.GrayscaleObservation: gym_wrappers.GrayscaleObservation,
    settings.ResizeObservation: gym_wrappers.ResizeObservation,
    settings.ReshapeObservation: gym_wrappers.ReshapeObservation,
    settings.RescaleObservation: gym_wrappers.RescaleObservation,
    settings.DtypeObservation: gym_wrappers.DtypeObservation,
    settings.ClipAction: gym_wrappers.ClipAction,
    settings.RescaleAction: gym_wrappers.RescaleAction,
}


def wrapped(envs: Any, wrappers: Sequence[settings.WrapperSettings], *, env_id: str) -> Any:
    """The environments inside of the wrappers, the first one innermost.

    Raises:
        ConfigError: a wrapper does not fit the spaces that it finds.
        NotFoundError: a package that a wrapper needs is not installed.
    """
    for index, wrapper in enumerate(wrappers):
        name = type(wrapper).__name__
        try:
            envs = WRAPPERS[type(wrapper)](envs, **_arguments(wrapper))
        except Exception as error:  # Gymnasium asserts and raises whatever suits it
            failure = failure_of(env_id, f"in the wrapper {name}", error)
            raise (
                _misfit(index, name, envs, error) if isinstance(failure, ConfigError) else failure
            ) from error
    return envs


def _arguments(wrapper: settings.WrapperSettings) -> dict[str, Any]:
    arguments = msgspec.structs.asdict(wrapper)
    if isinstance(wrapper, settings.DtypeObservation):
        return {"dtype": np.dtype(wrapper.dtype).type}
    return arguments


def _misfit(index: int, name: str, envs: Any, error: Exception) -> TidegateError:
    space = envs.single_action_space if name.endswith("Action") else envs.single_observation_space
    kind = "actions" if name.endswith("Action") else "observations"
    why = " ".join(str(error).split()) or type(error).__name__
    return ConfigError(
        f"workload.wrappers.{index}: {name} does not fit the environment's {kind}",
        why=f"they are {space} there; {why[:300]}",
        fix="correct its arguments, remove it, or put another wrapper before it",
    )
