"""The program beside a run that posts its notices: ``python -m tidegate.cli.notify.watch FOLDER``."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from tidegate.admission.slo_file import EVENTS_FILE
from tidegate.cli.notify.notices import Notice, notice_of_end, notice_of_objective
from tidegate.cli.notify.webhook import post
from tidegate.cli.up.summary import SUMMARY_JSON, read_summary
from tidegate.core.errors import CorruptionError
from tidegate.core.json_text import NOT_JSON
from tidegate.launch.companions import WEBHOOK_VARIABLE
from tidegate.launch.run_folder import is_run_folder, read_record
from tidegate.launch.supervised import await_folder, is_supervised
from tidegate.runtime.companion_settings import Webhook

LOOK_PERIOD_S = 2.0
# An objective that goes back and forth is told once in a while.
QUIET_S = 600.0
# After the run nothing may hold this process: not even a name server, for which there is no time limit.
LAST_S = 60


class RunNotices:
    """What is new in a run folder since this was made, as notices."""

    def __init__(self, folder: Path) -> None:
        """What the folder holds already is of an earlier start."""
        self._folder = folder
        self._events = folder / "admission" / EVENTS_FILE
        self._offset = self._events.stat().st_size if self._events.is_file() else 0
        self._summary_before = self._written_at()
        self._told_at_s: dict[str, float] = {}

    def _written_at(self) -> int | None:
        path = self._folder / SUMMARY_JSON
        return path.stat().st_mtime_ns if path.is_file() else None

    def of_objectives(self, run_id: str) -> Iterator[Notice]:
        """Objectives that are violated since the last call; each at most once in ``QUIET_S``."""
        if not self._events.is_file():
            return
        with self._events.open("rb") as file:
            if file.seek(0, os.SEEK_END) < self._offset:
                self._offset = 0  # it was replaced
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # it is being written
                self._offset += len(line)
                try:
                    notice = notice_of_objective(run_id, msgspec.json.decode(line, type=dict[str, Any]))
                except (*NOT_JSON, KeyError):
                    continue
                if notice is None:
                    continue
                name = notice.details["slo"]
                if notice.at_s - self._told_at_s.get(name, float("-inf")) >= QUIET_S:
                    self._told_at_s[name] = notice.at_s
                    yield notice

    def of_end(self, run_id: str, *, at_s: float) -> Notice:
        """Of the run's end; a summary of an earlier start is none."""
        try:
            summary = read_summary(self._folder) if self._written_at() != self._summary_before else None
        except CorruptionError:
            summary = None
        return notice_of_end(run_id, summary, at_s=at_s)


def watch(folder: Path, webhook: Webhook, *, say: Callable[[str], None]) -> bool:
    """Post what happens until the run is over; returns whether everything was delivered."""
    notices = RunNotices(folder)
    await_folder(folder)
    if not is_run_folder(folder):
        return True  # it was refused before it began
    run_id = read_record(folder).run_id
    delivered, over = True, False
    while not over:
        over = not is_supervised(folder)
        found = list(notices.of_objectives(run_id))
        if over:
            signal.alarm(LAST_S)
            found.append(notices.of_end(run_id, at_s=time.time()))
        for notice in found:
            if notice.event not in webhook.on:
                continue
            problem = post(webhook.url, webhook.headers, msgspec.json.encode(notice), pause=time.sleep)
            say(f"{notice.event}: {problem or 'delivered'}")
            delivered = delivered and not problem
        if not over:
            time.sleep(LOOK_PERIOD_S)
    return delivered


def main() -> int:
    """Watch the folder that the command line names."""
    webhook = msgspec.json.decode(os.environ.pop(WEBHOOK_VARIABLE), type=Webhook)
    delivered = watch(Path(sys.argv[1]), webhook, say=print_line)
    return 0 if delivered else 1


def print_line(line: str) -> None:
    """One line of the log, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
