"""Effective training time: learner steps of a run whose processes are killed, over those of one without kills.

Every process of ``tidegate up`` may be killed, drawn at random: services, fork servers and the broker. The other
run takes the CPU time that a killed one does not use, so the share is a lower bound.
"""

import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import msgspec
import psutil

from benchmarks.program import Program
from benchmarks.results import BenchResult, Goal, Row, Sample, row
from benchmarks.setting import BenchSetting, print_progress
from benchmarks.steps_file import StepPoint, StepsFile
from benchmarks.training_run import (
    STEPS_FILE,
    THREADS,
    remove_folder,
    sleep_until,
    up_command,
    wait_for_training,
)
from tidegate.cli.accounting import read_accounting
from tidegate.core.audit import Audit
from tidegate.core.errors import UnavailableError
from tidegate.launch.run_folder import read_processes

REPETITIONS = 3
WARM_UP_S = 10.0
# Starts and ends of platforms are outside of it.
WINDOW_S = 600.0
QUICK_WINDOW_S = 60.0
# Beside the window. A language model's supervised warm-up is a part of its start.
START_S_MAX = 1200.0
POLL_S = 0.05
BACK_TIMEOUT_S = 60.0
RECOVERY_P95_S_MAX = 5.0
LEARNER_RECOVERY_P95_S_MAX = 10.0
LEARNER = "learner"

_encode = msgspec.json.Encoder().encode


class Case(msgspec.Struct, frozen=True):
    """A random process is killed every ``period_s``. Without ``share_min`` no other run is beside it."""

    run_file: Path
    period_s: float
    share_min: float | None

    @property
    def name(self) -> str:
        """As the table shows it."""
        return f"{self.run_file.stem}, a kill every {self.period_s:g} s"


FILES = (Path("runs/cartpole.yaml"), Path("runs/arithmetic.yaml"), Path("runs/calculator.yaml"))
CASES: tuple[Case, ...] = (
    *(Case(run_file, 120.0, 0.95) for run_file in FILES),
    *(Case(run_file, 30.0, 0.90) for run_file in FILES),
)
FREQUENT: tuple[Case, ...] = tuple(Case(run_file, 3.0, None) for run_file in FILES)


class Kill(msgspec.Struct, frozen=True):
    """``back_s``: until the victim had a new process; None if it had none before the next kill."""

    at_s: float
    victim: str
    back_s: float | None


class Recovery(msgspec.Struct, frozen=True):
    """Of one kill: seconds to the next new learner step, and the longest time without one until the next kill."""

    kill: Kill
    next_step_s: float
    longest_pause_s: float


class Found(msgspec.Struct, frozen=True):
    """One repetition of a case. ``steps_beside``: of the run that was left alone; 0 without one."""

    case: Case
    steps: int
    steps_beside: int
    wall_s: float
    recoveries: list[Recovery]
    audit: Audit


def run(setting: BenchSetting) -> BenchResult:
    """Each case several times.

    Raises:
        UnavailableError: a platform ended early.
    """
    return _run("recovery", setting, CASES)


def run_frequent(setting: BenchSetting) -> BenchResult:
    """Kills every three seconds, with no run beside: what is counted is the accounting and the recovery.

    Raises:
        UnavailableError: a platform ended early.
    """
    return _run("chaos", setting, FREQUENT)


def _run(name: str, setting: BenchSetting, cases: Sequence[Case]) -> BenchResult:
    found = [
        _measure(setting, case, repetition)
        for repetition in range(setting.repeat(REPETITIONS))
        for case in cases
    ]
    of_cases = [[each for each in found if each.case is case] for case in cases]
    return BenchResult(
        name=name,
        rows=[
            *(figure for of_case in of_cases for figure in _rows(of_case)),
            *_recovery_rows([recovery for each in found for recovery in each.recoveries]),
        ],
        samples=[_sample(each, number) for of_case in of_cases for number, each in enumerate(of_case)],
        notes=[
            "peer: the same run left alone, at the same time; the next step: one that is not made again",
            f"every kill is a line of {_log_of(setting)}",
        ],
    )


def _measure(setting: BenchSetting, case: Case, repetition: int) -> Found:
    sides = ("killed", "beside") if case.share_min is not None else ("killed",)
    name = f"{case.run_file.stem}-{case.period_s:g}-{repetition}"
    folders = {side: setting.folder / f"{name}-{side}" for side in sides}
    window_s = QUICK_WINDOW_S if setting.quick else WINDOW_S
    rng = random.Random(f"{setting.seeds}/{name}")
    with ExitStack() as stack:
        programs = {
            side: stack.enter_context(
                Program(
                    up_command(case.run_file, folder=folder, limit_s=START_S_MAX + window_s),
                    log=folder.with_name(f"{folder.name}.log"),
                    environment=THREADS,
                )
            )
            for side, folder in folders.items()
        }
        for side, program in programs.items():
            wait_for_training(program, folders[side], after_s=WARM_UP_S)
        start_s = time.time()
        kills = list(
            _kills(
                programs["killed"], folders["killed"], rng, period_s=case.period_s, end_s=start_s + window_s
            )
        )
        end_s = time.time()
        for program in programs.values():
            program.require_alive()
    points = {side: StepsFile(folder / STEPS_FILE).read() for side, folder in folders.items()}
    found = Found(
        case=case,
        steps=steps_between(points["killed"], start_s, end_s),
        steps_beside=steps_between(points["beside"], start_s, end_s) if "beside" in points else 0,
        wall_s=end_s - start_s,
        recoveries=recoveries(kills, points["killed"], end_s=end_s),
        audit=read_accounting(folders["killed"]).audit,
    )
    print_progress(f"{case.name}, {repetition + 1}: {_note(found)}")
    with _log_of(setting).open("ab") as log:
        for each in found.recoveries:
            log.write(_encode({"case": case.name, "repetition": repetition, "recovery": each}) + b"\n")
    for folder in folders.values():
        remove_folder(folder)
    return found


def _log_of(setting: BenchSetting) -> Path:
    """Beside the figures, a line for each kill."""
    return setting.output.with_suffix(".kills.jsonl")


def _kills(
    program: Program, folder: Path, rng: random.Random, *, period_s: float, end_s: float
) -> Iterator[Kill]:
    """``kill -9`` of a random process every ``period_s``; each is seen coming back before the next."""
    next_s = time.time() + period_s / 2
    while next_s < end_s:
        sleep_until(program, next_s)
        victim, pid = rng.choice(sorted(_living(program, folder).items()))
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it ended by itself since; another one is drawn
        at_s = time.time()
        next_s += period_s
        yield Kill(at_s, victim, _back_s(folder, victim, pid, at_s, until_s=max(next_s, at_s + POLL_S)))
    sleep_until(program, end_s)


def _living(program: Program, folder: Path) -> Mapping[str, int]:
    """The processes of a run by name. A number that is not a child of the run's may be another program's by now."""
    deadline_s = time.monotonic() + BACK_TIMEOUT_S
    while time.monotonic() < deadline_s:
        program.require_alive()
        record = read_processes(folder)
        children = {child.pid for child in psutil.Process(program.pid).children(recursive=True)}
        entries = record.processes.items() if record is not None else ()
        living = {name: entry.pid for name, entry in entries if entry.pid in children}
        if living:
            return living
        time.sleep(POLL_S)
    raise UnavailableError(f"No process of {folder} lives", fix="see the logs of the run's folder")


def _back_s(folder: Path, victim: str, pid: int, at_s: float, *, until_s: float) -> float | None:
    while time.time() < until_s:
        record = read_processes(folder)
        entry = record.processes.get(victim) if record is not None else None
        if entry is not None and entry.pid is not None and entry.pid != pid:
            return time.time() - at_s
        time.sleep(POLL_S)
    return None


def new_steps(points: Sequence[StepPoint]) -> list[StepPoint]:
    """Points that are further than all before: after a restore the same steps are made again."""
    furthest = -1
    found: list[StepPoint] = []
    for point in points:
        if point.step > furthest:
            furthest = point.step
            found.append(point)
    return found


def steps_between(points: Sequence[StepPoint], start_s: float, end_s: float) -> int:
    """New learner steps between two moments."""
    return sum(start_s <= point.at_s < end_s for point in new_steps(points))


def recoveries(kills: Sequence[Kill], points: Sequence[StepPoint], *, end_s: float) -> list[Recovery]:
    """What each kill cost. A run that makes no step until the end has not recovered: it counts as that long."""
    moments = [point.at_s for point in new_steps(points)]
    found: list[Recovery] = []
    for number, kill in enumerate(kills):
        until_s = kills[number + 1].at_s if number + 1 < len(kills) else end_s
        next_at_s = next((at_s for at_s in moments if at_s > kill.at_s), max(end_s, kill.at_s))
        between = [kill.at_s, *(at_s for at_s in moments if kill.at_s < at_s < until_s), until_s]
        longest_s = max(after - before for before, after in pairwise(between))
        found.append(Recovery(kill, next_at_s - kill.at_s, longest_s))
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def service_of(instance: str) -> str:
    """``actor`` of ``actor-0``."""
    name, _, number = instance.rpartition("-")
    return name if number.isdigit() else instance


def _rows(of_case: Sequence[Found]) -> Iterator[Row]:
    case = of_case[0].case
    if case.share_min is not None:
        yield row(
            f"{case.name}: learner steps",
            "steps",
            [float(each.steps) for each in of_case],
            [float(each.steps_beside) for each in of_case],
            goal=Goal(case.share_min, "at_least", "ratio"),
        )
    yield row(f"{case.name}: kills", "", [float(len(each.recoveries)) for each in of_case])
    for name, values in {
        "not balanced": [float(not each.audit.balanced) for each in of_case],
        "trained twice": [float(each.audit.trained_twice) for each in of_case],
        "lag over the budget": [
            float(max(0, each.audit.max_lag_trained - (each.audit.max_lag or 0))) for each in of_case
        ],
    }.items():
        yield row(f"{case.name}: {name}", "", values, goal=Goal(0.0, "at_most", "figure", every=True))


def _recovery_rows(found: Sequence[Recovery]) -> Iterator[Row]:
    of_services: defaultdict[str, list[Recovery]] = defaultdict(list)
    for each in found:
        of_services[service_of(each.kill.victim)].append(each)
    for service, of_service in sorted(of_services.items()):
        bound = LEARNER_RECOVERY_P95_S_MAX if service == LEARNER else RECOVERY_P95_S_MAX
        next_step_s = [each.next_step_s for each in of_service]
        yield row(
            f"{service} killed {len(of_service)} times: to the next step, p95",
            "s",
            [percentile(next_step_s, 0.95)],
            goal=Goal(bound, "at_most", "figure"),
        )
        yield row(f"{service}: to the next step", "s", next_step_s)
        yield row(
            f"{service}: longest pause until the next kill",
            "s",
            [each.longest_pause_s for each in of_service],
        )
        yield row(
            f"{service}: to a new process",
            "s",
            [each.kill.back_s for each in of_service if each.kill.back_s is not None],
        )


def _sample(found: Found, repetition: int) -> Sample:
    return Sample(
        side="tidegate",
        label=found.case.name,
        repetition=repetition,
        work=float(found.steps),
        unit="steps",
        wall_s=found.wall_s,
        cpu_s=0.0,
        details={"kills": float(len(found.recoveries)), "steps_beside": float(found.steps_beside)},
    )


def _note(found: Found) -> str:
    share = f", {found.steps / found.steps_beside:.3f} of the run beside" if found.steps_beside else ""
    return (
        f"{len(found.recoveries)} kills in {found.wall_s:.0f} s, {found.steps} steps{share};"
        f" {'balanced' if found.audit.balanced else 'NOT balanced'}, {found.audit.trained_twice} trained twice,"
        f" lag at most {found.audit.max_lag_trained}"
    )
