"""``steps.jsonl``: one line a step, for the report and for anybody with a text editor."""

import os
from pathlib import Path

import msgspec


class StepLine(msgspec.Struct, frozen=True):
    """One step. ``samples`` are its trajectories, ``env_steps`` all steps trained so far; times in seconds.

    ``step`` and ``lineage`` name the version that it made. ``mean_return`` is over the last 100 episodes,
    ``mean_reward`` over this step's trajectories; None where the workload has no such thing.
    ``response``: what the graded response did about the batch's lag, empty for nothing.
    """

    step: int
    lineage: str
    at_s: float
    samples: int
    env_steps: int
    lag_mean: float
    lag_max: int
    lags: list[int]
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


class StepsLog:
    """Appends lines; at ``bytes_max`` the file becomes ``steps.jsonl.1``, in place of the one before."""

    def __init__(self, path: Path, *, bytes_max: int) -> None:
        """Go on behind what is there; a line that a power cut tore is closed, so that it spoils no other."""
        self._path = path
        self._bytes_max = bytes_max
        path.parent.mkdir(parents=True, exist_ok=True)
        torn = path.exists() and not _ends_whole(path)
        self._file = path.open("ab", buffering=0)
        self._encoder = msgspec.json.Encoder()
        if torn:
            self._file.write(b"\n")

    def append(self, line: StepLine) -> None:
        """One write, so that a kill leaves whole lines."""
        data = self._encoder.encode(line) + b"\n"
        if self._file.tell() + len(data) > self._bytes_max:
            self._file.close()
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
            self._file = self._path.open("ab", buffering=0)
        self._file.write(data)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
