"""helm as a child process: its command lines, its deadline, its bounded output, and what its failures mean."""

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tidegate.core.errors import ConfigError, TidegateError, UnavailableError
from tidegate.operator.config import HelmConfig
from tidegate.operator.objects import RunKey

# Of the end of each output; a refusal by the schema or the templates is some hundred bytes.
OUTPUT_BYTES_MAX = 64 * 1024
READ_BYTES = 8192
# Beyond helm's own --timeout, which counts from the first request on; then until it is killed.
DEADLINE_MARGIN_S = 60.0
END_S = 20.0
# On the Secrets in which helm keeps a release: it is one of this operator's.
LABEL = "tidegate-operator"
BUSY = "another operation (install/upgrade/rollback) is in progress"
_REFUSALS = ("values don't meet the specifications of the schema", "execution error at (")
_HOOK = re.compile(r"(pre-install|pre-upgrade)")
_TEMPLATE = re.compile(r"execution error at \([^)]*\): (.*)", re.DOTALL)
# Variables that helm and its client of the API server read.
INHERITED = (
    "PATH",
    "HOME",
    "KUBECONFIG",
    "KUBERNETES_SERVICE_HOST",
    "KUBERNETES_SERVICE_PORT",
    "HTTPS_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "TMPDIR",
)


class HelmError(TidegateError):
    """helm failed in a way that another attempt may not."""

    status = "UNAVAILABLE"
    retryable = True


class HelmBusyError(HelmError):
    """A helm that was killed left the release in the middle of an operation."""


class HelmHookError(HelmError):
    """The check before an installation or upgrade did not succeed: its pod knows why."""


class RunRefusedError(TidegateError):
    """The chart's schema, its templates or the check refuse the run: another attempt would be refused as well."""

    status = "INVALID_ARGUMENT"


class HelmResult(msgspec.Struct, frozen=True):
    """Exit code, and the end of what helm wrote on both outputs."""

    exit_code: int
    output: str


def apply_command(config: HelmConfig, key: RunKey, *, values: Path, chart: str = "") -> list[str]:
    """Install or upgrade a release. It waits for hooks alone: readiness is observed, not waited for."""
    return [
        config.program,
        "upgrade",
        key.name,
        chart or config.chart,
        "--install",
        f"--namespace={key.namespace}",
        f"--values={values}",
        "--reset-values",
        "--skip-crds",
        # Replicas of a learner at 0 are admission's or the operator's, and the upgrade sets them again.
        "--force-conflicts",
        f"--labels={LABEL}=true",
        f"--history-max={config.history_max}",
        f"--timeout={config.timeout_s:.0f}s",
        "--hide-notes",
    ]


def uninstall_command(config: HelmConfig, key: RunKey) -> list[str]:
    """Remove a release; its workloads are there until their pods have ended."""
    return [
        config.program,
        "uninstall",
        key.name,
        f"--namespace={key.namespace}",
        "--ignore-not-found",
        "--cascade=foreground",
        f"--timeout={config.timeout_s:.0f}s",
    ]


def failure_of(result: HelmResult, key: RunKey) -> TidegateError:
    """What a failed helm means."""
    text = result.output.strip()
    if any(refusal in text for refusal in _REFUSALS):
        return RunRefusedError(refusal_sentence(text))
    why = text[-1500:] or f"exit code {result.exit_code}"
    if BUSY in text:
        return HelmBusyError(f"helm found {key} in the middle of an operation", why=why)
    if _HOOK.search(text):
        return HelmHookError(f"the check of {key} did not succeed", why=why)
    return HelmError(f"helm failed for {key}", why=why)


def refusal_sentence(output: str) -> str:
    """What the schema or the templates say, without what helm says around it."""
    found = _TEMPLATE.search(output)
    text = found[1] if found else output.partition("chart(s):")[2] or output
    lines = [line.strip() for line in text.partition("Use --debug flag")[0].splitlines()]
    return "; ".join(line for line in lines if line and line != "tidegate:")


def helm_environment(environ: Mapping[str, str], *, home: Path) -> dict[str, str]:
    """The variables of a helm process: those of the client, and a home that may be written."""
    kept = {name: environ[name] for name in INHERITED if name in environ}
    return {
        **kept,
        "HOME": str(home),
        "HELM_CACHE_HOME": str(home / "cache"),
        "HELM_CONFIG_HOME": str(home / "config"),
        "HELM_DATA_HOME": str(home / "data"),
    }


async def run_helm(command: Sequence[str], *, home: Path, deadline_s: float) -> HelmResult:
    """Run helm to its end. One that is cancelled, or past its deadline, is asked to end and then killed.

    Raises:
        UnavailableError: it did not end by its deadline.
        ConfigError: there is no such program.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=helm_environment(os.environ, home=home),
            start_new_session=True,
        )
    except OSError as error:
        raise ConfigError(
            f"{command[0]} cannot be started", why=str(error), fix="name helm by `helm.program`"
        ) from error
    try:
        async with asyncio.timeout(deadline_s):
            output = await _tail(process.stdout)
            return HelmResult(await process.wait(), output)
    except TimeoutError as error:
        raise UnavailableError(
            f"helm {command[1]} did not end within {deadline_s:.0f} s", fix="raise `helm.timeout_s`"
        ) from error
    finally:
        await _end(process)


async def _tail(stream: asyncio.StreamReader | None) -> str:
    """The last ``OUTPUT_BYTES_MAX`` of a stream, which is read to its end."""
    assert stream is not None
    kept = b""
    while chunk := await stream.read(READ_BYTES):
        kept = (kept + chunk)[-OUTPUT_BYTES_MAX:]
    return kept.decode(errors="replace")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Helm marks its release as failed when it is asked to end, so it gets the time for that."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(END_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
