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
from tidegate.cli.position_file import read_position
from tidegate.cli.ui.copies import is_over
from tidegate.core.errors import ConfigError
from tidegate.launch.carried_files import check_mounted
from tidegate.launch.own_code import CALLBACK, own_code_of
from tidegate.launch.run_folder import find_folder, read_plan, read_record
from tidegate.launch.supervised import await_folder
from tidegate.runtime.files import replace_file


class Position(msgspec.Struct):
    """What a callback was told of a run: the newest update and evaluation, seconds since the epoch, and its end."""

    run_id: str
    updated_at_s: float = 0.0
    evaluated_at_s: float = 0.0
    ended: bool = False


def advance(position: Position, told: Sequence[RunEvent], *, path: Path) -> None:
    """Move the position behind what was told, and keep it."""
    for event in told:
        position.ended = isinstance(event, EndOfRun)
        if position.ended:
            continue
        if isinstance(event, RunEvaluation):
            position.evaluated_at_s = max(position.evaluated_at_s, event.at_s)
        else:
            position.updated_at_s = max(position.updated_at_s, event.at_s)
    replace_file(path, msgspec.json.encode(position))


def call_back(
    run: Annotated[Path, typer.Argument(help="Copy of the run's records.", metavar="RUN")],
    number: Annotated[int, typer.Option(help="Which of `callbacks`, from 0.", min=0)],
    position_file: Annotated[
        Path, typer.Option("--position", help="File that keeps how far it came.", metavar="FILE")
    ],
) -> None:
    """Call a callback of a run in a cluster, until the pod ends. Run by the chart.

    After the end of the run it waits for another target, and is told what follows.
    """
    prepare()
    await_folder(run, copied=True)
    where = find_folder(run)
    _, plan = read_plan(where)
    check_mounted(plan.file.files_dir)
    reference = own_code_of(plan).get(f"{CALLBACK}{number}")
    if reference is None:
        raise ConfigError(f"The run file has no callback {number}", fix="upgrade the release")
    guarded = GuardedCallback(load_callback(reference), reference, say=print_line)
    position = read_position(position_file, Position(run_id=read_record(where).run_id))
    over = partial(is_over, where)
    print_line(f"{reference.written} is called")
    while True:
        if not (over() and position.ended):
            events = RunEvents(
                where, since_s=position.updated_at_s, evaluated_since_s=position.evaluated_at_s
            )
            tell(guarded, events, is_over=over, told=partial(advance, position, path=position_file))
        while over():
            time.sleep(LOOK_PERIOD_S)
