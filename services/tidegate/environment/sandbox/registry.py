"""The sandbox that the run file chooses. There is no other one to fall back to."""

from collections.abc import Mapping

from tidegate.environment.sandbox.linux import LinuxSandbox
from tidegate.environment.sandbox.pods.pool import Log
from tidegate.environment.sandbox.pods.sandbox import PodsSandbox, access_from
from tidegate.environment.sandbox.port import IsolatedSandbox, SandboxLimits
from tidegate.environment.sandbox.settings import Isolation, LinuxIsolation, PodsIsolation


def open_sandbox(
    settings: Isolation, limits: SandboxLimits, *, max_runs: int, environ: Mapping[str, str], log: Log
) -> IsolatedSandbox:
    """The sandbox of ``settings``, not started yet. ``limits`` are those of the run file, ``max_runs`` run at once.

    Raises:
        ConfigError: the settings can never work here.
    """
    match settings:
        case LinuxIsolation():
            return LinuxSandbox(max_runs=max_runs)
        case PodsIsolation():
            access = access_from(settings, environ.get)
            return PodsSandbox(settings, limits, access=access, max_runs=max_runs, log=log)
