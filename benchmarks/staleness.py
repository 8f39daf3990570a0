"""Reward against staleness: each objective of language models at each lag, on the tiny model, as a table and a plot.

Which objective holds to which lag: the largest lag up to which the mean over the seeds stays within ``HOLDS_SHARE`` of
what PPO's clip reaches with fresh data. What hurts is learning rate times lag; the learning rate here is the one at
which the objectives differ.
"""

import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from benchmarks.cells import Cell, CellResult
from benchmarks.results import BenchResult, Sample
from benchmarks.setting import BenchSetting, print_progress
from benchmarks.training_run import THREADS
from tidegate.algorithms.grpo_settings import GrpoSettings
from tidegate.cli.report.figures import line_chart
from tidegate.cli.report.page import plain_page
from tidegate.core.errors import UnavailableError
from tidegate.runtime.parent_death import dies_with_this_process

LAGS = (0, 1, 2, 4, 8, 16)
QUICK_LAGS = (0, 8)
UPDATES = 200
QUICK_UPDATES = 20
LOOK_EVERY = 20
HOLDS_SHARE = 0.9
BASELINE = "ppo clip"
_SHARED = GrpoSettings(minibatches=2, learning_rate=3e-4, warmup_versions=10)


def _with(**changes: object) -> GrpoSettings:
    return msgspec.structs.replace(_SHARED, **changes)


# What the table calls each, and its settings where they are not the shared ones.
OBJECTIVES: dict[str, GrpoSettings] = {
    "none": _with(objective="none"),
    "ppo clip": _with(objective="grpo"),
    "tis": _with(objective="tis"),
    "decoupled": _with(objective="decoupled_ppo"),
    # A ratio of whole sequences moves less than that of a token; on four tokens this is where it begins to act.
    "gspo": _with(objective="gspo", clip_low=0.1, clip_high=0.1, token_mean=True),
    "cispo": _with(objective="cispo"),
    "tba": _with(objective="tba", tba_beta=0.3),
}


def run(setting: BenchSetting) -> BenchResult:
    """Every cell of the table, as many at a time as there are cores; seeds outermost.

    Raises:
        UnavailableError: a worker died; the message names its log.
    """
    updates = QUICK_UPDATES if setting.quick else UPDATES
    cells = [
        Cell(name, settings, lag, seed, updates, LOOK_EVERY)
        for seed in range(setting.seeds)
        for lag in (QUICK_LAGS if setting.quick else LAGS)
        for name, settings in OBJECTIVES.items()
    ]
    found = measure(cells, folder=setting.folder)
    held = holds_to(found)
    table = markdown(found, held)
    page = setting.output.with_name(f"{setting.output.stem}-staleness.html")
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(html_page(found, table, updates=updates), encoding="utf-8")
    return BenchResult(
        name="staleness",
        rows=[],
        samples=[_sample(each) for each in found],
        notes=[
            f"share of held-out problems solved when sampling, after {updates} updates at exactly that lag;"
            f" mean (standard deviation) of {setting.seeds} seeds",
            f"holds to: the largest lag up to which the mean stays within {HOLDS_SHARE:.0%} of {BASELINE} at lag 0",
            f"the plot is in {page}",
        ],
        table=table,
    )


def measure(cells: Sequence[Cell], *, folder: Path) -> list[CellResult]:
    """Give each cell to the next free worker; returns results in the order of the cells."""
    folder.mkdir(parents=True, exist_ok=True)
    waiting = iter(enumerate(cells))
    lock = threading.Lock()
    found: dict[int, CellResult] = {}
    problems: list[str] = []

    def next_cell() -> tuple[int, Cell] | None:
        with lock:
            return None if problems else next(waiting, None)

    def work(number: int) -> None:
        log = folder / f"worker-{number}.log"
        with log.open("wb") as errors, _worker(errors.fileno()) as process:
            assert process.stdin is not None, "it is a pipe"
            assert process.stdout is not None, "it is a pipe"
            while (item := next_cell()) is not None:
                position, cell = item
                process.stdin.write(msgspec.json.encode(cell) + b"\n")
                process.stdin.flush()
                line = process.stdout.readline()
                if not line:
                    with lock:
                        problems.append(f"worker {number} died: see {log}")
                    return
                found[position] = msgspec.json.decode(line, type=CellResult)
                print_progress(_progress(found[position], done=len(found), of=len(cells)))
            process.stdin.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(os.cpu_count() or 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise UnavailableError(problems[0])
    return [found[position] for position in range(len(cells))]


def _worker(errors: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.fixed_lag"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env={**os.environ, **THREADS},
        preexec_fn=dies_with_this_process(),
    )


def _progress(each: CellResult, *, done: int, of: int) -> str:
    return f"{done} of {of}: {each.name} at lag {each.lag}, seed {each.seed}: {each.final:.2f} solved"


def _finals(found: Sequence[CellResult]) -> dict[tuple[str, int], list[float]]:
    finals: dict[tuple[str, int], list[float]] = {}
    for each in found:
        finals.setdefault((each.name, each.lag), []).append(each.final)
    return finals


def holds_to(found: Sequence[CellResult]) -> dict[str, int | None]:
    """The largest lag of each objective without a worse one before it; None when it does not even hold at 0."""
    means = {key: statistics.fmean(values) for key, values in _finals(found).items()}
    lags = sorted({lag for _, lag in means})
    floor = HOLDS_SHARE * means[BASELINE, lags[0]]
    return {
        name: max(_while(lags, lambda lag, name=name: means[name, lag] >= floor), default=None)
        for name in dict.fromkeys(each.name for each in found)
    }


def _while(lags: Sequence[int], holds: Callable[[int], bool]) -> Iterator[int]:
    for lag in lags:
        if not holds(lag):
            return
        yield lag


def markdown(found: Sequence[CellResult], held: Mapping[str, int | None]) -> str:
    """One line an objective, one column a lag."""
    finals = _finals(found)
    lags = sorted({lag for _, lag in finals})
    lines = [
        f"| objective | {' | '.join(f'lag {lag}' for lag in lags)} | holds to |",
        "|---" * (len(lags) + 2) + "|",
    ]
    for name, limit in held.items():
        cells = [_mean_text(finals[name, lag]) for lag in lags]
        lines.append(f"| {name} | {' | '.join(cells)} | {'–' if limit is None else f'lag {limit}'} |")
    return "\n".join(lines) + "\n"


def _mean_text(values: Sequence[float]) -> str:
    mean = f"{statistics.fmean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} (±{statistics.stdev(values):.2f})"


def html_page(found: Sequence[CellResult], table: str, *, updates: int) -> str:
    """The table's means over the lag, and for the largest lag how each objective came there."""
    finals = _finals(found)
    names = list(dict.fromkeys(each.name for each in found))
    lags = sorted({lag for _, lag in finals})
    by_lag = {name: [(float(lag), statistics.fmean(finals[name, lag])) for lag in lags] for name in names}
    learning = {name: _learning_curve(found, name, lag=lags[-1]) for name in names}
    return plain_page(
        "Reward against staleness",
        f"Two-digit addition on a model of 108,544 parameters, {updates} updates at exactly that lag.",
        [
            (
                "Solved after the last update, by lag",
                "Share of held-out problems, sampling; mean over the seeds.",
                line_chart("by-lag", by_lag, x_label="lag in versions", percent=True),
            ),
            (
                f"On the way there, at lag {lags[-1]}",
                "The same share after each so many updates.",
                line_chart("learning", learning, x_label="updates", percent=True),
            ),
        ],
        text=table,
    )


def _learning_curve(found: Sequence[CellResult], name: str, *, lag: int) -> list[tuple[float, float]]:
    runs = [each.solved for each in found if (each.name, each.lag) == (name, lag)]
    return [
        (float(points[0][0]), statistics.fmean(share for _, share in points))
        for points in zip(*runs, strict=True)
    ]


def _sample(each: CellResult) -> Sample:
    return Sample(
        side="tidegate",
        label=f"{each.name} lag {each.lag} seed {each.seed}",
        repetition=each.seed,
        work=each.solved[-1][0],
        unit="updates",
        wall_s=each.wall_s,
        cpu_s=each.cpu_s,
        details={
            "solved_at_start": each.solved[0][1],
            "solved": each.final,
            "solved_best": max(share for _, share in each.solved),
            "ess": each.ess_mean,
            "clipped_fraction": each.clipped_mean,
            "mismatch_kl": each.mismatch_kl_mean,
        },
    )
