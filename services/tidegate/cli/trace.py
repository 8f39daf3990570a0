"""``tidegate trace``."""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidegate.cli.folder import find_folder
from tidegate.cli.life import Life, read_life, sentence

BAR_WIDTH = 44
STAGE_STYLE = {
    "admitted": "bright_black",
    "task.lease": "bright_black",
    "trajectory.generate": "cyan",
    "reward.score": "magenta",
    "store.append": "blue",
    "trajectory.consume": "green",
}


def trace(
    trajectory_id: Annotated[
        str, typer.Argument(help="<task id>.<sample>, as logs print it.", metavar="TRAJECTORY_ID")
    ],
    folder: Annotated[
        Path | None, typer.Option("--dir", help="A run folder; without it the newest one here.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Print the life of one trajectory: every stage with its worker, its time and the versions it used."""
    life = read_life(find_folder(folder), trajectory_id)
    if json:
        sys.stdout.write(msgspec.json.encode(life).decode() + "\n")
        return
    Console().print(render(life), highlight=False)


def render(life: Life) -> RenderableType:
    """Facts first, then the stages as a waterfall."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bright_black")
    facts.add_column(overflow="fold")
    facts.add_row("trajectory", Text(life.trajectory_id, style="bold"))
    facts.add_row(
        "task",
        f"{life.task_id}, attempt {life.attempt}"
        + (f", group of {life.group_size}" if life.group_size > 1 else ""),
    )
    facts.add_row("environment", f"{life.env_id}, {life.num_steps} steps" if life.env_id else "–")
    if life.completion:
        facts.add_row("completion", Text(repr(life.completion)))
    if life.reward is not None:
        facts.add_row("reward", f"{life.reward:g}")
    versions = ", ".join(f"{span.version} for [{span.start}, {span.stop})" for span in life.spans)
    facts.add_row("versions", versions + (f"  (span {life.span})" if len(life.spans) > 1 else "") or "–")
    facts.add_row("outcome", Text(sentence(life)))
    return Group(facts, Text(), _waterfall(life)) if life.stages else facts


def _waterfall(life: Life) -> Table:
    start_s = life.stages[0].started_at_s
    total_s = max(1e-9, max(stage.finished_at_s for stage in life.stages) - start_s)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bright_black")
    table.add_column("stage")
    table.add_column("by")
    table.add_column("after", justify="right")
    table.add_column("took", justify="right")
    table.add_column(f"0 … {_duration(total_s)}", no_wrap=True)
    for stage in life.stages:
        offset_s, took_s = stage.started_at_s - start_s, stage.finished_at_s - stage.started_at_s
        left = min(BAR_WIDTH - 1, round(offset_s / total_s * BAR_WIDTH))
        length = max(1, min(BAR_WIDTH - left, round(took_s / total_s * BAR_WIDTH)))
        style = STAGE_STYLE.get(stage.stage, "yellow")
        table.add_row(
            stage.stage,
            stage.worker,
            _duration(offset_s),
            _duration(took_s),
            Text(" " * left + "█" * length, style=style),
        )
    return table


def _duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.1f} ms"
