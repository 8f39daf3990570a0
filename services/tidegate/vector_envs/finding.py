"""Finds an environment by its id: one of Gymnasium's, of a package that registers its own, or of the user's module."""

import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidegate.core.errors import NotFoundError
from tidegate.vector_envs.failures import failure_of, install_command, missing_package

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

# Packages that register the environments of a namespace, so that ``ALE/Pong-v5`` is enough.
PROVIDERS: dict[str, str] = {"ALE": "ale_py"}


def find_spec(env_id: str) -> "EnvSpec":
    """Gymnasium's registration of ``EnvId`` or ``module:EnvId``; imports the module, which runs its code.

    Raises:
        NotFoundError: there is no such module or environment, or a package that it needs is not installed.
        ConfigError: the module fails while it is imported.
    """
    if importlib.util.find_spec("gymnasium") is None:
        raise missing_package(env_id, "gymnasium")
    # Environments of Box2D import pygame, which greets on standard output.
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    gymnasium: Any = importlib.import_module("gymnasium")
    module, _, name = env_id.rpartition(":")
    module = module or PROVIDERS.get(name.partition("/")[0] if "/" in name else "", "")
    if module:
        _import_module(env_id, module)
    try:
        return gymnasium.spec(name)
    except gymnasium.error.Error as error:
        why = str(error) if isinstance(error, gymnasium.error.VersionNotFound) else ""
        raise _unknown(env_id, module, name, gymnasium.registry, why=why) from error


def _import_module(env_id: str, module: str) -> None:
    """Import the module of an environment, from the folder where the run was started or an installed package."""
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.append(folder)
        importlib.invalidate_caches()
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        # Of "a.b" both "a" and "a.b" may be missing; any other name is missing inside of the module.
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise failure_of(env_id, f"while {module} is imported", error) from error
        if module in PROVIDERS.values():
            raise missing_package(env_id, module) from error
        raise NotFoundError(
            f"Environment {env_id!r} names the module {module}, which there is not",
            why="it is neither beside the run file, nor where the run is started, nor an installed package",
            fix=f"start the run where {module.replace('.', '/')}.py is, or install its package: "
            + install_command("PACKAGE"),
        ) from error
    except Exception as error:  # the module is third-party code
        raise failure_of(env_id, f"while {module} is imported", error) from error


def _unknown(
    env_id: str, module: str, name: str, registry: "Mapping[str, EnvSpec]", *, why: str
) -> NotFoundError:
    own = [known for known, spec in registry.items() if module and _module_of(spec) == module]
    close = difflib.get_close_matches(name, own or list(registry), n=3, cutoff=0.7) or own[:3]
    if module:
        close = [f"{module}:{known}" for known in close]
    return NotFoundError(
        f"Module {module} registers no environment {name!r}"
        if module
        else f"There is no environment {env_id!r}",
        why=" ".join(why.split()),
        fix=f"set workload.env to {' or '.join(close)}"
        if close
        else "set workload.env to an id of Gymnasium, such as CartPole-v1, or to module:EnvId",
    )


def _module_of(spec: "EnvSpec") -> str:
    """The module of the environment's class, which most often registers it."""
    entry_point = spec.entry_point
    return (
        entry_point.partition(":")[0]
        if isinstance(entry_point, str)
        else str(getattr(entry_point, "__module__", ""))
    )
