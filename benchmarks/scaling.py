"""What more actors and more ranks of the learner bring to classic systems, beside what `tidegate plan` predicts.

The prediction is `tidegate plan --from-run` of the run of one: rates of an actor and of the learner while they do not
wait, and its model of data-parallel learners. It knows nothing of the machine's cores, which the processes share here.
"""

import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from benchmarks.cartpole import lengths
from benchmarks.results import BenchResult, Sample, row
from benchmarks.setting import BenchSetting, print_progress
from benchmarks.training_run import TrainingRun, measure_training, remove_folder, up_command
from tidegate.cli.plan.options import BalanceOptions
from tidegate.cli.plan.question import PlanFlags, ask
from tidegate.core.errors import NotFoundError, TidegateError
from tidegate.core.planner.stages import balance_of

REPETITIONS = 3
Scaled = Literal["actors", "ranks"]
SETTINGS: dict[Scaled, str] = {"actors": "actor.replicas", "ranks": "learner.ranks"}


class Family(msgspec.Struct, frozen=True):
    """One run file with ``counts`` of actors or ranks. ``unit``: of the rate that is compared.

    Updates of a run with replay take a fixed number of units, so that they show the learner's rate; environment steps
    that of the whole loop.
    """

    run_file: str
    scaled: Scaled
    counts: tuple[int, ...]
    unit: Literal["steps", "updates"]


FAMILIES = (
    Family("impala", "actors", (1, 2, 3, 4), "steps"),
    Family("seed", "actors", (1, 2, 3, 4), "steps"),
    Family("impala", "ranks", (1, 2), "updates"),
    Family("recurrent", "ranks", (1, 2), "updates"),
    Family("apex", "ranks", (1, 2), "updates"),
    Family("r2d2", "ranks", (1, 2), "updates"),
    Family("pendulum-sac", "ranks", (1, 2), "updates"),
)


class ScaledRun(msgspec.Struct, frozen=True):
    """One run of a family: its rate and what that was predicted to be of the run of one in the same repetition.

    ``per_cpu_s``: the same work a CPU-second of all processes. ``planned``: predicted rate over that of one; None
    where the run of one wrote too few measurements. ``bottleneck``: by the same prediction.
    """

    family: Family
    count: int
    repetition: int
    per_s: float
    per_cpu_s: float
    others_cores: float
    planned: float | None
    bottleneck: str
    wall_s: float
    cpu_s: float
    work: int

    @property
    def name(self) -> str:
        """The family and the count."""
        return f"{self.family.run_file}, {self.count} {self.family.scaled}"


def run(setting: BenchSetting) -> BenchResult:
    """Repetitions outermost, so that an interrupted round is balanced; one that fails keeps what it has."""
    runs: list[ScaledRun] = []
    problem = ""
    try:
        for repetition in range(setting.repeat(REPETITIONS)):
            for family in FAMILIES:
                runs += _measure_family(setting, family, repetition)
    except TidegateError as error:
        problem = str(error)
    table = markdown(runs)
    path = setting.output.with_name(f"{setting.output.stem}-scaling.md")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(table, encoding="utf-8")
    return BenchResult(
        name="scaling",
        rows=[
            row(
                f"{cell[0].name}: efficiency",
                "of linear",
                measured,
                planned if len(planned) == len(measured) else (),
            )
            for cell in _cells(runs)
            if cell[0].count > 1
            for measured, planned in [(efficiencies(runs, cell), planned_efficiencies(cell))]
        ],
        samples=[_sample(each) for each in runs],
        notes=[
            f"{os.cpu_count()} cores, which all processes share",
            "the peer is what `tidegate plan` predicts from the run of one",
            f"the table is also in {path}",
        ],
        table=table,
        problem=problem,
    )


def _measure_family(setting: BenchSetting, family: Family, repetition: int) -> list[ScaledRun]:
    """Every count of a family. The run of one stays until the others are predicted from it.

    Raises:
        UnavailableError: a platform ended early, or made no update.
    """
    one = setting.folder / _folder_name(family, 1, repetition)
    runs: list[ScaledRun] = []
    for count in family.counts[:2] if setting.quick else family.counts:
        done = _measure(setting, family, count, repetition, one=one)
        runs.append(done)
        print_progress(
            f"scaling {done.name}: {done.per_s:,.1f} {family.unit}/s, {done.per_cpu_s:,.1f} a CPU-second"
        )
    remove_folder(one)
    return runs


def _folder_name(family: Family, count: int, repetition: int) -> str:
    return f"scaling-{family.run_file}-{family.scaled}-{count}-{repetition}"


def _measure(setting: BenchSetting, family: Family, count: int, repetition: int, *, one: Path) -> ScaledRun:
    folder = setting.folder / _folder_name(family, count, repetition)
    command = up_command(
        Path("runs") / f"{family.run_file}.yaml",
        folder=folder,
        overrides=[
            f"{SETTINGS[family.scaled]}={count}",
            f"seed={repetition + 1}",
            # An evaluation keeps an actor from its segments.
            "task_queue.evaluation_every_versions=0",
        ],
    )
    done = measure_training(command, folder=folder, length=lengths(setting))
    planned, bottleneck = predict(family, count, one)
    if folder != one:
        remove_folder(folder)
    return scaled_run(family, count, repetition, done, planned=planned, bottleneck=bottleneck)


def predict(family: Family, count: int, one: Path) -> tuple[float | None, str]:
    """The predicted rate with ``count`` over that with one, and the bottleneck; None if the run was too short."""
    try:
        rates: list[float] = []
        bottleneck = ""
        for number in (1, count):
            size = (
                BalanceOptions(actors=number)
                if family.scaled == "actors"
                else BalanceOptions(replicas=number)
            )
            question, _ = ask(PlanFlags(size), from_run=one)
            balance = balance_of(question.loop)
            rates.append(balance.throughput_per_s)
            bottleneck = balance.bottleneck
    except NotFoundError:
        return None, "unknown"
    return rates[1] / rates[0], bottleneck


def scaled_run(
    family: Family,
    count: int,
    repetition: int,
    done: TrainingRun,
    *,
    planned: float | None,
    bottleneck: str,
) -> ScaledRun:
    """What is kept of a measured run."""
    window = done.steady
    work = window.steps if family.unit == "steps" else window.updates
    return ScaledRun(
        family=family,
        count=count,
        repetition=repetition,
        per_s=work / window.wall_s,
        per_cpu_s=work / window.cpu_s,
        others_cores=window.others_cores,
        planned=planned,
        bottleneck=bottleneck,
        wall_s=window.wall_s,
        cpu_s=window.cpu_s,
        work=work,
    )


def _cells(runs: Sequence[ScaledRun]) -> list[list[ScaledRun]]:
    """The repetitions of each family and count, in order."""
    cells: dict[tuple[Family, int], list[ScaledRun]] = {}
    for each in runs:
        cells.setdefault((each.family, each.count), []).append(each)
    return list(cells.values())


def efficiencies(runs: Sequence[ScaledRun], cell: Sequence[ScaledRun]) -> list[float]:
    """The rate of each of ``cell`` over so many times that of one, in the same repetition."""
    ones = {(each.family, each.repetition): each.per_s for each in runs if each.count == 1}
    return [each.per_s / (each.count * ones[each.family, each.repetition]) for each in cell]


def planned_efficiencies(cell: Sequence[ScaledRun]) -> list[float]:
    """The same as predicted, of those that could be."""
    return [each.planned / each.count for each in cell if each.planned is not None]


def markdown(runs: Sequence[ScaledRun]) -> str:
    """A line for each family and count: medians over repetitions."""
    lines = [
        "| run file | actors or ranks | a second | a CPU-second | efficiency | by `tidegate plan` | its bottleneck |",
        "|---|---|---|---|---|---|---|",
    ]
    for cell in _cells(runs):
        first = cell[0]
        planned = planned_efficiencies(cell)
        cells = [
            first.family.run_file,
            f"{first.count} {first.family.scaled}",
            f"{statistics.median(each.per_s for each in cell):,.1f} {first.family.unit}",
            f"{statistics.median(each.per_cpu_s for each in cell):,.1f}",
            f"{statistics.median(efficiencies(runs, cell)):.2f}",
            f"{statistics.median(planned):.2f}" if planned else "not predicted",
            statistics.mode(each.bottleneck for each in cell),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _sample(each: ScaledRun) -> Sample:
    details = {"count": float(each.count)}
    if each.planned is not None:
        details["planned_speedup"] = each.planned
    return Sample(
        side="tidegate",
        label=each.name,
        repetition=each.repetition,
        work=each.work,
        unit=each.family.unit,
        wall_s=each.wall_s,
        cpu_s=each.cpu_s,
        others_cores=each.others_cores,
        details=details,
    )
