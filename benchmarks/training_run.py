"""One training run under measurement: a window of steady state, the way to the target, and the whole.

The same for the platform and for its peer, which both write ``learner/steps.jsonl`` into their folder.
"""

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from benchmarks.process_tree import children_of, command_cpu_s, process_cpu_s
from benchmarks.program import Moment, Program
from benchmarks.steps_file import StepPoint, StepsFile, first_reaching
from tidegate.core.errors import DeadlineError
from tidegate.launch.run_folder import is_run_folder, read_processes

STEPS_FILE = Path("learner") / "steps.jsonl"
POLL_S = 0.1
FIRST_GRADIENT_TIMEOUT_S = 300.0
# A target that no run can reach: the bench ends it. `--for` bounds what an abandoned one may cost.
NEVER = "version_step>=1000000000"
# As the platform starts its services: a second thread in one process only takes the core of another.
THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Window(msgspec.Struct, frozen=True):
    """What happened between two moments. ``others_cores``: cores that other processes kept busy meanwhile."""

    steps: int
    updates: int
    wall_s: float
    cpu_s: float
    others_cores: float
    cpu_s_by_process: dict[str, float]

    @property
    def steps_per_cpu_s(self) -> float:
        """Of all processes."""
        return self.steps / self.cpu_s

    @property
    def steps_per_s(self) -> float:
        """Of wall time."""
        return self.steps / self.wall_s


class Reading(msgspec.Struct, frozen=True):
    """A running program at one moment: its newest step, and CPU seconds so far of some of its processes by name."""

    moment: Moment
    step: StepPoint | None
    cpu_s_by_process: dict[str, float]


class TrainingRun(msgspec.Struct, frozen=True):
    """``steady`` begins well after the first gradient; ``whole`` from the first process to the end of ``steady``."""

    first_gradient_s: float
    steady: Window
    whole: Window
    reached: StepPoint | None
    reached_after_s: float | None
    lag_mean: float
    lag_max: int
    points: list[StepPoint]


class Length(msgspec.Struct, frozen=True):
    """Seconds after the first gradient before the window begins, of the window, and at most until the target."""

    warm_up_s: float
    window_s: float
    target_return: float | None = None
    target_timeout_s: float = 120.0


def up_command(
    run_file: Path, *, folder: Path, until: str = NEVER, limit_s: float = 600.0, overrides: Sequence[str] = ()
) -> list[str]:
    """``tidegate up`` as a person would type it."""
    command = [sys.executable, "-m", "tidegate.cli.main", "up", str(run_file), "--headless", "--json"]
    command += ["--dir", str(folder), "--until", until, "--for", f"{limit_s:g}s"]
    for override in overrides:
        command += ["--set", override]
    return command


def measure_training(command: Sequence[str], *, folder: Path, length: Length) -> TrainingRun:
    """Start ``command``, measure, end it.

    Raises:
        UnavailableError: it ended by itself, or no gradient came in time.
    """
    steps = StepsFile(folder / STEPS_FILE)
    log = folder.with_name(f"{folder.name}.log")
    with Program(command, log=log, environment=THREADS) as program:
        begun = program.moment()
        _wait_for_first_gradient(program, steps)
        first = steps.points[0]
        sleep_until(program, first.at_s + length.warm_up_s)
        start = Reading(program.moment(), steps.read()[-1], cpu_s_by_process(program, folder))
        sleep_until(program, start.moment.at_s + length.window_s)
        end = Reading(program.moment(), steps.read()[-1], cpu_s_by_process(program, folder))
        if length.target_return is not None:
            _wait_for_target(program, steps, length)
        points = list(steps.read())
    reached = (
        first_reaching(points, mean_return=length.target_return) if length.target_return is not None else None
    )
    return TrainingRun(
        first_gradient_s=first.at_s - program.started_at_s,
        steady=_window(start, end),
        whole=_window(
            Reading(msgspec.structs.replace(begun, at_s=program.started_at_s, cpu_s=0.0), None, {}), end
        ),
        reached=reached,
        reached_after_s=reached.at_s - program.started_at_s if reached is not None else None,
        lag_mean=sum(point.lag_mean for point in points) / len(points),
        lag_max=max(point.lag_max for point in points),
        points=points,
    )


def measure_beside(
    commands: Mapping[str, Sequence[str]], folders: Mapping[str, Path], length: Length, *, word: str = ""
) -> dict[str, Window]:
    """Run programs at the same time and measure all of them over the same window.

    ``word``: of the command lines of processes whose CPU time is told apart, under this name.

    What the rest of the machine does then happens to all of them, which leaves the difference between them: for that
    it is the sharper measurement, and no figure of it shows how fast one of them is alone.

    Raises:
        UnavailableError: one ended by itself, or no gradient came in time.
    """
    steps = {name: StepsFile(folder / STEPS_FILE) for name, folder in folders.items()}
    with ExitStack() as stack:
        programs = {
            name: stack.enter_context(
                Program(
                    command, log=folders[name].with_name(f"{folders[name].name}.log"), environment=THREADS
                )
            )
            for name, command in commands.items()
        }
        for name, program in programs.items():
            _wait_for_first_gradient(program, steps[name])
        watched = next(iter(programs.values()))

        def read() -> dict[str, Reading]:
            return {
                name: Reading(
                    program.moment(),
                    steps[name].read()[-1],
                    {word: command_cpu_s(program.pid, word)} if word else {},
                )
                for name, program in programs.items()
            }

        sleep_until(watched, time.time() + length.warm_up_s)
        before = read()
        sleep_until(watched, time.time() + length.window_s)
        after = read()
    return {name: _window(before[name], after[name]) for name in programs}


def wait_for_training(program: Program, folder: Path, *, after_s: float) -> float:
    """Return ``after_s`` seconds after the first gradient, with that gradient's time since the epoch.

    Raises:
        UnavailableError: the program ended by itself, or no gradient came in time.
    """
    steps = StepsFile(folder / STEPS_FILE)
    _wait_for_first_gradient(program, steps)
    first_at_s = steps.points[0].at_s
    sleep_until(program, first_at_s + after_s)
    return first_at_s


def _wait_for_first_gradient(program: Program, steps: StepsFile) -> None:
    deadline_s = time.monotonic() + FIRST_GRADIENT_TIMEOUT_S
    while not steps.read():
        program.require_alive()
        if time.monotonic() > deadline_s:
            raise DeadlineError(
                f"No gradient within {FIRST_GRADIENT_TIMEOUT_S:g} s", fix="see the logs of the run's folder"
            )
        time.sleep(POLL_S)


def _wait_for_target(program: Program, steps: StepsFile, length: Length) -> None:
    """A run that does not reach it in time is reported as such; it affects no other figure."""
    assert length.target_return is not None
    deadline_s = time.monotonic() + length.target_timeout_s
    while time.monotonic() < deadline_s:
        if first_reaching(steps.read(), mean_return=length.target_return) is not None:
            return
        program.require_alive()
        time.sleep(POLL_S)


def sleep_until(program: Program, at_s: float) -> None:
    """Return at a moment, in seconds since the epoch.

    Raises:
        UnavailableError: the program ended by itself.
    """
    while (left_s := at_s - time.time()) > 0:
        time.sleep(min(left_s, POLL_S * 5))
        program.require_alive()


def _window(start: Reading, end: Reading) -> Window:
    """Between two readings; a start without a step is before the first. Processes of both are told apart."""
    assert end.step is not None, "a window ends while it trains"
    wall_s, cpu_s = end.moment.at_s - start.moment.at_s, end.moment.cpu_s - start.moment.cpu_s
    return Window(
        steps=end.step.env_steps - (start.step.env_steps if start.step is not None else 0),
        updates=end.step.step - (start.step.step if start.step is not None else 0),
        wall_s=wall_s,
        cpu_s=cpu_s,
        others_cores=max(0.0, (end.moment.machine_s - start.moment.machine_s - cpu_s) / wall_s),
        cpu_s_by_process={
            name: spent_s - start.cpu_s_by_process[name]
            for name, spent_s in end.cpu_s_by_process.items()
            if name in start.cpu_s_by_process
        },
    )


def cpu_s_by_process(program: Program, folder: Path) -> dict[str, float]:
    """CPU seconds so far of the processes that a platform names in its folder; of its root alone for a peer."""
    pids = {"up": program.pid}
    if is_run_folder(folder) and (record := read_processes(folder)) is not None:
        pids |= {name: entry.pid for name, entry in record.processes.items() if entry.pid is not None}
    else:
        pids = {"learner": program.pid}
        pids |= {f"child-{index}": pid for index, pid in enumerate(sorted(children_of(program.pid)))}
    spent_s = {name: process_cpu_s(pid) for name, pid in pids.items()}
    return {name: value for name, value in spent_s.items() if value is not None}


def remove_folder(folder: Path) -> None:
    """Free what a measured run wrote; its log stays."""
    shutil.rmtree(folder, ignore_errors=True)
