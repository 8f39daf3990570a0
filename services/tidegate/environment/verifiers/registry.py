"""Verifiers from their sections of the run file; dependencies are imported when one is opened."""

from collections.abc import Callable, Mapping

from tidegate.core.errors import ConfigError
from tidegate.environment.sandbox.port import Sandbox, SandboxLimits
from tidegate.environment.verifiers.code import CodeVerifier
from tidegate.environment.verifiers.port import Verifier
from tidegate.environment.verifiers.python import PythonVerifier
from tidegate.environment.verifiers.settings import (
    ClassifierSettings,
    CodeSettings,
    JudgeSettings,
    PythonSettings,
    VerifierSettings,
)


def make_verifier(
    settings: VerifierSettings,
    *,
    environ: Mapping[str, str],
    isolated: Callable[[], Sandbox],
    limits: SandboxLimits,
    folder: str = "",
) -> Verifier:
    """The verifier of a section.

    ``environ`` holds the key that the section names; ``isolated`` starts the sandbox, ``limits`` are those of one run.
    ``folder``: of the run file, where own code is looked for.

    Raises:
        ConfigError: the key is not set, or what the verifier is built on is not installed, or there is no such code.
    """
    match settings:
        case JudgeSettings():
            return _judge(settings, environ=environ)
        case ClassifierSettings():
            from tidegate.environment.verifiers.classifier import Classifier

            return Classifier(settings)
        case CodeSettings():
            return CodeVerifier(settings, isolated=isolated, limits=limits)
        case PythonSettings():
            return PythonVerifier(settings, folder=folder)


def _judge(settings: JudgeSettings, *, environ: Mapping[str, str]) -> Verifier:
    api_key = environ.get(settings.api_key_env, "") if settings.api_key_env else ""
    if settings.api_key_env and not api_key:
        raise ConfigError(
            f"The judge's key is missing: the environment variable {settings.api_key_env} is empty",
            fix="set it for the environment service, or leave api_key_env out",
        )
    try:
        from tidegate.environment.verifiers.judge import JudgeVerifier
    except ImportError as error:
        raise ConfigError("A judge needs aiohttp", why=str(error), fix="install tidegate[llm]") from error
    return JudgeVerifier(settings, api_key=api_key)
