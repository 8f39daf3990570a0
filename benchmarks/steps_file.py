"""Follows a ``steps.jsonl``: of a platform's learner, or of the peer, which writes the same lines."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec


class StepPoint(msgspec.Struct, frozen=True):
    """What is read of a line (``learner.steps_log`` writes more). ``env_steps`` counts from the start.

    ``by_lag``: how many of its trajectories had each lag.
    """

    step: int
    at_s: float
    env_steps: int
    lag_mean: float
    lag_max: int
    mean_return: float | None
    wait_s: float = 0.0
    train_s: float = 0.0
    samples: int = 0
    by_lag: dict[int, int] = {}


class StepsFile:
    """Reads the lines appended since the last call; a line that is still being written waits for the next call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._decoder = msgspec.json.Decoder(StepPoint)
        self._read_bytes = 0
        self.points: list[StepPoint] = []

    def read(self) -> list[StepPoint]:
        """All points so far."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read_bytes)
                data = file.read()
        except FileNotFoundError:
            return self.points
        whole = data[: data.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        for line in whole.splitlines():
            with suppress(msgspec.DecodeError):  # cut by a kill of the learner
                self.points.append(self._decoder.decode(line))
        return self.points


def first_reaching(points: Sequence[StepPoint], *, mean_return: float) -> StepPoint | None:
    """The first step whose mean return over the last 100 episodes is at least ``mean_return``."""
    return next(
        (point for point in points if point.mean_return is not None and point.mean_return >= mean_return),
        None,
    )
