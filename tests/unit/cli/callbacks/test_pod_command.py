"""The container that calls a callback of a run in a cluster: on the page's copy, and over its own restarts."""

import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.unit.cli.callbacks.test_callbacks import NOTIFY, reference_to
from tests.unit.cli.run_folder import write_accounting
from tidegate.cli.callbacks.pod_command import Position
from tidegate.cli.position_file import read_position
from tidegate.cli.ui.copies import COPIES_JSON, Copies
from tidegate.cli.ui.run_copy import END
from tidegate.cli.up.summary import SUMMARY_JSON
from tidegate.launch.run_folder import ProcessesRecord, read_record, write_processes, write_record

pytestmark = pytest.mark.slow


class CopiedRun:
    """A copy in which two updates were made, of a run file with a callback."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.files = folder / "run", folder / "files"
        self.steps, self.position = self.folder / "learner" / "steps.jsonl", self.files / "position.json"
        write_accounting(self.folder, batches=2)
        reference_to(self.files, NOTIFY)
        record = read_record(self.folder)
        self.run_id = record.run_id
        run_file = {
            **record.run_file,
            "callbacks": ["my_callbacks.py:Notify"],
            "files_dir": str(self.files),
        }
        write_record(self.folder, msgspec.structs.replace(record, run_file=run_file))
        (self.folder / COPIES_JSON).write_bytes(msgspec.json.encode(Copies()))
        self.mark(ended=False)

    def mark(self, *, ended: bool) -> None:
        """As the process that copies does, which is in another container."""
        (self.folder / SUMMARY_JSON).unlink(missing_ok=True)
        if ended:
            (self.folder / SUMMARY_JSON).write_bytes(msgspec.json.encode(END))
            # Updates of this folder are in the future.
            os.utime(self.folder / SUMMARY_JSON, (2e9, 2e9))
        write_processes(self.folder, ProcessesRecord(2**22 + 1, 0.0, ended, {}))

    def update(self, step: int) -> None:
        line = msgspec.json.decode(self.steps.read_bytes().splitlines()[-1])
        line |= {"step": step, "at_s": line["at_s"] + 1.0}
        self.steps.write_bytes(self.steps.read_bytes() + msgspec.json.encode(line) + b"\n")

    def told(self) -> list[str]:
        """The events, each by what it was and of which step."""
        path = self.files / "told.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        return [" ".join(line.split()[:2]) for line in lines]

    @contextmanager
    def called(self) -> Generator[None]:
        """The container until it is killed, which happens after it kept what it told.

        Killed between the two, it tells the newest again.
        """
        arguments = ["--number=0", f"--position={self.position}"]
        command = [sys.executable, "-m", "tidegate.cli.main", "call-back", str(self.folder), *arguments]
        with subprocess.Popen(command) as calling:
            try:
                yield
                self.await_kept()
            finally:
                calling.kill()

    def await_told(self, expected: list[str]) -> None:
        deadline_s = time.monotonic() + 60.0
        while self.told() != expected:
            assert time.monotonic() < deadline_s, self.told()
            time.sleep(0.05)

    def await_kept(self) -> None:
        newest_s = msgspec.json.decode(self.steps.read_bytes().splitlines()[-1])["at_s"]
        deadline_s = time.monotonic() + 60.0
        while read_position(self.position, Position(self.run_id)).updated_at_s < newest_s:
            assert time.monotonic() < deadline_s, self.position.read_text()
            time.sleep(0.05)


def test_each_thing_is_told_once_over_restarts_and_beyond_the_target(tmp_path: Path) -> None:
    run = CopiedRun(tmp_path)
    first, second = ["update 1", "update 2"], ["update 3", "end target"]
    with run.called():
        run.await_told(first)
    run.update(3)
    run.mark(ended=True)
    with run.called():
        run.await_told([*first, *second])
        run.update(4)
        run.mark(ended=False)
        run.await_told([*first, *second, "update 4"])
    with run.called():
        run.update(5)
        run.await_told([*first, *second, "update 4", "update 5"])
