"""The learning curve of one run folder, over samples, seconds and CPU-seconds, and several on one grid.

Shapes: R runs, X points of the grid.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from tidegate.catalogue import process
from tidegate.cli.samples import read_samples
from tidegate.cli.up.history import read_steps
from tidegate.cli.up.summary import read_summary
from tidegate.core.errors import NotFoundError

Axis = Literal["env_steps", "seconds", "cpu_s"]
AXES: dict[Axis, str] = {
    "env_steps": "samples trained",
    "seconds": "seconds since the first version was trained",
    "cpu_s": "CPU-seconds of the services",
}
POINTS = 120
# Of ``<service>.<statistic>`` in admission's samples.
CPU_SUFFIX = f".{process.CPU_S}"


class Curve(msgspec.Struct, frozen=True, eq=False):
    """Scores and lags of a run at each of its updates, with the position of each update on every axis.

    ``target_reached``: whether the run ended at its target.
    """

    positions: Mapping[Axis, NDArray[np.float64]]
    scores: NDArray[np.float64]
    lags: NDArray[np.float64]
    target_reached: bool
    audit_balanced: bool

    def end(self, axis: Axis) -> float:
        """Where the run ended."""
        return float(self.positions[axis][-1])

    def score_at(self, axis: Axis, grid_X: NDArray[np.float64]) -> NDArray[np.float64]:
        """The newest score at each point, the first one before it, the last one after the end."""
        return self.scores[self._newest(axis, grid_X)]

    def lag_at(self, axis: Axis, grid_X: NDArray[np.float64]) -> NDArray[np.float64]:
        """The mean lag of the newest batch at each point."""
        return self.lags[self._newest(axis, grid_X)]

    def _newest(self, axis: Axis, grid_X: NDArray[np.float64]) -> NDArray[np.intp]:
        return np.maximum(np.searchsorted(self.positions[axis], grid_X, side="right") - 1, 0)


def read_curve(folder: Path, *, score: str) -> Curve:
    """The curve of a run that ended; ``score`` is a number of the learner's steps, such as ``mean_return``.

    Raises:
        NotFoundError: the run has no summary, or no step with this score.
    """
    summary = read_summary(folder)
    if summary is None:
        raise NotFoundError(
            f"{folder} holds no run that ended", fix="let `tidegate up` finish, or run it again"
        )
    steps = [step for step in read_steps(folder) if isinstance(step.get(score), int | float)]
    if not steps:
        raise NotFoundError(
            f"No step of {folder} has {score}",
            why="the run ended before its first episode, or reports no such number",
            fix="train for longer, or choose another --score",
        )
    at_s = np.array([float(step["at_s"]) for step in steps])
    audit = cast("dict[str, Any]", summary.get("audit") or {})
    return Curve(
        positions={
            "env_steps": np.array([float(step["env_steps"]) for step in steps]),
            "seconds": at_s - at_s[0],
            "cpu_s": _cpu_s_at(folder, at_s),
        },
        scores=np.array([float(step[score]) for step in steps]),
        lags=np.array([float(step["lag_mean"]) for step in steps]),
        target_reached=bool(summary.get("reached")),
        audit_balanced=bool(audit.get("balanced")),
    )


def _cpu_s_at(folder: Path, at_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """CPU-seconds of all services since their start, between admission's samples by straight lines."""
    samples = list(_cpu_samples(folder))
    if not samples:
        return np.zeros_like(at_s)
    times = np.array([time_s for time_s, _ in samples])
    totals = np.array([total_s for _, total_s in samples])
    # A restarted process counts from zero: what the sum loses is kept.
    lost = np.concatenate(([0.0], np.cumsum(np.maximum(0.0, -np.diff(totals)))))
    return np.asarray(np.interp(at_s, times, totals + lost), np.float64)


def _cpu_samples(folder: Path) -> Iterator[tuple[float, float]]:
    for sample in read_samples(folder):
        values = cast("dict[str, float]", sample.get("values") or {})
        total_s = sum(value for name, value in values.items() if name.endswith(CPU_SUFFIX))
        if total_s > 0.0:
            yield float(sample["at_s"]), total_s


def grid(curves: Sequence[Curve], axis: Axis) -> NDArray[np.float64]:
    """Points from the start to where the last run ended: a run that reached its target keeps its last score."""
    return np.linspace(0.0, max(curve.end(axis) for curve in curves), POINTS)


def by_name(runs: Sequence[tuple[str, Curve]]) -> dict[str, list[Curve]]:
    """The curves of each configuration, in the order of their first run."""
    return {name: [curve for _, curve in group] for name, group in groupby(runs, key=lambda run: run[0])}
