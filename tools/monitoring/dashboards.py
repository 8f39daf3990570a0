"""The dashboards as Grafana's JSON, as the chart ships them: one file a dashboard."""

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
from tools.monitoring.slo_rules import RUN

TAG = "tidegate"
SOURCE = common_models.DataSourceRef(type_val="prometheus", uid="${datasource}")
OPACITY = 25.0


def dashboard_files() -> dict[str, str]:
    """File name to JSON."""
    return {f"{board.uid}.json": rendered(board) for board in BOARDS}


def rendered(board: Board) -> str:
    """One dashboard, with variables for source and run, links to the others, and scaling changes as annotations."""
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
        .with_variable(_variable("run", "Run", f"label_values({metric(names.METRIC_SLO_TARGET)}, {RUN})"))
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
            .expr(f'changes({metric(admission_stats.SCALING_MODE.metric)}{{{RUN}=~"$run"}}[1m]) > 0')
        )
    )
    for row in board.rows:
        built = built.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            built = built.with_panel(_panel(panel))
    text: str = JSONEncoder(sort_keys=True, indent=1).encode(built.build())
    return text + "\n"


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
            built = heatmap.Panel().color(
                heatmap.HeatmapColorOptions().mode(heatmap_models.HeatmapColorMode.SCHEME).scheme("Blues")
            )
        case "timeline":
            built = statetimeline.Panel()
        case "table":
            built = table.Panel()
    built = built.title(panel.title).datasource(SOURCE).span(panel.width).height(panel.height)
    if panel.kind != "heatmap":
        built = built.unit(panel.unit)
    description = " ".join(filter(None, (panel.description, _requirement(panel))))
    if description:
        built = built.description(description)
    for number, query in enumerate(panel.queries):
        built = built.with_target(_target(query, panel, ref=chr(ord("A") + number)))
    return built


def _requirement(panel: Panel) -> str:
    return f"Has data only with {panel.only_with}." if panel.only_with else ""


def _target(query: Query, panel: Panel, *, ref: str) -> prometheus.Dataquery:
    built = prometheus.Dataquery().ref_id(ref).expr(query.expr).legend_format(query.legend)
    if query.exemplars:
        built = built.exemplar(True)
    if panel.kind == "heatmap":
        built = built.format(prometheus_models.PromQueryFormat.HEATMAP)
    instant = panel.kind in ("stat", "bargauge", "table")
    return built.instant() if instant else built.range()
