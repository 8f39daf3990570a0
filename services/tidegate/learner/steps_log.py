"""``steps.jsonl``: one JSON line per step, for reports and for reading."""

import contextlib
import errno
import os
from pathlib import Path

import msgspec

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
        """Append to an existing file; an incomplete last line is terminated, so that it corrupts no other."""
        self._path = path
        self._bytes_max = bytes_max
        path.parent.mkdir(parents=True, exist_ok=True)
        self._torn = path.exists() and not _ends_whole(path)
        self._file = path.open("ab", buffering=0)
        self._encoder = msgspec.json.Encoder()

    def append(self, line: StepLine) -> None:
        """Append one line in a single write, so that a kill leaves whole lines.

        Raises:
            OSError: the disk refused; the line is lost, and the next one begins on a line of its own.
        """
        data = (b"\n" if self._torn else b"") + self._encoder.encode(line) + b"\n"
        if self._file.tell() + len(data) > self._bytes_max:
            self._rotate()
        self._torn = True
        if self._file.write(data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._torn = False

    def _rotate(self) -> None:
        """Begin the next file; the present one stays open until there is one."""
        with contextlib.suppress(FileNotFoundError):  # renamed before, when the next one could not be opened
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        following = self._path.open("ab", buffering=0)
        self._file.close()
        self._file = following

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
