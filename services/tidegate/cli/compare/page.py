"""The comparison as a page and as a table."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from tidegate.cli.compare.curves import AXES, Axis, Curve, grid
from tidegate.cli.report.figures import Band, band_chart
from tidegate.cli.report.page import plain_page
from tidegate.core.interval_estimates import CONFIDENCE, interval_estimate

HEAD = ("run file", "runs", "reached", "score at the end", "samples", "seconds", "CPU-s", "lag")


class ComparisonRow(msgspec.Struct, frozen=True):
    """One configuration: medians over its runs of what it took to the end, and the interval of its last score."""

    name: str
    num_runs: int
    num_reached: int
    num_balanced: int
    score: float
    score_low: float
    score_high: float
    env_steps: float
    seconds: float
    cpu_s: float
    lag_mean: float


def compared(curves: Mapping[str, Sequence[Curve]], *, seed: int) -> list[ComparisonRow]:
    """A row for each configuration; ``seed`` draws the bootstrap."""
    rows: list[ComparisonRow] = []
    for name, runs in curves.items():
        last = interval_estimate(
            np.array([[run.scores[-1]] for run in runs]), rng=np.random.default_rng(seed)
        )
        rows.append(
            ComparisonRow(
                name=name,
                num_runs=len(runs),
                num_reached=sum(run.target_reached for run in runs),
                num_balanced=sum(run.audit_balanced for run in runs),
                score=float(last.middle_X[0]),
                score_low=float(last.low_X[0]),
                score_high=float(last.high_X[0]),
                env_steps=_median(runs, "env_steps"),
                seconds=_median(runs, "seconds"),
                cpu_s=_median(runs, "cpu_s"),
                lag_mean=float(np.mean([run.lags.mean() for run in runs])),
            )
        )
    return rows


def _median(runs: Sequence[Curve], axis: Axis) -> float:
    return float(np.median([run.end(axis) for run in runs]))


def lines_of(rows: Sequence[ComparisonRow]) -> list[tuple[str, ...]]:
    """The table as text, without its head."""
    return [
        (
            row.name,
            str(row.num_runs),
            str(row.num_reached),
            f"{row.score:,.4g} [{row.score_low:,.4g}, {row.score_high:,.4g}]",
            f"{row.env_steps:,.0f}",
            f"{row.seconds:,.1f}",
            f"{row.cpu_s:,.1f}",
            f"{row.lag_mean:.2f}",
        )
        for row in rows
    ]


def render_comparison(
    curves: Mapping[str, Sequence[Curve]], rows: Sequence[ComparisonRow], *, score: str, seed: int
) -> str:
    """The whole page as HTML: the score over each axis with its interval, and the lag on the second axis."""
    charts = [
        (
            f"{score} over {label}",
            "Solid: the score; dotted: mean lag.",
            _chart(curves, axis, label, seed=seed),
        )
        for axis, label in AXES.items()
    ]
    lead = (
        f"Interquartile means over runs with {CONFIDENCE:.0%} bootstrap intervals; samples, seconds and CPU-seconds "
        "are medians to the end of a run. A run that reached its target keeps its last score."
    )
    return plain_page("Comparison", lead, charts, table=[HEAD, *lines_of(rows)])


def _chart(curves: Mapping[str, Sequence[Curve]], axis: Axis, label: str, *, seed: int) -> str:
    grid_X = grid([curve for runs in curves.values() for curve in runs], axis)
    bands: dict[str, Band] = {}
    for name, runs in curves.items():
        scores_RX = np.array([run.score_at(axis, grid_X) for run in runs])
        estimate = interval_estimate(scores_RX, rng=np.random.default_rng(seed))
        bands[name] = Band(
            xs=grid_X.tolist(),
            middle=estimate.middle_X.tolist(),
            low=estimate.low_X.tolist(),
            high=estimate.high_X.tolist(),
            second=np.mean([run.lag_at(axis, grid_X) for run in runs], axis=0).tolist(),
        )
    return band_chart(f"score-{axis}", bands, x_label=label, second_label="lag")
