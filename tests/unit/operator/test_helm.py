"""helm as a child process: command lines, deadline, bounded output, and what its failures mean."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tidegate.core.errors import ConfigError, TidegateError, UnavailableError
from tidegate.operator import helm
from tidegate.operator.config import HelmConfig
from tidegate.operator.helm import (
    BUSY,
    OUTPUT_BYTES_MAX,
    HelmBusyError,
    HelmError,
    HelmHookError,
    HelmResult,
    RunRefusedError,
    apply_command,
    failure_of,
    helm_environment,
    run_helm,
    uninstall_command,
)
from tidegate.operator.objects import RunKey

KEY = RunKey("team-a", "rl")
CONFIG = HelmConfig(program="/helm", chart="/chart", timeout_s=90.0, history_max=4)


def test_installing_is_one_command_that_waits_for_hooks_alone() -> None:
    assert apply_command(CONFIG, KEY, values=Path("/tmp/values.json")) == [
        "/helm",
        "upgrade",
        "rl",
        "/chart",
        "--install",
        "--namespace=team-a",
        "--values=/tmp/values.json",
        "--reset-values",
        "--skip-crds",
        "--force-conflicts",
        "--labels=tidegate-operator=true",
        "--history-max=4",
        "--timeout=90s",
        "--hide-notes",
    ]


def test_removing_is_one_command_that_succeeds_where_nothing_is() -> None:
    command = uninstall_command(CONFIG, KEY)
    assert command[:4] == ["/helm", "uninstall", "rl", "--namespace=team-a"]
    assert {"--ignore-not-found", "--cascade=foreground"} <= set(command)


@pytest.mark.parametrize(
    ("output", "kind", "sentence"),
    [
        (
            "Error: values don't meet the specifications of the schema(s) in the following chart(s):\ntidegate:\n"
            "- at '/run': additional properties 'stalenes' not allowed\n- at '/actor/gpu': got string, want integer\n",
            RunRefusedError,
            "- at '/run': additional properties 'stalenes' not allowed; - at '/actor/gpu': got string, want integer",
        ),
        (
            "Error: execution error at (tidegate/templates/validate.yaml:1:4): nats.url is set and nats.mode builtin. "
            "Leave it out\n\nUse --debug flag to render out invalid YAML\n",
            RunRefusedError,
            "nats.url is set and nats.mode builtin. Leave it out",
        ),
        (f"Error: UPGRADE FAILED: {BUSY}", HelmBusyError, ""),
        ("Error: pre-upgrade hooks failed: job rl-check failed", HelmHookError, ""),
        ("Error: failed pre-install: 1 error occurred", HelmHookError, ""),
        ("Error: Kubernetes cluster unreachable", HelmError, ""),
        ("", HelmError, ""),
    ],
)
def test_failures_tell_refusals_from_what_another_attempt_may_change(
    output: str, kind: type[TidegateError], sentence: str
) -> None:
    error = failure_of(HelmResult(1, output), KEY)
    assert type(error) is kind
    assert error.retryable == (kind is not RunRefusedError)
    if sentence:
        assert error.what == sentence


def test_helm_gets_the_variables_of_its_client_and_a_home_of_its_own(tmp_path: Path) -> None:
    environ = {"PATH": "/bin", "KUBERNETES_SERVICE_HOST": "10.0.0.1", "SECRET": "x", "HOME": "/root"}
    found = helm_environment(environ, home=tmp_path)
    assert found["KUBERNETES_SERVICE_HOST"] == "10.0.0.1"
    assert "SECRET" not in found
    assert found["HOME"] == str(tmp_path)
    assert found["HELM_CACHE_HOME"].startswith(str(tmp_path))


def program(folder: Path, text: str) -> list[str]:
    """A command whose program is a script of Python."""
    path = folder / "helm"
    path.write_text(f"#!{sys.executable} -S\n{text}\n")
    path.chmod(0o700)
    return [str(path), "upgrade", "rl"]


async def test_both_outputs_are_kept_to_their_end(tmp_path: Path) -> None:
    command = program(
        tmp_path,
        f"import sys\nsys.stdout.write('x' * {3 * OUTPUT_BYTES_MAX})\nsys.stdout.flush()\n"
        "sys.stderr.write('the end')\nsys.exit(3)",
    )
    result = await run_helm(command, home=tmp_path, deadline_s=60.0)
    assert result.exit_code == 3
    assert len(result.output) == OUTPUT_BYTES_MAX
    assert result.output.endswith("xthe end")


async def test_past_its_deadline_helm_is_ended(tmp_path: Path) -> None:
    command = program(tmp_path, "import time\ntime.sleep(300)")
    with pytest.raises(UnavailableError, match="did not end within 1 s"):
        await run_helm(command, home=tmp_path, deadline_s=1.0)


async def test_a_helm_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helm, "END_S", 0.3)
    pid = tmp_path / "pid"
    command = program(
        tmp_path,
        "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"open({str(pid)!r}, 'w').write(str(os.getpid()))\ntime.sleep(300)",
    )
    working = asyncio.create_task(run_helm(command, home=tmp_path, deadline_s=600.0))
    async with asyncio.timeout(60.0):
        while not (pid.exists() and pid.read_text()):
            await asyncio.sleep(0.02)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


async def test_without_the_program_the_configuration_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be started"):
        await run_helm([str(tmp_path / "none"), "upgrade"], home=tmp_path, deadline_s=1.0)
