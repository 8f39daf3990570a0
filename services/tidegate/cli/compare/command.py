"""``tidegate compare``."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from tidegate.cli.compare.curves import Curve, by_name, read_curve
from tidegate.cli.console import open_console
from tidegate.cli.up.summary import read_summary
from tidegate.core.distributions import parse_duration
from tidegate.core.errors import ConfigError, TidegateError
from tidegate.launch.run_file import read_run_file
from tidegate.launch.run_folder import is_run_folder, read_record, recorded_document
from tidegate.launch.run_plan import RunPlan
from tidegate.runtime.files import replace_file
from tidegate.runtime.parent_death import dies_with_this_process
from tidegate.runtime.python_program import last_words, python_program

SEEDS_MAX = 1000
# The services of a run that reached its limit drain, and its report is written.
GRACE_S = 300.0


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run files.", metavar="RUN...")],
    seeds: Annotated[
        int, typer.Option(help="Runs of each file, with seeds 1 to N.", min=1, max=SEEDS_MAX)
    ] = 5,
    for_: Annotated[str, typer.Option("--for", help="Time limit of each run: 90s, 5m.")] = "5m",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a key of every run file: path.to.key=value; repeatable."),
    ] = None,
    score: Annotated[str, typer.Option(help="Number of the learner's steps to compare.")] = "mean_return",
    folder: Annotated[
        Path, typer.Option("--dir", help="Folder of the runs and the page; runs that ended there are kept.")
    ] = Path(".tidegate") / "compare",
    json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """Train each run file with several seeds, one run after the other, and compare their learning curves.

    Writes compare.html: the score over samples, seconds and CPU-seconds as interquartile means with 95 % bootstrap
    intervals, and the lag. Exits 1 if a run failed or its audit is not balanced.
    """
    limit_s = parse_duration(for_)
    names = _names(runs)
    for name, path in zip(names, runs, strict=True):
        for seed in range(1, seeds + 1):
            plan = read_run_file(path, [*(set_ or []), f"seed={seed}"])
            _check_is_same_run(folder / name / f"seed-{seed}", plan)
    curves: list[tuple[str, Curve]] = []
    problems: list[str] = []
    for name, path in zip(names, runs, strict=True):
        for seed in range(1, seeds + 1):
            where = folder / name / f"seed-{seed}"
            try:
                _train(path, where, seed=seed, overrides=set_ or [], limit=for_, timeout_s=limit_s + GRACE_S)
                curves.append((name, read_curve(where, score=score)))
            except TidegateError as error:
                problems.append(f"{name}, seed {seed}: {error}")
            except subprocess.TimeoutExpired:
                problems.append(f"{name}, seed {seed}: it did not end {GRACE_S:.0f} s after its limit")
    if not curves:
        raise ConfigError("No run can be compared", why="; ".join(problems))
    grouped = by_name(curves)
    # matplotlib loads when no run needs the memory.
    page = import_module("tidegate.cli.compare.page")
    rows = page.compared(grouped, seed=0)
    html = folder / "compare.html"
    replace_file(html, page.render_comparison(grouped, rows, score=score, seed=0).encode())
    if json:
        sys.stdout.write(msgspec.json.encode(rows).decode() + "\n")
    else:
        _print([page.HEAD, *page.lines_of(rows)], html)
    for problem in problems:
        sys.stderr.write(f"tidegate: {problem}\n")
    unbalanced = sum(row.num_runs - row.num_balanced for row in rows)
    raise typer.Exit(1 if problems or unbalanced else 0)


def _names(runs: Sequence[Path]) -> list[str]:
    """A name for each run file.

    Raises:
        ConfigError: two files have the same name.
    """
    names = [path.stem for path in runs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            f"Two run files are called {twice[0]}", fix="rename one: the name is its row in the table"
        )
    return names


def _check_is_same_run(where: Path, plan: RunPlan) -> None:
    """Refuse a folder of an earlier comparison with other settings: its curve would be taken for this plan's.

    Raises:
        ConfigError: the run there has other settings; the message names the first of them.
    """
    if not is_run_folder(where):
        return
    recorded = recorded_document(read_record(where))
    other = [key for key, value in plan.document().items() if recorded.get(key) != value]
    if other:
        raise ConfigError(
            f"{where} holds a run with another `{other[0]}`",
            why="runs that ended there are kept, and would be compared as if they had these settings",
            fix="choose another --dir, or remove that folder",
        )


def _ended_whole(summary: Mapping[str, Any] | None) -> bool:
    """Whether a run went on until its target or its time limit."""
    return summary is not None and summary.get("ended_by") not in ("failed", "interrupted")


def _train(
    path: Path, where: Path, *, seed: int, overrides: Sequence[str], limit: str, timeout_s: float
) -> None:
    """One run in a process of its own, unless its folder holds one that ended.

    Raises:
        ConfigError: the run was refused, or could not go on; the message is what it said.
        subprocess.TimeoutExpired: it did not end.
    """
    if _ended_whole(read_summary(where)):
        return
    sets = [argument for value in (*overrides, f"seed={seed}") for argument in ("--set", value)]
    arguments = ["up", str(path), "--dir", str(where), "--headless", "--for", limit, *sets]
    done = subprocess.run(
        python_program("tidegate.cli.main", *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=timeout_s,
        preexec_fn=dies_with_this_process(),  # it allocates and imports nothing
    )
    summary = read_summary(where)
    if summary is None:
        raise ConfigError("The run did not start", why=last_words(done))
    if not _ended_whole(summary):
        raise ConfigError("The run ended early", why=summary["problem"] or summary["ended_by"])


def _print(lines: Sequence[tuple[str, ...]], html: Path) -> None:
    table = Table(box=None, header_style="bright_black", pad_edge=False)
    head, *body = lines
    for index, name in enumerate(head):
        table.add_column(name, justify="left" if index == 0 else "right", no_wrap=True)
    for line in body:
        table.add_row(*line)
    console = open_console()
    console.print(table)
    console.print(f"page  {html}")
