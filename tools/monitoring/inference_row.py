"""The panels of the inference service, on the dashboard of the actors."""

from tidegate.catalogue import actor as actor_stats
from tidegate.catalogue import inference as inference_stats
from tidegate.catalogue import telemetry as names
from tools.monitoring.panels import Panel, Query, Row
from tools.monitoring.prometheus_names import label
from tools.monitoring.queries import buckets, one, quantiles, rate, rate_by, total_rate
from tools.monitoring.slo_rules import OF_RUN

NEEDED = "`actor.engine: inference_env`"

INFERENCE = Row(
    "Inference service",
    (
        Panel(
            "Environment steps answered per second",
            (total_rate(inference_stats.STEPS.metric, "steps"),),
            description="Steps for which the service chose actions. Its ceiling is the network's; far below"
            " it, actors wait for environments or for tasks.",
            only_with=NEEDED,
            unit="cps",
        ),
        Panel(
            "Environments in a call of the network",
            (Query(buckets(names.METRIC_INFERENCE_BATCH), "{{le}}"),),
            kind="heatmap",
            description="One panel for each run. Grows with `inference.batch_wait_ms` and the number of"
            " actors. Normal: most calls are of many environments.",
            only_with=NEEDED,
        ),
        Panel(
            "Wait for the call of the network",
            quantiles(names.METRIC_INFERENCE_WAIT),
            unit="s",
            description="From a step's arrival. Normal: up to `inference.batch_wait_ms`. Beyond it the"
            " network is the bottleneck: give it a GPU, or fewer actors.",
            only_with=NEEDED,
        ),
        Panel(
            "Actors connected",
            (Query(f"sum by ({OF_RUN}) ({one(inference_stats.STREAMS.metric)})"),),
            only_with=NEEDED,
            description="Actors with an open stream. Normal: all actors. Fewer: look for network policies and"
            " restarts.",
        ),
        Panel(
            "Share of time in which environments wait for actions, by actor",
            (Query(rate(actor_stats.INFERENCE_WAIT_S.metric), "{{instance}}"),),
            unit="percentunit",
            only_with=NEEDED,
            description="Normal: below 50 %. Near 100 %: the inference service is the bottleneck.",
        ),
        Panel(
            "Steps refused, streams lost and segments given up per second",
            (
                rate_by(inference_stats.REFUSED_BECAUSE.metric, label(names.ATTR_REASON)),
                total_rate(actor_stats.INFERENCE_LOSSES.metric, "streams lost"),
                total_rate(actor_stats.INFERENCE_GIVEN_UP.metric, "segments given up"),
            ),
            description="Normal: none. A restart of the service loses each actor's stream once, and no"
            " segment. Refused steps: two image versions in one run.",
            only_with=NEEDED,
            unit="cps",
        ),
    ),
)
