"""The page that lists every metric, every statistic that is not exported, and every span."""

from tidegate.catalogue import telemetry as names
from tidegate.catalogue.services import DECLARED, INSTRUMENTS, families_of, statistics_of, texts_of
from tools.monitoring.prometheus_names import metric

PREFACE = """\
# Metrics and spans

Every metric carries the run (`tidegate.run.id`), in a cluster its `namespace`, and its source: `service.name` (`job` in
Prometheus) and `service.instance.id` (`instance`; a pod's name). Other labels are short enumerations, never ids or
versions. Histograms observed for a trajectory carry exemplars that link to its trace.
"""


def unexported() -> list[tuple[str, str, str]]:
    """Service, name and meaning of every statistic without a metric."""
    found: list[tuple[str, str, str]] = []
    for service in DECLARED:
        found += [
            (service, str(each), each.meaning) for each in statistics_of(service) if each.export is None
        ]
        found += [
            (service, each.pattern, each.meaning) for each in families_of(service) if each.instrument is None
        ]
        found += [(service, str(each), each.meaning) for each in texts_of(service) if each.instrument is None]
    return found


def metric_pages() -> dict[str, str]:
    """File name to text."""
    metrics = [
        f"| `{name}` | {instrument.kind.replace('_', ' ')} | {instrument.unit or '–'} | `{metric(name)}` |"
        f" {instrument.meaning} |"
        for name, instrument in INSTRUMENTS.items()
    ]
    spans = sorted(value for key, value in vars(names).items() if key.startswith("SPAN_"))
    statistics = unexported()
    lines = [
        PREFACE,
        "| metric | kind | unit | in Prometheus | meaning |",
        "|---|---|---|---|---|",
        *metrics,
        "",
        "## Statistics without a metric",
        "",
        f"{len(statistics)} statistics are not exported: the live view, admission, targets and the report read them"
        " from the reports of the services. `*` is a label's value.",
        "",
        "| service | statistic | meaning |",
        "|---|---|---|",
        *(f"| {service} | `{name}` | {meaning} |" for service, name, meaning in statistics),
        "",
        "## Spans",
        "",
        ", ".join(f"`{name}`" for name in spans) + ".",
        "",
    ]
    return {"metrics.md": "\n".join(lines)}
