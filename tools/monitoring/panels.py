"""The parts of a dashboard; ``dashboards`` renders them as Grafana's JSON."""

from typing import Literal

import msgspec

Kind = Literal["timeseries", "stat", "heatmap", "timeline", "table", "bargauge"]


class Query(msgspec.Struct, frozen=True):
    """One query of a panel. ``exemplars``: show the observations that link to traces."""

    expr: str
    legend: str = ""
    exemplars: bool = False


class Panel(msgspec.Struct, frozen=True):
    """One panel. ``unit`` is Grafana's name of one; widths are of 24.

    ``only_with``: what a run needs for this panel to have data, empty for every run; appended to the description.
    """

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: Kind = "timeseries"
    width: int = 8
    height: int = 8
    stacked: bool = False
    description: str = ""
    only_with: str = ""


class Row(msgspec.Struct, frozen=True):
    """A titled row of panels."""

    title: str
    panels: tuple[Panel, ...]


class Board(msgspec.Struct, frozen=True):
    """One dashboard; ``uid`` is part of its address and never changes."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
