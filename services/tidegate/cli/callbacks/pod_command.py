"""``tidegate call-back``: the container beside the page of a run in a cluster that calls one callback of its run file.

It reads the page's copy of the run's records, and goes on where it was when it is started again. A copy has no
checkpoints, so it tells of none.
"""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tidegate.cli.callbacks.events import EndOfRun, RunEvaluation, RunEvent
from tidegate.cli.callbacks.own_callback import GuardedCallback, load_callback
from tidegate.cli.callbacks.run_events import RunEvents
from tidegate.cli.callbacks.watch import LOOK_PERIOD_S, prepare, print_line, tell
from tidegate.cli.ui.copies import await_copy, is_over
from tidegate.core.errors import ConfigError
from tidegate.core.json_text import NOT_JSON
from tidegate.launch.carried_files import check_mounted
from tidegate.launch.own_code import CALLBACK, own_code_of
from tidegate.launch.run_folder import find_folder, read_plan, read_record
from tidegate.runtime.files import replace_file


class Position(msgspec.Struct):
    """What a callback was told of a run: the newest update and evaluation, seconds since the epoch, and its end."""

    run_id: str = ""
    updated_at_s: float = 0.0
    evaluated_at_s: float = 0.0
    ended: bool = False


class PositionFile:
    """Keeps the position; one that cannot be read begins at the start."""

    def __init__(self, path: Path, *, run_id: str) -> None:
        """``run_id``: a position in another run does not count."""
        self._path = path
        self.position = Position(run_id=run_id)
        try:
            found = msgspec.json.decode(path.read_bytes(), type=Position)
        except (OSError, *NOT_JSON):
            return
        if found.run_id == run_id:
            self.position = found

    def advance(self, told: Sequence[RunEvent]) -> None:
        """Keep what was told."""
        for event in told:
            self.position.ended = isinstance(event, EndOfRun)
            if self.position.ended:
                continue
            if isinstance(event, RunEvaluation):
                self.position.evaluated_at_s = max(self.position.evaluated_at_s, event.at_s)
            else:
                self.position.updated_at_s = max(self.position.updated_at_s, event.at_s)
        replace_file(self._path, msgspec.json.encode(self.position))


def call_back(
    run: Annotated[Path, typer.Argument(help="Copy of the run's records.", metavar="RUN")],
    number: Annotated[int, typer.Option(help="Which of `callbacks`, from 0.", min=0)],
    position: Annotated[Path, typer.Option(help="File that keeps how far it came.")],
) -> None:
    """Call a callback of a run in a cluster, until the pod ends. Run by the chart.

    After the end of the run it waits for another target, and is told what follows.
    """
    prepare()
    await_copy(run)
    where = find_folder(run)
    _, plan = read_plan(where)
    check_mounted(plan.file.files_dir)
    reference = own_code_of(plan).get(f"{CALLBACK}{number}")
    if reference is None:
        raise ConfigError(f"The run file has no callback {number}", fix="upgrade the release")
    guarded = GuardedCallback(load_callback(reference), reference, say=print_line)
    file = PositionFile(position, run_id=read_record(where).run_id)
    over = partial(is_over, where)
    print_line(f"{reference.written} is called")
    while True:
        if not (over() and file.position.ended):
            events = RunEvents(
                where, since_s=file.position.updated_at_s, evaluated_since_s=file.position.evaluated_at_s
            )
            tell(guarded, events, is_over=over, told=file.advance)
        while over():
            time.sleep(LOOK_PERIOD_S)
