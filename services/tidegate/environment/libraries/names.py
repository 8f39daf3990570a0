"""Names of other libraries' environments in a run file: ``openenv:http://host:port`` and ``verifiers:id``.

Each is played by a class of this package in the processes of own code, with the name and ``workload.env_kwargs`` as its
arguments. Nothing of a library is imported here.
"""

from importlib.machinery import PathFinder
from importlib.util import find_spec

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.environment.libraries.openenv_settings import OpenEnvSettings
from tidegate.environment.libraries.verifiers_settings import VerifiersSettings, named_environment
from tidegate.runtime.config import WorkloadConfig
from tidegate.runtime.own_code.references import OwnReference, search_folders
from tidegate.runtime.prompt_sources import VERIFIERS

OPENENV = "openenv:"


def is_verifiers(env_id: str) -> bool:
    """Whether a name is of an environment of `verifiers`."""
    return env_id.startswith(VERIFIERS)


def is_openenv(env_id: str) -> bool:
    """Whether a name is of an OpenEnv server."""
    return env_id.startswith(OPENENV)


def openenv_settings(workload: WorkloadConfig) -> OpenEnvSettings:
    """The settings of a server in a run file.

    Raises:
        ConfigError: ``workload.env_kwargs`` are none of an OpenEnv server.
    """
    return _converted(
        workload, OpenEnvSettings, url=workload.env.removeprefix(OPENENV), turns_max=workload.turns_max
    )


def library_task_of(workload: WorkloadConfig, *, folder: str) -> OwnReference | None:
    """Where the class for a library's environment is; None for a name of another form. ``folder``: of the run file.

    Raises:
        ConfigError: a package is not installed, or ``workload.env_kwargs`` are none of this library.
    """
    if is_openenv(workload.env):
        settings: OpenEnvSettings | VerifiersSettings = openenv_settings(workload)
        _need("aiohttp", "An OpenEnv server", extra="openenv")
        module, name = "tidegate.environment.libraries.openenv", "OpenEnvTask"
    elif is_verifiers(workload.env):
        settings = named_environment(workload.env, workload.env_kwargs)
        _need("verifiers", workload.env, extra="verifiers")
        _need_environment(settings, folder=folder)
        module, name = "tidegate.environment.libraries.verifiers_task", "VerifiersTask"
    else:
        return None
    return OwnReference(workload.env, module, name, folder, arguments=msgspec.to_builtins(settings))


def _converted(workload: WorkloadConfig, kind: type[OpenEnvSettings], **given: object) -> OpenEnvSettings:
    try:
        return msgspec.convert({**workload.env_kwargs, **given}, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(
            "workload.env_kwargs are no settings of an OpenEnv server",
            why=str(error),
            fix=f"set of {', '.join(name for name in kind.__struct_fields__ if name not in given)}",
        ) from error


def _need(package: str, what: str, *, extra: str) -> None:
    if find_spec(package) is None:
        raise ConfigError(
            f"{what} needs the package {package}, which is not installed",
            fix=f"pip install 'tidegate[{extra}]'",
        )


def _need_environment(settings: VerifiersSettings, *, folder: str) -> None:
    top = settings.module.partition(".")[0]
    if PathFinder.find_spec(top, search_folders(folder)) is None and PathFinder.find_spec(top) is None:
        raise ConfigError(
            f"There is no environment {settings.id!r} of verifiers",
            why=f"it is a module {settings.module}, neither beside the run file nor of an installed package",
            fix=f"install its package into this Python: pip install {top.replace('_', '-')}; or correct workload.env",
        )
