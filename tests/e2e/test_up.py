"""``tidegate up`` as it is typed: its exit code, its last line, its folder, and what it leaves behind (nothing)."""

import contextlib
import ipaddress
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
# Of a process with torch in it, far below.
LEARNER_MB_MIN = 100
KILLED_TIMEOUT_S = 10.0
LISTENING_TIMEOUT_S = 120.0
# Small enough to reach a few versions at once, and otherwise the run file that ships.
SMALL_SETTINGS = ("workload.unroll_length=16", "policy.hidden=[16]", "learner.checkpoint_every_steps=2")
SMALL = [argument for setting in SMALL_SETTINGS for argument in ("--set", setting)]


def command(folder: Path, *arguments: str) -> list[str]:
    run = str(ROOT / "runs" / "cartpole.yaml")
    return [sys.executable, "-m", "tidegate.cli.main", "up", run, "--dir", str(folder), *SMALL, *arguments]


def up(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(folder, "--json", "--for", "300s", *arguments),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )


def summary_of(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    assert done.stdout, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def processes_of(folder: Path) -> list[psutil.Process]:
    """The running processes of a folder: services have it on their command line, the broker its config."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or ())
        if (
            str(folder) in line
            and process.info["status"] != psutil.STATUS_ZOMBIE
            and process.pid != os.getpid()
        ):
            found.append(process)
    return found


def left_in(place: Path) -> list[str]:
    """The command lines of processes that runs in a folder left behind; they are ended."""
    # On a busy machine a process that was killed takes a while to end.
    _, left = psutil.wait_procs(processes_of(place), timeout=KILLED_TIMEOUT_S)
    lines = [" ".join(process.info["cmdline"]) for process in left]
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return lines


@pytest.fixture
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """Holds every test to leaving no process behind, and cleans up after one that did."""
    yield
    assert left_in(tmp_path) == []


def is_loopback(address: str) -> bool:
    """Also of an IPv4 address as a socket of IPv6 shows it."""
    parsed = ipaddress.ip_address(address)
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def listening_of(pid: int) -> set[tuple[str, int]]:
    """Where a process and its descendants listen."""
    root = psutil.Process(pid)
    found: set[tuple[str, int]] = set()
    for process in [root, *root.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            found |= {
                (each.laddr.ip, each.laddr.port)
                for each in process.net_connections(kind="inet")
                if each.status == psutil.CONN_LISTEN
            }
    return found


def undocumented_files(folder: Path) -> list[str]:
    """Files of a run folder that no row of docs/run_folder.md names."""
    rows = [line for line in (ROOT / "docs/run_folder.md").read_text().splitlines() if line.startswith("| `")]
    names = [name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])]
    patterns = [re.sub(r"<[a-z]+>", "*", name) + ("*" if name.endswith("/") else "") for name in names]
    files = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    belonging = [name for name in files if not name.endswith((".sqlite-wal", ".sqlite-shm"))]
    return [name for name in belonging if not any(fnmatch(name, pattern) for pattern in patterns)]


def begin(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command(folder, *arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    )


def wait_for_version(process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if "training" in line:
            return
    raise AssertionError("the platform ended before it trained")


@dataclass(frozen=True)
class Interrupted:
    """A run that was interrupted while it trained; ``listening``: where its processes did before."""

    exit_code: int
    output: str
    summary: dict[str, Any]
    listening: set[tuple[str, int]]


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interrupted]:
    """One run for the tests that read what it was and how it ended."""
    place = tmp_path_factory.mktemp("interrupted")
    folder = place / "run"
    process = begin(folder, "--until", "version_step>=1000000", "--for", "300s")
    try:
        wait_for_version(process)
        addresses = json.loads((folder / "run.json").read_text())["addresses"]
        ports = {int(address.rpartition(":")[2]) for each in addresses.values() for address in each}
        # It trains once one of its actors works.
        deadline_s = time.monotonic() + LISTENING_TIMEOUT_S
        listening = listening_of(process.pid)
        while not ports <= {port for _, port in listening}:
            assert time.monotonic() < deadline_s, "a service does not listen where it says"
            time.sleep(0.1)
            listening = listening_of(process.pid)
    finally:
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=200)
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    yield Interrupted(process.returncode, output, summary, listening)
    assert left_in(place) == []


def test_every_process_of_a_run_listens_on_loopback_only(interrupted: Interrupted) -> None:
    assert {(ip, port) for ip, port in interrupted.listening if not is_loopback(ip)} == set()


def test_interrupt_drains_everything_and_the_accounting_balances(interrupted: Interrupted) -> None:
    assert interrupted.exit_code == 1
    assert interrupted.summary["ended_by"] == "interrupted", interrupted.output
    assert interrupted.summary["audit"]["balanced"]


@pytest.mark.usefixtures("nothing_left")
def test_run_reaches_its_target_continues_in_its_folder_and_is_forked(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = up(folder, "--until", "version_step>=4")
    assert first.returncode == 0, first.stdout + first.stderr
    summary = summary_of(first)
    assert summary["reached"]
    assert summary["audit"]["balanced"]
    assert summary["audit"]["max_lag_trained"] <= 2
    assert summary["restarts"] == {}
    assert summary["memory_peak_mb"]["learner"] > LEARNER_MB_MIN, "however soon the run was over"
    for name in ("run.json", "summary.json", "report.html", "learner/steps.jsonl", "admission/stats.jsonl"):
        assert (folder / name).is_file(), name
    assert undocumented_files(folder) == []

    again = up(folder, "--until", f"version_step>={summary['versions'] + 3}")
    assert again.returncode == 0, again.stdout + again.stderr
    resumed = summary_of(again)
    assert resumed["run_id"] == summary["run_id"]
    assert resumed["audit"]["balanced"]
    assert resumed["audit"]["trained_twice"] == 0
    assert resumed["audit"]["admitted"] > summary["audit"]["admitted"]
    # It went on from the checkpoint, in a lineage of its own.
    assert resumed["version"].partition("@")[0] != summary["version"].partition("@")[0]

    parent = str(folder)
    forked = subprocess.run(
        [
            sys.executable, "-m", "tidegate.cli.main", "fork", parent, "--dir", str(tmp_path / "fork"), "--json",
            "--until", f"version_step>={resumed['versions'] + 3}", "--for", "300s", "--set", "seed=7",
        ],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert forked.returncode == 0, forked.stdout + forked.stderr
    fork = summary_of(forked)
    assert fork["run_id"] != resumed["run_id"]
    assert fork["forked_from"].startswith(f"{resumed['run_id']} at {resumed['version'].partition('@')[0]}@")
    assert fork["audit"]["balanced"]
    assert fork["audit"]["max_lag_trained"] <= 2

    audit = subprocess.run(
        [sys.executable, "-m", "tidegate.cli.main", "audit", "--json", "--dir", str(folder)],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    assert json.loads(audit.stdout) == resumed["audit"]


@pytest.mark.usefixtures("nothing_left")
def test_target_that_is_not_reached_in_time_is_a_failure(tmp_path: Path) -> None:
    done = up(tmp_path / "run", "--until", "version_step>=1000000", "--for", "3s")
    assert done.returncode == 1
    assert not summary_of(done)["reached"]


@pytest.mark.usefixtures("nothing_left")
def test_folder_in_use_and_folder_of_another_run_are_refused(tmp_path: Path) -> None:
    process = begin(tmp_path / "run", "--until", "version_step>=1000000")
    wait_for_version(process)
    second = up(tmp_path / "run")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert second.returncode == 4
    assert "in use by another `tidegate up`" in second.stderr
    assert "Traceback" not in second.stderr
    other = up(tmp_path / "run", "--set", "run=other")
    assert other.returncode == 2
    assert "belongs to run 'cartpole'" in other.stderr


def test_taken_broker_port_is_named_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = up(tmp_path / "run", "--set", f"broker_port={port}")
    assert done.returncode == 2
    assert f"Port {port} (broker_port) is taken" in done.stderr
    assert not (tmp_path / "run").exists()
