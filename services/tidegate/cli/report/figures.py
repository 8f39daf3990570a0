"""Plots as SVG text that takes its colours from the page, so that one file suits light and dark.

matplotlib draws with placeholder colours; afterwards each becomes a CSS variable. Text stays text.
"""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import matplotlib as mpl
import msgspec
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tidegate.cli.thinning import thin

# Placeholders that no drawing uses by chance, and what the page calls them.
FOREGROUND, GRID, PAPER = "#010203", "#040506", "#070809"
SERIES = ("#0a0b01", "#0a0b02", "#0a0b03", "#0a0b04", "#0a0b05", "#0a0b06", "#0a0b07", "#0a0b08")
LIMIT = "#0a0b09"
_VARIABLES = {
    FOREGROUND: "var(--muted)",
    GRID: "var(--grid)",
    PAPER: "var(--card)",
    LIMIT: "var(--limit)",
    **{color: f"var(--series-{index})" for index, color in enumerate(SERIES)},
}
POINTS_MAX = 1_200
# Margin next to the bars, in bar widths, where few bars would fill the drawing.
NARROW_MARGIN = 1.0
SIZE_INCHES = (6.2, 2.75)

_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tidegate",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.edgecolor": GRID,
    "axes.labelcolor": FOREGROUND,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": FOREGROUND,
    "xtick.color": FOREGROUND,
    "ytick.color": FOREGROUND,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "font.size": 9,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.7,
    "lines.solid_capstyle": "round",
}

Points = Sequence[tuple[float, float]]
Limit = tuple[float, str]


class Band(msgspec.Struct, frozen=True):
    """A line with the interval around it, and a further line on the second axis, over the same ``xs``."""

    xs: Sequence[float]
    middle: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    second: Sequence[float]


def line_chart(
    key: str,
    series: Mapping[str, Points],
    *,
    x_label: str,
    limit: Limit | None = None,
    percent: bool = False,
    steps: bool = False,
    fill: bool = False,
    at: Sequence[int] = (),
) -> str:
    """Lines over a shared x axis. ``limit`` is a dashed line with its name; ``steps`` holds each value to the next.

    ``key``: unique name of the drawing on the page. ``at``: the x values of a sweep, marked on a logarithmic axis.
    """

    def draw(axes: Any) -> None:
        if at:
            axes.set_xscale("log", base=2)
        for index, (name, points) in enumerate(series.items()):
            xs, ys = zip(*thin(points, most=POINTS_MAX), strict=True) if points else ((), ())
            color = SERIES[index % len(SERIES)]
            axes.plot(xs, ys, color=color, label=name, drawstyle="steps-post" if steps else "default")
            if fill and index == 0:
                axes.fill_between(
                    xs, ys, color=color, alpha=0.12, linewidth=0, step="post" if steps else None
                )
        if limit is not None:
            axes.axhline(limit[0], color=LIMIT, linewidth=1.2, linestyle=(0, (4, 3)))
            axes.annotate(
                limit[1], (0.0, limit[0]), xycoords=("axes fraction", "data"), xytext=(4, 3),
                textcoords="offset points", ha="left", va="bottom", color=LIMIT, fontsize=8.5,
            )  # fmt: skip
        axes.set_xlabel(x_label)
        axes.margins(x=0.01)
        _from_zero(axes)
        if at:
            marked = at[:: max(1, len(at) // 8)]
            axes.set_xticks(marked, labels=[thousands(value, 0) for value in marked])
            axes.set_xticks([], minor=True)
        if percent:
            axes.set_ylim(0, 1.02)
            axes.yaxis.set_major_formatter(FuncFormatter(percents))
        if len(series) > 1:
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.17), ncols=len(series), handlelength=1.2)

    return _svg(key, draw)


def band_chart(key: str, bands: Mapping[str, Band], *, x_label: str, second_label: str) -> str:
    """Lines with intervals; dotted lines belong to the second axis, on the right."""

    def draw(axes: Any) -> None:
        second: Any = axes.twinx()
        for index, (name, band) in enumerate(bands.items()):
            color = SERIES[index % len(SERIES)]
            axes.plot(band.xs, band.middle, color=color, label=name)
            axes.fill_between(band.xs, band.low, band.high, color=color, alpha=0.15, linewidth=0)
            second.plot(band.xs, band.second, color=color, linewidth=1.0, linestyle=(0, (1, 2)))
        axes.set_xlabel(x_label)
        axes.margins(x=0.01)
        _from_zero(axes)
        second.set_ylabel(second_label, color=FOREGROUND)
        second.grid(visible=False)
        _from_zero(second)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.17), ncols=len(bands), handlelength=1.2)

    return _svg(key, draw)


def bar_chart(
    key: str,
    counts: Mapping[str, float],
    *,
    x_label: str,
    limit_after: int | None = None,
    colors: bool = False,
) -> str:
    """One bar a name; ``limit_after`` draws a dashed line after that many bars."""

    def draw(axes: Any) -> None:
        names, heights = list(counts), list(counts.values())
        palette = [SERIES[index % len(SERIES)] if colors else SERIES[0] for index in range(len(names))]
        bars = axes.bar(names, heights, color=palette, width=0.72)
        if len(names) <= 12:
            axes.bar_label(bars, labels=[thousands(height, 0) for height in heights], padding=2, fontsize=8.5)
        if limit_after is not None:
            axes.axvline(limit_after - 0.5, color=LIMIT, linewidth=1.2, linestyle=(0, (4, 3)))
        axes.set_xlabel(x_label)
        axes.grid(visible=False, axis="x")
        axes.margins(y=0.16)
        axes.set_xlim(
            -0.5 - NARROW_MARGIN * (len(names) < 4), len(names) - 0.5 + NARROW_MARGIN * (len(names) < 4)
        )
        if len(names) > 16:
            axes.xaxis.set_major_locator(MaxNLocator(12, integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(thousands))

    return _svg(key, draw)


def stacked_chart(key: str, series: Mapping[str, Points], *, x_label: str) -> str:
    """Areas on top of each other; every series has the same x values."""

    def draw(axes: Any) -> None:
        thinned = {name: thin(points, most=POINTS_MAX) for name, points in series.items()}
        xs = [x for x, _ in next(iter(thinned.values()))]
        heights = [[y for _, y in points] for points in thinned.values()]
        axes.stackplot(
            xs, *heights, labels=list(thinned), colors=SERIES[: len(heights)], alpha=0.75, linewidth=0
        )
        axes.set_xlabel(x_label)
        axes.margins(x=0.01)
        _from_zero(axes)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.17), ncols=len(series), handlelength=1.0)

    return _svg(key, draw)


def thousands(value: float, _position: int) -> str:
    """``1,200``, ``85k`` or ``1.2M``."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:.3g}M"
    if abs(value) >= 10_000:
        return f"{value / 1e3:.3g}k"
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def percents(value: float, _position: int) -> str:
    """``40%``."""
    return f"{value:.0%}"


def _from_zero(axes: Any) -> None:
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.0) if low < 0 else 0.0, high)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=high > 3))
    axes.yaxis.set_major_formatter(FuncFormatter(thousands))
    axes.xaxis.set_major_formatter(FuncFormatter(thousands))


def _svg(key: str, draw: Callable[[Any], None]) -> str:
    buffer = io.StringIO()
    with cast("Any", mpl).rc_context(_STYLE):
        figure: Any = Figure(figsize=SIZE_INCHES, layout="constrained")
        draw(figure.subplots())
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    for color, variable in _VARIABLES.items():
        svg = svg.replace(color, variable)
    for part in (r"<metadata>.*?</metadata>", r"<defs>\s*<style.*?</style>\s*</defs>"):
        svg = re.sub(part, "", svg, flags=re.DOTALL)
    svg = re.sub(r' (?:width|height)="[0-9.]+pt"', "", svg, count=2)
    return _with_ids_of(key, svg)


def _with_ids_of(key: str, svg: str) -> str:
    """The same drawing with ids that are unique on the page if ``key`` is."""
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{key}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{key}-\1"', svg)
    return re.sub(r"url\(#([^)]+)\)", rf"url(#{key}-\1)", svg)
