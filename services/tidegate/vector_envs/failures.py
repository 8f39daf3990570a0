"""Failures of environments, which are third-party code, as one sentence: what failed, where, and what helps.

Whatever an environment, its module or a wrapper raises ends here, so that a run is refused with the line of the user's
own code or with the command that installs a missing package.
"""

import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from tidegate.core.errors import ConfigError, NotFoundError, TidegateError

# The package on PyPI that provides a module, where the names differ or an extra of this project has it.
PACKAGES: dict[str, str] = {
    "Box2D": "box2d pygame",
    "ale_py": "ale-py",
    "cv2": "opencv-python-headless",
    "gymnasium": "gymnasium",
    "gymnasium_robotics": "gymnasium-robotics",
    "jax": "jax",
    "minigrid": "minigrid",
    "mujoco": "mujoco",
    "pygame": "pygame",
}
# Code of these is between Tidegate and the environment; a user looks for the line in their own.
_LIBRARIES = ("gymnasium", "importlib", "numpy", "tidegate")
MESSAGE_CHARACTERS_MAX = 400


def install_command(packages: str) -> str:
    """The command that installs packages into the environment of this process."""
    python = Path(sys.executable)
    if python.is_relative_to(Path.cwd()):
        python = python.relative_to(Path.cwd())
    return f"{python} -m pip install {packages}"


def missing_package(env_id: str, module: str) -> NotFoundError:
    """The error for an environment that needs a module which is not installed."""
    name = module.partition(".")[0]
    package = PACKAGES.get(name, name.replace("_", "-"))
    return NotFoundError(
        f"Environment {env_id!r} needs the package {package.split()[0]}, which is not installed",
        why=f"there is no module {module}",
        fix=f"install it: {install_command(package)}",
    )


def failure_of(env_id: str, doing: str, error: Exception, *, fix: str = "") -> TidegateError:
    """The error for an exception of an environment's code; ``doing`` names the step, such as ``in reset``.

    A missing module is a ``NotFoundError`` with the command that installs its package, anything else a
    ``ConfigError`` with the line of the environment's code.
    """
    for cause in _causes(error):
        if isinstance(cause, TidegateError):
            return cause
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            return missing_package(env_id, cause.name)
    first = next(reversed(list(_causes(error))))
    told = f"{type(first).__name__}: {first}" if str(first) else type(first).__name__
    return ConfigError(
        f"Environment {env_id!r} fails {doing}",
        why=" ".join(f"{told}{_place_of(error)}".split())[:MESSAGE_CHARACTERS_MAX],
        fix=fix or "correct its code, then try it: tidegate env " + env_id,
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exception and those that it was raised from, last raised first."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _place_of(error: Exception) -> str:
    """The innermost line of code that belongs to no library, such as `` at my_module.py:12``; empty if none does."""
    for cause in reversed(list(_causes(error))):
        if isinstance(cause, SyntaxError) and cause.filename:
            return f" at {_short(cause.filename)}:{cause.lineno}"
        for frame, line in reversed(list(traceback.walk_tb(cause.__traceback__))):
            filename = frame.f_code.co_filename
            # By the module and not by the path: a user's folder may have the name of a library.
            package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
            if not filename.startswith("<") and package not in _LIBRARIES:
                return f" at {_short(filename)}:{line}"
    return ""


def _short(filename: str) -> str:
    path = Path(filename)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
