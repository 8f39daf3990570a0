"""Opens the environments of a run as its run file configures them: arguments, wrappers, stacked frames.

The vector form is the environment's own where it has one, which steps all copies in one call, else copies in this
process, one after the other. Either resets by Gymnasium's NEXT_STEP: segments are recorded so, and no final
observation is lost.
"""

import difflib
import importlib
import inspect
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from tidegate.core.errors import ConfigError, TidegateError
from tidegate.runtime.config import WorkloadConfig
from tidegate.runtime.loading import load
from tidegate.vector_envs.failures import failure_of
from tidegate.vector_envs.finding import find_spec

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

# Defaults of vector forms that this platform needs otherwise; ``workload.env_kwargs`` has the last word.
NATIVE_DEFAULTS: dict[str, dict[str, Any]] = {
    # Rewards are recorded raw, and the learner clips them; a service process has one thread for one core.
    "ale_py.vector_env:AtariVectorEnv": {"reward_clipping": False, "num_threads": 1},
}
# An argument of ``gymnasium.make`` and of vector forms, which a constructor need not name.
STEP_LIMIT = "max_episode_steps"
# Pictures as arrays, as Gymnasium names it.
RENDER_MODE = "rgb_array"
# Arguments that the platform sets, or that change what it relies on.
RESERVED = (
    "id",
    "num_envs",
    "render_mode",
    "vectorization_mode",
    "vector_kwargs",
    "wrappers",
    "disable_env_checker",
    "autoreset_mode",
)


def open_vector_env(
    workload: WorkloadConfig, *, num_envs: int, checked: bool = False, draws: bool = False
) -> Any:
    """A Gymnasium ``VectorEnv`` of ``num_envs`` environments of segments, not reset yet; the caller closes it.

    ``checked``: what copies return is checked, and refused with a sentence. Otherwise each copy is behind a guard
    (``guarded``, which is ``envs.unwrapped``), so that its faults cost its own episodes. ``draws``: ``render`` returns
    pictures, where the environment ``can_draw``.

    Raises:
        NotFoundError: there is no such environment, or what it needs is not installed.
        ConfigError: its arguments, a wrapper or its way to reset do not fit, or its code fails.
    """
    env_id = workload.env
    spec = find_spec(env_id)
    with quiet():
        render_mode = RENDER_MODE if draws and can_draw(spec) else None
        envs = _open(
            spec, env_id, workload.env_kwargs, num_envs=num_envs, checked=checked, render_mode=render_mode
        )
        try:
            _check_resets(env_id, envs)
            # Both import Gymnasium, which is known to be installed only here.
            envs = load("tidegate.vector_envs.wrappers:wrapped")(envs, workload.wrappers, env_id=env_id)
            if workload.frame_stack > 1:
                envs = load("tidegate.vector_envs.frame_stack:FrameStack")(envs, workload.frame_stack)
        except TidegateError:
            envs.close()
            raise
    return envs


def has_native_form(spec: "EnvSpec") -> bool:
    """Whether the environment has a vector form of its own that can be used: none with wrappers for single copies."""
    return spec.vector_entry_point is not None and not spec.additional_wrappers


def can_draw(spec: "EnvSpec") -> bool:
    """Whether the form that is opened takes a ``render_mode``; Atari's own vector form does not."""
    entry_point = spec.vector_entry_point if has_native_form(spec) else spec.entry_point
    parameters = inspect.signature(_entry_point(entry_point)).parameters.values()
    return any(each.name == "render_mode" or each.kind is each.VAR_KEYWORD for each in parameters)


@contextmanager
def quiet() -> Generator[None, None, None]:
    """Without Gymnasium's warnings, such as those of unusual bounds: what matters here is checked and raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _open(
    spec: "EnvSpec",
    env_id: str,
    env_kwargs: Mapping[str, Any],
    *,
    num_envs: int,
    checked: bool,
    render_mode: str | None,
) -> Any:
    gymnasium: Any = importlib.import_module("gymnasium")
    # It imports Gymnasium, which is known to be installed only here.
    guard = load("tidegate.vector_envs.guarded:guard")
    fix = "correct workload.env_kwargs or the environment's code" if env_kwargs else ""
    drawing = {} if render_mode is None else {"render_mode": render_mode}
    try:
        if has_native_form(spec):
            form = _entry_point(spec.vector_entry_point)
            _check_arguments(env_id, form, env_kwargs, also_allowed=())
            arguments = {**NATIVE_DEFAULTS.get(str(spec.vector_entry_point), {}), **env_kwargs, **drawing}
            if "autoreset_mode" in inspect.signature(form).parameters:
                arguments["autoreset_mode"] = gymnasium.vector.AutoresetMode.NEXT_STEP
            make = partial(
                gymnasium.make_vec,
                spec,
                num_envs=num_envs,
                vectorization_mode="vector_entry_point",
                **arguments,
            )
            return make() if checked else guard(env_id, make)
        _check_arguments(env_id, _entry_point(spec.entry_point), env_kwargs, also_allowed=(STEP_LIMIT,))
        # Gymnasium's checker warns, and costs a call a step.
        arguments = {"disable_env_checker": True, **env_kwargs, **drawing}
        wrappers = [load("tidegate.vector_envs.results:CheckedResults")] if checked else []
        make = partial(
            gymnasium.make_vec,
            spec,
            num_envs=num_envs,
            vectorization_mode="sync",
            wrappers=wrappers,
            **arguments,
        )
        return make() if checked else guard(env_id, make)
    except TidegateError:
        raise
    except Exception as error:  # an environment is third-party code
        raise failure_of(env_id, "when it is made", error, fix=fix) from error


def _entry_point(entry_point: Any) -> Callable[..., Any]:
    """The constructor, which a registration may name as ``module:name``."""
    return entry_point if callable(entry_point) else load(str(entry_point))


def _check_arguments(
    env_id: str,
    constructor: Callable[..., Any],
    env_kwargs: Mapping[str, Any],
    *,
    also_allowed: tuple[str, ...],
) -> None:
    """Refuse arguments that the constructor does not have.

    Raises:
        ConfigError: an argument is unknown, or the platform sets it.
    """
    for name in env_kwargs:
        if name in RESERVED:
            raise ConfigError(
                f"workload.env_kwargs.{name} cannot be set", why="Tidegate sets it", fix="remove it"
            )
    parameters = inspect.signature(constructor).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = [*(parameter.name for parameter in parameters), *also_allowed]
    known = [name for name in known if name not in RESERVED]
    for name in env_kwargs:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            raise ConfigError(
                f"Environment {env_id!r} has no argument {name!r}",
                why=f"it takes {', '.join(known) or 'none'}",
                fix=f"set workload.env_kwargs.{close[0]}" if close else f"remove workload.env_kwargs.{name}",
            )


def _check_resets(env_id: str, envs: Any) -> None:
    mode = str(getattr(envs.metadata.get("autoreset_mode"), "value", "unknown"))
    if mode != "NextStep":
        raise ConfigError(
            f"The vector form of environment {env_id!r} resets by {mode}",
            why="segments are recorded with Gymnasium's NEXT_STEP autoreset: no final observation is lost then",
            fix="declare autoreset_mode NEXT_STEP in its metadata and reset so, or register no vector form",
        )
