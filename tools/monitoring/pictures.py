"""The dashboards' queries drawn as plots, without Grafana: the same numbers in a plainer style.

python -m tools.monitoring.pictures PROMETHEUS_URL RUN_ID START_S END_S FOLDER
"""

import json
import math
import sys
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import matplotlib as mpl
from PIL import Image

from tools.monitoring.boards import BOARDS
from tools.monitoring.panels import Board, Panel
from tools.monitoring.queries import filled

mpl.use("Agg")
from matplotlib import pyplot as plt  # after the backend is chosen

COLUMNS = 3
POINTS = 180
RATE_WINDOW = "20s"
SERIES_MAX = 12
DPI = 70
COLORS_MAX = 64


def draw(prometheus: str, *, run_id: str, start_s: float, end_s: float, folder: Path) -> list[Path]:
    """One picture for each dashboard, with a plot over time for each panel; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures: list[Path] = []
    for board in BOARDS:
        path = folder / f"{board.uid}.png"
        _draw_board(board, path, prometheus=prometheus, run_id=run_id, start_s=start_s, end_s=end_s)
        pictures.append(path)
    return pictures


def _draw_board(
    board: Board, path: Path, *, prometheus: str, run_id: str, start_s: float, end_s: float
) -> None:
    panels = [panel for row in board.rows for panel in row.panels]
    rows = math.ceil(len(panels) / COLUMNS)
    plots: Any
    figure: Any
    figure, plots = plt.subplots(rows, COLUMNS, figsize=(15, 2.7 * rows), squeeze=False)
    for plot in plots.flat:
        plot.set_axis_off()
    for panel, plot in zip(panels, plots.flat, strict=False):
        plot.set_axis_on()
        _draw_panel(panel, plot, prometheus=prometheus, run_id=run_id, start_s=start_s, end_s=end_s)
    figure.suptitle(f"{board.title}: run {run_id}, seconds since its start", fontsize=11)
    figure.tight_layout(rect=(0, 0, 1, 0.97))
    figure.savefig(path, dpi=DPI)
    plt.close(figure)
    # Lines and letters on white: a palette shows no difference, at a third of the size.
    Image.open(path).convert("RGB").quantize(COLORS_MAX).save(path, optimize=True)


def _draw_panel(
    panel: Panel, plot: Any, *, prometheus: str, run_id: str, start_s: float, end_s: float
) -> None:
    plot.set_title(panel.title, fontsize=9)
    plot.tick_params(labelsize=7)
    plot.grid(visible=True, alpha=0.3)
    if panel.kind == "heatmap":
        expr = filled(panel.queries[0].expr, run_id=run_id, window=RATE_WINDOW)
        _draw_buckets(_range(prometheus, expr, start_s=start_s, end_s=end_s), plot, start_s=start_s)
        return
    for query in panel.queries:
        expr = filled(query.expr, run_id=run_id, window=RATE_WINDOW)
        for series in _range(prometheus, expr, start_s=start_s, end_s=end_s)[:SERIES_MAX]:
            points = [(float(at) - start_s, float(value)) for at, value in series["values"]]
            plot.plot(
                [at for at, _ in points],
                [value for _, value in points],
                linewidth=1.2,
                label=_legend(query.legend or panel.title, series["metric"]),
            )
    if plot.get_legend_handles_labels()[0]:
        plot.legend(fontsize=6, loc="upper left", framealpha=0.6)


def _draw_buckets(series: list[dict[str, Any]], plot: Any, *, start_s: float) -> None:
    """A histogram over time: how much fell into each bucket, darker for more."""
    limits = sorted({float(each["metric"]["le"]) for each in series})
    times = sorted({float(at) for each in series for at, _ in each["values"]})
    if not limits or not times:
        return
    up_to = {
        float(each["metric"]["le"]): {float(at): float(v) for at, v in each["values"]} for each in series
    }
    inside = [
        [
            up_to[limit].get(at, 0.0) - (up_to[below].get(at, 0.0) if below is not None else 0.0)
            for at in times
        ]
        for below, limit in zip([None, *limits], limits, strict=False)
    ]
    plot.pcolormesh(
        [at - start_s for at in times], range(len(limits)), inside, cmap="Blues", shading="nearest"
    )
    plot.set_yticks(range(len(limits)), [f"≤ {limit:g}" for limit in limits])


def _range(prometheus: str, expr: str, *, start_s: float, end_s: float) -> list[dict[str, Any]]:
    query = urllib.parse.urlencode(
        {
            "query": expr,
            "start": f"{start_s:.3f}",
            "end": f"{end_s:.3f}",
            "step": f"{max(1.0, (end_s - start_s) / POINTS):.3f}",
        }
    )
    with urllib.request.urlopen(f"{prometheus}/api/v1/query_range?{query}", timeout=60) as answer:
        return list(json.load(answer)["data"]["result"])


def _legend(legend: str, labels: dict[str, str]) -> str:
    for name, value in labels.items():
        legend = legend.replace(f"{{{{{name}}}}}", value)
    return legend


if __name__ == "__main__":
    url, run, start, end, into = sys.argv[1:]
    draw(url, run_id=run, start_s=float(start), end_s=float(end), folder=Path(into))
