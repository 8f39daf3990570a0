"""The dashboards as Grafana's JSON, as the chart ships them: one file a dashboard."""

import zlib
from typing import Any

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heatmap_models
from grafana_foundation_sdk.models import prometheus as prometheus_models

from tidegate.catalogue import admission as admission_stats
from tidegate.catalogue import telemetry as names
from tools.monitoring.boards import BOARDS
from tools.monitoring.panels import Board, Panel, Query
from tools.monitoring.prometheus_names import metric
from tools.monitoring.queries import CHOSEN, RUN_LEGEND
from tools.monitoring.slo_rules import NAMESPACE, RUN, SCOPE

TAG = "tidegate"
SOURCE = common_models.DataSourceRef(type_val="prometheus", uid="${datasource}")
OPACITY = 25.0
# Six digits, so that the address of a panel (`viewPanel=`) stays short.
IDS_MAX = 1_000_000
# The dashboard that a row of a table leads to.
LINKED = "tidegate-slo"


def dashboard_files() -> dict[str, str]:
    """File name to JSON."""
    return {f"{board.uid}.json": rendered(board) for board in BOARDS}


def rendered(board: Board) -> str:
    """One dashboard, with variables for source and run, links to the others, and scaling changes as annotations.

    Raises:
        ValueError: two of its panels or rows have the same id: give one of them another title.
    """
    built = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags([TAG])
        .readonly()
        .refresh("10s")
        .time("now-30m", "now")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Metrics").type("prometheus"))
        .with_variable(dashboard.DatasourceVariable("traces").label("Traces").type("tempo"))
        .with_variable(_variable("namespace", "Namespace", _label_values(NAMESPACE)))
        .with_variable(_variable("run", "Run", _label_values(RUN, f'{NAMESPACE}=~"$namespace"')))
        .link(
            dashboard.DashboardLink("Tidegate")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
        .annotation(
            dashboard.AnnotationQuery()
            .name("Scaling mode")
            .datasource(SOURCE)
            .enable(True)
            .icon_color("purple")
            .expr(f"changes({metric(admission_stats.SCALING_MODE.metric)}{{{CHOSEN}}}[1m]) > 0")
        )
    )
    ids = panel_ids(board)
    for row in board.rows:
        built = built.with_row(dashboard.Row(row.title).id(ids[row.title, ""]))
        for panel in row.panels:
            built = built.with_panel(_panel(panel).id(ids[row.title, panel.title]))
    text: str = JSONEncoder(sort_keys=True, indent=1).encode(built.build())
    return text + "\n"


def panel_ids(board: Board) -> dict[tuple[str, str], int]:
    """The id of each row (its title and "") and panel (the titles of its row and its own).

    An id follows from the titles, so that links, alerts and renders by id survive other panels being added, moved or
    deleted; Grafana numbers panels without an id in each browser (issue 18).

    Raises:
        ValueError: two have the same id.
    """
    keys = [(row.title, title) for row in board.rows for title in ("", *(each.title for each in row.panels))]
    ids = {key: 1 + zlib.crc32("/".join(key).encode()) % (IDS_MAX - 1) for key in keys}
    if len(set(ids.values())) != len(keys):
        raise ValueError(f"{board.uid}: two panels have the same id; give one of them another title")
    return ids


def _label_values(name: str, *conditions: str) -> str:
    """Values of a label among the runs in scope, which the chart narrows as it does the rules."""
    return f"label_values({metric(names.METRIC_SLO_TARGET)}{{{','.join((SCOPE, *conditions))}}}, {name})"


def _variable(name: str, title: str, query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(title)
        .query(query)
        .datasource(SOURCE)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
        .all_value(".*")
    )


def _panel(panel: Panel) -> Any:
    """A panel of its kind, with the options that all kinds share."""
    built: Any
    match panel.kind:
        case "timeseries":
            built = timeseries.Panel().fill_opacity(OPACITY if panel.stacked else 0.0)
            if panel.stacked:
                stack = common.StackingConfig().mode(common_models.StackingMode.NORMAL)
                built = built.stacking(stack)
        case "stat":
            built = stat.Panel()
        case "bargauge":
            built = bargauge.Panel().min(0.0).max(1.0)
        case "heatmap":
            built = (
                heatmap.Panel()
                .color(
                    heatmap.HeatmapColorOptions().mode(heatmap_models.HeatmapColorMode.SCHEME).scheme("Blues")
                )
                .y_axis(heatmap.YAxisConfig().unit(panel.unit))
                .cell_values(heatmap.CellValues().unit("cps"))
                .repeat("run")
                # Downwards: sideways Grafana would give the panel the width of the whole dashboard.
                .repeat_direction("v")
            )
        case "timeline":
            built = statetimeline.Panel()
        case "table":
            built = _table(panel)
    built = built.title(panel.title).datasource(SOURCE).span(panel.width).height(panel.height)
    built = built.unit(panel.unit)
    built = built.description(" ".join(filter(None, (panel.description, _requirement(panel)))))
    for number, query in enumerate(panel.queries):
        built = built.with_target(_target(query, panel, ref=_ref(number)))
    return built


def _table(panel: Panel) -> Any:
    """A row for each run and a column for each query; the run leads to its own dashboard."""
    refs = [_ref(number) for number in range(len(panel.queries))]
    titles = {f"Value #{ref}": query.legend for ref, query in zip(refs, panel.queries, strict=True)}
    order = [NAMESPACE, RUN, *titles]
    built = (
        table.Panel()
        .with_transformation(models.DataTransformerConfig("merge", options={}))
        .with_transformation(
            models.DataTransformerConfig(
                "organize",
                options={
                    "excludeByName": {"Time": True},
                    "indexByName": {name: place for place, name in enumerate(order)},
                    "renameByName": {NAMESPACE: "namespace", RUN: "run", **titles},
                },
            )
        )
        .override_by_name("run", [models.DynamicConfigValue("links", [_link_to_run()])])
    )
    for query in panel.queries:
        if query.unit:
            built = built.override_by_name(query.legend, [models.DynamicConfigValue("unit", query.unit)])
    return built


def _link_to_run() -> dict[str, str | bool]:
    return {
        "title": "Objectives of this run",
        "url": f"/d/{LINKED}?var-datasource=${{datasource}}&var-namespace=${{__data.fields.namespace}}"
        "&var-run=${__data.fields.run}&${__url_time_range}",
    }


def _ref(number: int) -> str:
    return chr(ord("A") + number)


def _legend(query: Query, panel: Panel) -> str:
    if panel.kind == "heatmap":
        return query.legend
    return f"{query.legend} {RUN_LEGEND}".strip()


def _requirement(panel: Panel) -> str:
    return f"Has data only with {panel.only_with}." if panel.only_with else ""


def _target(query: Query, panel: Panel, *, ref: str) -> prometheus.Dataquery:
    built = prometheus.Dataquery().ref_id(ref).expr(query.expr).legend_format(_legend(query, panel))
    if query.exemplars:
        built = built.exemplar(True)
    if panel.kind == "heatmap":
        built = built.format(prometheus_models.PromQueryFormat.HEATMAP)
    if panel.kind == "table":
        built = built.format(prometheus_models.PromQueryFormat.TABLE)
    instant = panel.kind in ("stat", "bargauge", "table")
    return built.instant() if instant else built.range()
