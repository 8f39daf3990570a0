"""The page that lists every metric and span: what it is, and how it reads in Prometheus."""

from tidegate.catalogue import telemetry as names
from tidegate.catalogue.services import INSTRUMENTS
from tools.monitoring.prometheus_names import metric

PREFACE = """\
# Metrics and spans

Every metric carries the run (`tidegate.run.id`), and says who reports it: `service.name` (`job` in Prometheus) and
`service.instance.id` (`instance`; a pod's uid). Other labels are short enumerations; ids and versions are never among
them. Histograms of what a trajectory did carry exemplars that lead to its trace.
"""


def metric_pages() -> dict[str, str]:
    """File name to text."""
    metrics = [
        f"| `{name}` | {instrument.kind.replace('_', ' ')} | {instrument.unit or '–'} | `{metric(name)}` |"
        f" {instrument.meaning} |"
        for name, instrument in INSTRUMENTS.items()
    ]
    spans = sorted(value for key, value in vars(names).items() if key.startswith("SPAN_"))
    lines = [
        PREFACE,
        "| metric | kind | unit | in Prometheus | what it says |",
        "|---|---|---|---|---|",
        *metrics,
        "",
        "Spans: " + ", ".join(f"`{name}`" for name in spans) + ".",
        "",
    ]
    return {"metrics.md": "\n".join(lines)}
