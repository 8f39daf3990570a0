"""PromQL for panels, from the catalogue's names, restricted to the chosen runs. ``$`` words are Grafana variables."""

from tidegate.catalogue import telemetry as names
from tools.monitoring.panels import Query
from tools.monitoring.prometheus_names import label, metric
from tools.monitoring.slo_rules import RUN

RATE = "$__rate_interval"
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


def equal(name: str, value: str) -> str:
    """A condition on a label."""
    return f'{name}="{value}"'


def one(name: str, *conditions: str) -> str:
    """The series of a metric in the chosen runs."""
    return metric(name) + "{" + ",".join([f'{RUN}=~"$run"', *conditions]) + "}"


def rate(name: str, *conditions: str) -> str:
    """A counter a second, in the chosen runs."""
    return f"rate({one(name, *conditions)}[{RATE}])"


def rate_by(name: str, by: str) -> Query:
    """A counter a second, summed by one label, which is the legend."""
    return Query(f"sum by ({by}) ({rate(name)})", f"{{{{{by}}}}}")


def total_rate(name: str, legend: str) -> Query:
    """A counter a second, summed over all instances."""
    return Query(f"sum({rate(name)})", legend)


def total(name: str, legend: str) -> Query:
    """A gauge summed over all instances."""
    return Query(f"sum({one(name)})", legend)


def quantile(share: float, name: str, *by: str, conditions: tuple[str, ...] = ()) -> str:
    """A quantile of a histogram in the chosen runs."""
    selected = metric(name) + "_bucket{" + ",".join([f'{RUN}=~"$run"', *conditions]) + "}"
    return f"histogram_quantile({share:g}, sum by ({', '.join(['le', *by])}) (rate({selected}[{RATE}])))"


def buckets(name: str) -> str:
    """A histogram's buckets over time, for a heatmap."""
    return f'sum by (le) (rate({metric(name)}_bucket{{{RUN}=~"$run"}}[{RATE}]))'


def quantiles(name: str, *, exemplars: bool = False) -> tuple[Query, ...]:
    """Median, 95th and 99th percentile."""
    return tuple(
        Query(quantile(share, name), f"p{round(100 * share)}", exemplars and share == 0.95)
        for share in (0.5, 0.95, 0.99)
    )


def of_slo(record: str) -> str:
    """A recorded series of every objective in the chosen runs."""
    return f'{record}{{{RUN}=~"$run"}}'
