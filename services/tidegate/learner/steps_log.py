"""``steps.jsonl``: one JSON line per step, for reports and for reading."""

from pathlib import Path

import msgspec

from tidegate.runtime.json_lines_file import JsonLinesFile

STEPS_FILE = "steps.jsonl"


class StepLine(msgspec.Struct, frozen=True):
    """One step. ``samples`` are its trajectories, ``env_steps`` all steps trained so far; times in seconds.

    With replay ``samples`` are its units, whose lags are left out, and ``env_steps`` what actors had recorded.
    ``by_lag``: how many of its trajectories had each lag.

    ``step`` and ``lineage`` name the version that it produced. ``mean_return`` is over the last 100 episodes,
    ``mean_reward`` over this step's trajectories; None where the workload has none.
    ``updates``: of which only the last was published; metrics are their means.
    ``response``: the graded response to the batch's lag, empty for none.
    ``metrics``: everything else that the objective and its optimiser reported, by name: docs/run_folder.md lists them.
    """

    step: int
    lineage: str
    at_s: float
    samples: int
    env_steps: int
    lag_mean: float
    lag_max: int
    by_lag: dict[int, int]
    age_mean_s: float
    mean_return: float | None
    mean_reward: float | None
    loss: float | None
    ess: float | None
    clipped_fraction: float | None
    wait_s: float
    train_s: float
    publish_s: float
    response: dict[str, float] = {}
    updates: int = 1
    metrics: dict[str, float] = {}


# Of the metrics of an update, those that have a field of their own.
OWN_FIELDS = frozenset({"loss", "ess", "clipped_fraction", "updates"})


class StepsLog:
    """Appends lines; at ``bytes_max`` the file becomes ``steps.jsonl.1`` and replaces the previous one."""

    def __init__(self, path: Path, *, bytes_max: int) -> None:
        """Append to an existing file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = JsonLinesFile(path, bytes_max=bytes_max)
        self._encoder = msgspec.json.Encoder()

    def append(self, line: StepLine) -> None:
        """Append one line.

        Raises:
            OSError: as ``JsonLinesFile.append``.
        """
        self._file.append(self._encoder.encode(line) + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
