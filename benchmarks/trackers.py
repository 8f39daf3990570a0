"""What each experiment tracker costs a CartPole run: on beside off, the tracker's own process included.

CartPole makes ten updates a second, each with all of its curves: a model whose update takes seconds pays a share of it.
"""

from importlib.util import find_spec

from benchmarks.on_and_off import both_row, measure, rate, samples
from benchmarks.results import BenchResult, Goal, Row, Sample, row
from benchmarks.setting import BenchSetting
from tidegate.cli.track.registry import TRACKERS
from tidegate.core.errors import UnavailableError

REPETITIONS = 3
RATIO_MIN = 0.99
SHARE_MAX = 0.01
# Of the command line of a tracker's process.
TRACK = "track"


def run(setting: BenchSetting) -> BenchResult:
    """Each installed tracker, on ("tidegate") and off ("peer").

    Raises:
        UnavailableError: no tracker is installed, or a run ended early.
    """
    # Each has the name of its package.
    installed = [name for name in TRACKERS if find_spec(name) is not None]
    if not installed:
        raise UnavailableError("No tracker is installed", fix="run `make trackers`")
    rows: list[Row] = []
    found: list[Sample] = []
    for name in installed:
        windows = measure(
            setting, f"trackers-{name}", overrides=[f"track=[{name}]"], repetitions=REPETITIONS, word=TRACK
        )
        title = f"{name}, on and off"
        rows.append(both_row(windows, title, "steps/CPU-s", rate))
        rows.append(
            both_row(windows, title, "steps/s", lambda window: window.steps_per_s, ratio_min=RATIO_MIN)
        )
        rows.append(
            row(
                f"{name}, its process",
                "of the run's CPU",
                [window.cpu_s_by_process[TRACK] / window.cpu_s for window in windows["tidegate"]],
                goal=Goal(SHARE_MAX, "at_most", "figure"),
            )
        )
        found += samples(windows, what=name)
    return BenchResult(
        name="trackers",
        rows=rows,
        samples=found,
        notes=[f"not installed: {name}" for name in TRACKERS if name not in installed],
    )
