"""A whole platform, started as a person starts it."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.loop_stalls import stalls_in_logs

ROOT = Path(__file__).parents[2]
# Of processes that load torch, on a machine that runs the other tests meanwhile.
START_TIMEOUT_S = 200.0


class Run:
    """One ``tidegate up`` in a folder of its own."""

    def __init__(self, folder: Path, *arguments: str, output: Path) -> None:
        """Start it with its output in a file."""
        self.folder = folder
        self.output = output
        command = [sys.executable, "-m", "tidegate.cli.main", "up", *arguments, "--headless", "--json"]
        with output.open("wb") as written:
            self.process = subprocess.Popen(
                [*command, "--dir", str(folder)], stdout=written, stderr=subprocess.STDOUT, cwd=ROOT
            )

    def processes(self) -> dict[str, dict[str, Any]]:
        """The running processes, by instance name."""
        try:
            return json.loads((self.folder / "processes.json").read_text())["processes"]
        except (FileNotFoundError, json.JSONDecodeError):
            return {}

    def pid(self, instance: str) -> int | None:
        """The process of an instance, None between two lives."""
        return self.processes().get(instance, {}).get("pid")

    def steps(self) -> list[dict[str, Any]]:
        """What the learner wrote about each step so far."""
        try:
            lines = (self.folder / "learner" / "steps.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        steps: list[dict[str, Any]] = []
        for line in lines:
            with contextlib.suppress(json.JSONDecodeError):  # cut by a kill, by a full disk, or not yet whole
                steps.append(json.loads(line))
        return steps

    def log(self, name: str) -> str:
        """What a process has written to its log."""
        return (self.folder / "logs" / f"{name}.log").read_text()

    def tidegate(self, *arguments: str, exit_code: int = 0) -> str:
        """What a command about this run prints, on both outputs if it must fail."""
        command = [sys.executable, "-m", "tidegate.cli.main", *arguments, "--dir", str(self.folder)]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=START_TIMEOUT_S
        )
        assert done.returncode == exit_code, done.stderr
        return done.stdout + done.stderr if exit_code else done.stdout

    def status(self) -> dict[str, Any]:
        """The answer of ``tidegate status``."""
        return json.loads(self.tidegate("status", "--json"))

    def until(self, holds: Callable[[], bool], *, timeout_s: float, what: str) -> float:
        """Wait for a condition of a live run; returns the seconds it took."""
        started_s = time.monotonic()
        while True:
            has_ended = self.process.poll() is not None
            if holds():  # also by what it did last
                return time.monotonic() - started_s
            assert not has_ended, f"the run ended before {what}: {self.tail()}"
            assert time.monotonic() - started_s < timeout_s, f"no {what} in {timeout_s} s: {self.tail()}"
            time.sleep(0.05)

    def until_trains(self, steps: int) -> None:
        """Wait for the first steps."""
        self.until(lambda: len(self.steps()) >= steps, timeout_s=START_TIMEOUT_S, what="training")

    def send(self, pid: int, number: signal.Signals) -> bool:
        """Signal a process of the run; False if it has ended: its number may be that of another program by now."""
        try:
            process = psutil.Process(pid)
            if process.ppid() != self.process.pid:
                return False
            process.send_signal(number)
        except psutil.NoSuchProcess:
            return False
        return True

    def kill(self, instance: str) -> int:
        """``kill -9`` of an instance, of its next process if it is between two lives; returns which it was."""
        killed: list[int] = []

        def is_killed() -> bool:
            pid = self.pid(instance)
            if pid is not None and self.send(pid, signal.SIGKILL):
                killed.append(pid)
            return bool(killed)

        self.until(is_killed, timeout_s=START_TIMEOUT_S, what=f"a process of {instance}")
        return killed[0]

    def wait(self, *, timeout_s: float) -> tuple[int, dict[str, Any]]:
        """The exit code and the summary."""
        code = self.process.wait(timeout=timeout_s)
        summaries = [line for line in self.output.read_text().splitlines() if line.startswith("{")]
        assert summaries, f"no summary: {self.tail()}"
        return code, json.loads(summaries[-1])

    def tail(self) -> str:
        """The end of its output."""
        return "\n".join(self.output.read_text().splitlines()[-15:])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Start runs that end with the test; it fails if an event loop of theirs stood still because it computed."""
    runs: list[Run] = []

    def begin(*arguments: str, folder: Path | None = None) -> Run:
        run = Run(
            folder or tmp_path / f"run-{len(runs)}", *arguments, output=tmp_path / f"run-{len(runs)}.out"
        )
        runs.append(run)
        return run

    yield begin
    for run in runs:
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGKILL)
            run.process.wait(timeout=60)
    stalls = [stall for run in runs for stall in stalls_in_logs(run.folder)]
    assert not stalls, "\n".join(stalls)
