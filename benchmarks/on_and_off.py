"""The same CartPole run with something on and off, both at the same time through the same windows.

A difference of two percent is far below what a shared machine does to two runs one after the other.
"""

from collections.abc import Callable, Sequence

from benchmarks.cartpole import alternating, lengths
from benchmarks.results import Goal, Row, Sample, Side, row
from benchmarks.setting import BenchSetting, print_progress
from benchmarks.training_run import Window, measure_beside, remove_folder, up_command

SIDES: tuple[Side, ...] = ("tidegate", "peer")
# The learner's work a step is the same with every seed; one seed makes the runs of a pair alike.
SEED = 1

Windows = dict[Side, list[Window]]


def measure(
    setting: BenchSetting, name: str, *, overrides: Sequence[str], repetitions: int, word: str = ""
) -> Windows:
    """Pairs of runs, on ("tidegate", with ``overrides``) and off ("peer"); who starts first changes.

    ``word``: as of ``measure_beside``.

    Raises:
        UnavailableError: a run ended early.
    """
    windows: Windows = {"tidegate": [], "peer": []}
    for repetition in range(setting.repeat(repetitions)):
        order = alternating(repetition)
        folders = {side: setting.folder / f"{name}-{side}-{repetition}" for side in order}
        commands = {
            side: up_command(
                setting.run_file,
                folder=folders[side],
                overrides=[f"seed={SEED}", *(overrides if side == "tidegate" else ())],
            )
            for side in order
        }
        found = measure_beside(commands, folders, lengths(setting), word=word)
        for side in SIDES:
            windows[side].append(found[side])
            remove_folder(folders[side])
        print_progress(
            f"{name} {repetition + 1}: "
            + ", ".join(f"{side} {rate(found[side]):,.0f} steps a CPU-second" for side in SIDES)
        )
    return windows


def rate(window: Window) -> float:
    """Environment steps a CPU-second of all of the platform's processes."""
    return window.steps_per_cpu_s


def both_row(
    windows: Windows,
    title: str,
    unit: str,
    figure: Callable[[Window], float],
    *,
    ratio_min: float | None = None,
) -> Row:
    """A figure of both sides, on (tidegate) and off (peer)."""
    goal = None if ratio_min is None else Goal(ratio_min, "at_least", "ratio")
    on, off = ([figure(each) for each in windows[side]] for side in SIDES)
    return row(title, unit, on, off, goal=goal)


def samples(windows: Windows, *, what: str = "") -> list[Sample]:
    """Every window of both sides; ``what`` was on and off."""
    return [
        Sample(
            side=side,
            label=f"{what} {'on' if side == 'tidegate' else 'off'}".strip(),
            repetition=repetition,
            work=window.steps,
            unit="steps",
            wall_s=window.wall_s,
            cpu_s=window.cpu_s,
            details={
                "updates": float(window.updates),
                **{f"cpu_s_{name}": spent_s for name, spent_s in window.cpu_s_by_process.items()},
            },
        )
        for side in SIDES
        for repetition, window in enumerate(windows[side])
    ]
