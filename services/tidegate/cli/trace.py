"""``tidegate trace``."""

import sys
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidegate.cli.console import open_console
from tidegate.cli.run_argument import RunFolderOption
from tidegate.cli.trajectory_history import TrajectoryHistory, read_trajectory_history, sentence
from tidegate.launch.run_folder import find_folder

BAR_WIDTH_MIN, BAR_WIDTH_MAX = 12, 60
# Width of the other columns with the longest names.
COLUMNS_WIDTH = 64
# Gaps between stages are drawn when they are longer than this share of the whole.
WAIT_SHOWN_SHARE = 0.02
STAGE_STYLE = {
    "task.lease": "bright_black",
    "trajectory.generate": "cyan",
    "reward.score": "magenta",
    "store.append": "blue",
    "trajectory.consume": "green",
}


def trace(
    trajectory_id: Annotated[
        str, typer.Argument(help="<task id>.<sample>, as in logs and traces.", metavar="TRAJECTORY_ID")
    ],
    folder: RunFolderOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print every stage of one trajectory with its worker, its time and the policy versions."""
    history = read_trajectory_history(find_folder(folder), trajectory_id)
    if json:
        sys.stdout.write(msgspec.json.encode(history).decode() + "\n")
        return
    console = open_console()
    console.print(render(history, width=console.width))


def render(history: TrajectoryHistory, *, width: int) -> RenderableType:
    """Facts first, then the stages as a waterfall of at most ``width`` columns."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bright_black")
    facts.add_column(overflow="fold")
    facts.add_row("trajectory", Text(history.trajectory_id, style="bold"))
    facts.add_row(
        "task",
        f"{history.task_id}, attempt {history.attempt}"
        + (f", group of {history.group_size}" if history.group_size > 1 else ""),
    )
    facts.add_row("environment", f"{history.env_id}, {history.num_steps} steps" if history.env_id else "–")
    if history.completion:
        facts.add_row("completion", Text(repr(history.completion)))
    if history.reward is not None:
        facts.add_row("reward", f"{history.reward:g}")
    versions = ", ".join(f"{span.version} for [{span.start}, {span.stop})" for span in history.spans)
    facts.add_row(
        "versions", versions + (f"  (span {history.span})" if len(history.spans) > 1 else "") or "–"
    )
    facts.add_row("outcome", Text(sentence(history)))
    return Group(facts, Text(), _waterfall(history, width=width)) if history.stages else facts


def _waterfall(history: TrajectoryHistory, *, width: int) -> Table:
    start_s = history.stages[0].started_at_s
    total_s = max(1e-9, max(stage.finished_at_s for stage in history.stages) - start_s)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bright_black")
    for heading in ("stage", "by"):
        table.add_column(heading, no_wrap=True)
    for heading in ("after", "took"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(f"0 … {_duration(total_s)}", no_wrap=True)
    bar_width = max(BAR_WIDTH_MIN, min(BAR_WIDTH_MAX, width - COLUMNS_WIDTH))
    busy_until_s = start_s
    for stage in history.stages:
        if stage.started_at_s - busy_until_s > WAIT_SHOWN_SHARE * total_s:
            waited_s = stage.started_at_s - busy_until_s
            table.add_row(
                *_row(
                    "(waiting)",
                    "",
                    busy_until_s - start_s,
                    waited_s,
                    total_s,
                    bar_width,
                    style="bright_black",
                )
            )
        took_s = stage.finished_at_s - stage.started_at_s
        style = STAGE_STYLE.get(stage.stage, "yellow")
        offset_s = stage.started_at_s - start_s
        table.add_row(*_row(stage.stage, stage.worker, offset_s, took_s, total_s, bar_width, style=style))
        busy_until_s = max(busy_until_s, stage.finished_at_s)
    return table


def _row(
    stage: str, worker: str, offset_s: float, took_s: float, total_s: float, width: int, *, style: str
) -> tuple[Text, str, str, str, Text]:
    left = min(width - 1, round(offset_s / total_s * width))
    length = max(1, min(width - left, round(took_s / total_s * width)))
    character = "█" if worker else "░"
    return (
        Text(stage, style="" if worker else style),
        worker,
        _duration(offset_s),
        _duration(took_s),
        Text(" " * left + character * length, style=style),
    )


def _duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.1f} ms"
