"""The parts of a dashboard; ``dashboards`` renders them as Grafana's JSON."""

from typing import Literal

import msgspec

Kind = Literal["timeseries", "stat", "heatmap", "timeline", "table", "bargauge"]


class Query(msgspec.Struct, frozen=True):
    """One query of a panel. ``exemplars``: show the observations that link to traces.

    ``legend`` says which of a run's lines this is; the run itself is added. In a table it is the title of a column,
    whose values have ``unit``.
    """

    expr: str
    legend: str = ""
    exemplars: bool = False
    unit: str = ""


class Panel(msgspec.Struct, frozen=True):
    """One panel. ``unit`` is Grafana's name of one, for a heatmap that of its buckets; widths are of 24.

    ``description``: for an operator: what it shows, what is normal, what to do. ``only_with``: what a run needs for
    this panel to have data, empty for every run; appended to the description. A heatmap shows one run and is repeated
    for each chosen one.
    """

    title: str
    queries: tuple[Query, ...]
    description: str
    unit: str = "short"
    kind: Kind = "timeseries"
    width: int = 8
    height: int = 8
    stacked: bool = False
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
