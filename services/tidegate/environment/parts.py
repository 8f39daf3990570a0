"""Parts of the environment service that are made from its settings alone."""

import os
from collections.abc import Callable

from tidegate.core.errors import TidegateError
from tidegate.environment.config import EnvironmentConfig, times_of
from tidegate.environment.conversations.tools import Conditions, Tools
from tidegate.environment.own_code.pool import OwnCodeSettings
from tidegate.environment.sandbox.port import IsolatedSandbox, Sandbox
from tidegate.environment.verifiers.port import Verifier
from tidegate.environment.verifiers.registry import make_verifier


def bounds_of(config: EnvironmentConfig) -> OwnCodeSettings:
    """What the children of own code may take."""
    return OwnCodeSettings(
        num_processes=config.verifier_processes,
        deadline_s=config.score_deadline_s,
        start_deadline_s=config.verifier_start_deadline_s,
        memory_bytes=config.verifier_memory_bytes,
    )


async def open_verifiers(
    config: EnvironmentConfig, sandbox: IsolatedSandbox, *, folder: str
) -> dict[str, Verifier]:
    """The run's verifiers, started, so that a ready service can score; on an error the sandbox is closed too.

    Raises:
        ConfigError: one can never score, as it is configured.
    """
    verifiers: dict[str, Verifier] = {}
    try:
        for name, section in config.verifiers.items():
            verifiers[name] = make_verifier(
                section,
                environ=os.environ,
                isolated=_isolated(sandbox),
                limits=config.sandbox,
                folder=folder,
            )
            await verifiers[name].start()
    except TidegateError:
        await close_verifiers(verifiers)
        sandbox.close()
        raise
    return verifiers


async def close_verifiers(verifiers: dict[str, Verifier]) -> None:
    """Release what they hold."""
    for verifier in verifiers.values():
        await verifier.close()


def _isolated(sandbox: IsolatedSandbox) -> Callable[[], Sandbox]:
    """The sandbox once it isolates; else the call raises ``IsolationUnavailableError``."""

    def isolated() -> Sandbox:
        sandbox.start()
        return sandbox

    return isolated


def tools_of(config: EnvironmentConfig, *, sandbox: IsolatedSandbox) -> Tools:
    """What conversations call."""
    return Tools(
        conditions=Conditions(latency=times_of(config.tool_latency), error_share=config.tool_error_share),
        sandbox=_isolated(sandbox),
        limits=config.sandbox,
    )
