"""A whole platform, started as a person starts it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


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
        return [json.loads(line) for line in lines if line.endswith("}")]

    def until(self, holds: Callable[[], bool], *, timeout_s: float, what: str) -> float:
        """Wait for a condition of a live run; returns the seconds it took."""
        started_s = time.monotonic()
        while not holds():
            assert self.process.poll() is None, f"the run ended before {what}: {self.tail()}"
            assert time.monotonic() - started_s < timeout_s, f"no {what} in {timeout_s} s: {self.tail()}"
            time.sleep(0.05)
        return time.monotonic() - started_s

    def kill(self, instance: str) -> None:
        """``kill -9``."""
        pid = self.pid(instance)
        assert pid is not None, f"{instance} does not run"
        os.kill(pid, signal.SIGKILL)

    def wait(self, *, timeout_s: float) -> tuple[int, dict[str, Any]]:
        """The exit code and the summary."""
        code = self.process.wait(timeout=timeout_s)
        return code, json.loads(self.output.read_text().splitlines()[-1])

    def tail(self) -> str:
        """The end of its output."""
        return "\n".join(self.output.read_text().splitlines()[-15:])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Start runs that end with the test."""
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
            run.process.wait(timeout=10)
