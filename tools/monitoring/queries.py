"""PromQL for panels, from the catalogue's names, restricted to the chosen runs. ``$`` words are Grafana variables."""

from tidegate.catalogue import telemetry as names
from tools.monitoring.panels import Query
from tools.monitoring.prometheus_names import label, metric
from tools.monitoring.slo_rules import NAMESPACE, OF_RUN, RUN

RATE = "$__rate_interval"
# The time range that a reader chose.
RANGE = "$__range"
CAUSE, STAGE, STATE, REASON, SIDE = (
    label(each)
    for each in (
        names.ATTR_CAUSE,
        names.ATTR_STAGE,
        names.ATTR_STATE,
        names.ATTR_REASON,
        names.ATTR_SIDE,
    )
)
KIND, OPERATION, OUTCOME = (
    label(each) for each in (names.ATTR_KIND, names.ATTR_OPERATION, names.ATTR_OUTCOME)
)
QUEUE, STREAM, CONSUMER = (label(each) for each in (names.ATTR_QUEUE, names.ATTR_STREAM, names.ATTR_CONSUMER))
JOB_OF = {service: f'job="tidegate/tidegate-{service}"' for service in ("actor", "learner")}


# The runs that a reader chose; a run on one machine has no namespace, which `.*` matches.
CHOSEN = f'{NAMESPACE}=~"$namespace",{RUN}=~"$run"'


# Which run a line belongs to: two teams may have runs of the same id.
RUN_LEGEND = f"{{{{{NAMESPACE}}}}}/{{{{{RUN}}}}}"


def filled(expr: str, *, run_id: str, window: str) -> str:
    """A query as Grafana sends it for one run, with one window for rates and for the chosen time range."""
    values = {"$namespace": ".*", "$run": run_id, RATE: window, RANGE: window}
    for variable, value in values.items():
        expr = expr.replace(variable, value)
    return expr


def equal(name: str, value: str) -> str:
    """A condition on a label."""
    return f'{name}="{value}"'


def one(name: str, *conditions: str) -> str:
    """The series of a metric in the chosen runs."""
    return metric(name) + "{" + ",".join([CHOSEN, *conditions]) + "}"


def rate(name: str, *conditions: str) -> str:
    """A counter a second, in the chosen runs."""
    return f"rate({one(name, *conditions)}[{RATE}])"


def rate_by(name: str, by: str) -> Query:
    """A counter a second for each run, summed by one label, which is the legend."""
    return Query(f"sum by ({OF_RUN}, {by}) ({rate(name)})", f"{{{{{by}}}}}")


def total_rate(name: str, legend: str) -> Query:
    """A counter a second for each run, summed over its instances."""
    return Query(f"sum by ({OF_RUN}) ({rate(name)})", legend)


def total(name: str, legend: str) -> Query:
    """A gauge for each run, summed over its instances."""
    return Query(f"sum by ({OF_RUN}) ({one(name)})", legend)


def quantile(share: float, name: str, *by: str, conditions: tuple[str, ...] = ()) -> str:
    """A quantile of a histogram for each of the chosen runs."""
    selected = metric(name) + "_bucket{" + ",".join([CHOSEN, *conditions]) + "}"
    return (
        f"histogram_quantile({share:g}, sum by ({', '.join(['le', OF_RUN, *by])}) (rate({selected}[{RATE}])))"
    )


def buckets(name: str) -> str:
    """A histogram's buckets over time, for a heatmap, which is repeated for each run and shows one."""
    return f"sum by (le) (rate({metric(name)}_bucket{{{CHOSEN}}}[{RATE}]))"


def quantiles(name: str, *, exemplars: bool = False) -> tuple[Query, ...]:
    """Median, 95th and 99th percentile."""
    return tuple(
        Query(quantile(share, name), f"p{round(100 * share)}", exemplars and share == 0.95)
        for share in (0.5, 0.95, 0.99)
    )


def of_slo(record: str) -> str:
    """A recorded series of every objective in the chosen runs."""
    return f"{record}{{{CHOSEN}}}"
