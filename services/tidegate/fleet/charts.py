"""A sweep as one page that needs nothing else: lines in SVG, and the numbers below."""

from collections.abc import Callable, Sequence
from html import escape
from math import log2

import msgspec

from tidegate.fleet.report import FleetReport
from tidegate.fleet.sweep import Sweep

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 16, 40
COLOURS = ("#0b6e99", "#c2410c", "#4d7c0f", "#7e22ce")
GRID_LINES = 4

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 46rem; padding: 0 1rem;
  color: #1c1917; background: #fff; }
svg { width: 100%; height: auto; } svg text { font-size: 12px; fill: #57534e; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
td, th { padding: .2rem .5rem; text-align: right; border-bottom: 1px solid #e7e5e4; }
.key { display: inline-block; width: 1.2em; height: .3em; margin: 0 .3em 0 1em; vertical-align: middle; }
@media (prefers-color-scheme: dark) { body { color: #e7e5e4; background: #1c1917; } svg text { fill: #a8a29e; }
  td, th { border-color: #44403c; } }
"""


class Line(msgspec.Struct, frozen=True):
    """One curve over the swept values."""

    name: str
    values: tuple[float, ...]


def page(sweep: Sweep, *, title: str) -> str:
    """The whole page as HTML."""
    at = [point.value for point in sweep.points]
    sync = [point.sync for point in sweep.points]
    asynchronous = [point.asynchronous for point in sweep.points]
    lag = [_line("mean", asynchronous, _lag_mean), _line("95th percentile", asynchronous, _lag_p95)]
    if sweep.lag_bound is not None:
        lag.append(Line("bound", (sweep.lag_bound,) * len(at)))
    charts = [
        ("Samples a second", [_line("synchronous", sync, _rate), _line("asynchronous", asynchronous, _rate)]),
        ("Lag of asynchronous training, in versions", lag),
        (
            "A synchronous round, in seconds",
            [
                _line("rollout", sync, _rollout),
                _line("waits for stragglers", sync, _straggler),
                _line("waits for the learner", sync, _stall),
                _line("waits for weights", sync, _weights),
            ],
        ),
        (
            "The learner's idle time, as a share",
            [_line("synchronous", sync, _learner_idle), _line("asynchronous", asynchronous, _learner_idle)],
        ),
    ]
    drawn = "".join(
        f"<h2>{escape(name)}</h2>{chart(at, lines, label=sweep.setting)}" for name, lines in charts
    )
    found = "".join(f"<li>{escape(sentence)}</li>" for sentence in crossovers(sweep))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
        f"<h1>{escape(title)}</h1><ul>{found}</ul>{drawn}<h2>Numbers</h2>{_table(sweep)}</html>\n"
    )


def crossovers(sweep: Sweep) -> list[str]:
    """What the sweep found, a sentence each."""
    sentences: list[str] = []
    if sweep.setting == "actors":
        for mode, at in (
            ("synchronous", sweep.sync_stops_helping_at),
            ("asynchronous", sweep.async_stops_helping_at),
        ):
            sentences.append(
                f"More actors stop helping {mode} training from {at} on."
                if at is not None
                else f"More actors help {mode} training over the whole sweep."
            )
    if sweep.lag_bound is not None:
        sentences.append(
            f"The mean lag of asynchronous training passes {sweep.lag_bound:g} at"
            f" {sweep.setting} = {sweep.lag_passes_bound_at}."
            if sweep.lag_passes_bound_at is not None
            else f"The mean lag of asynchronous training stays at or below {sweep.lag_bound:g}."
        )
    return sentences


def chart(at: Sequence[int], lines: Sequence[Line], *, label: str) -> str:
    """Curves over ``at``, which lies on a logarithmic axis, as an SVG element with its key."""
    top = max((value for line in lines for value in line.values), default=0.0) or 1.0
    first, last = log2(max(1, at[0])), log2(max(1, at[-1]))
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(value: int) -> float:
        share = (log2(max(1, value)) - first) / (last - first) if last > first else 0.5
        return LEFT + share * width

    def y(value: float) -> float:
        return TOP + (1 - value / top) * height

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">']
    for index in range(GRID_LINES + 1):
        value = top * index / GRID_LINES
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#a8a29e55"/>'
            f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.3g}</text>'
        )
    for value in at[:: max(1, len(at) // 8)]:
        parts.append(f'<text x="{x(value):.1f}" y="{HEIGHT - 20}" text-anchor="middle">{value}</text>')
    parts.append(f'<text x="{LEFT + width / 2}" y="{HEIGHT - 4}" text-anchor="middle">{escape(label)}</text>')
    for line, colour in zip(lines, COLOURS, strict=False):
        points = " ".join(
            f"{x(value):.1f},{y(number):.1f}" for value, number in zip(at, line.values, strict=True)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
    key = "".join(
        f'<span class="key" style="background:{colour}"></span>{escape(line.name)}'
        for line, colour in zip(lines, COLOURS, strict=False)
    )
    return "".join([*parts, "</svg>", f"<p>{key}</p>"])


def _table(sweep: Sweep) -> str:
    head = (sweep.setting, "sync /s", "async /s", "lag mean", "lag p95", "lag max", "waste", "queue")
    rows = [
        (
            f"{point.value}",
            f"{point.sync.samples_per_s:,.1f}",
            f"{point.asynchronous.samples_per_s:,.1f}",
            f"{point.asynchronous.lag_mean:.2f}",
            f"{point.asynchronous.lag_p95}",
            f"{point.asynchronous.lag_max}",
            f"{point.asynchronous.waste_ratio:.1%}",
            f"{point.asynchronous.queue_mean:,.0f}",
        )
        for point in sweep.points
    ]
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{cells}</tr>{body}</table>"


def _line(name: str, reports: Sequence[FleetReport], number: Callable[[FleetReport], float]) -> Line:
    return Line(name, tuple(number(report) for report in reports))


def _rate(report: FleetReport) -> float:
    return report.samples_per_s


def _lag_mean(report: FleetReport) -> float:
    return report.lag_mean


def _lag_p95(report: FleetReport) -> float:
    return report.lag_p95


def _rollout(report: FleetReport) -> float:
    return report.round.rollout_s


def _straggler(report: FleetReport) -> float:
    return report.round.straggler_wait_s


def _stall(report: FleetReport) -> float:
    return report.round.learner_stall_s


def _weights(report: FleetReport) -> float:
    return report.round.weights_wait_s


def _learner_idle(report: FleetReport) -> float:
    return report.learner_idle_ratio
