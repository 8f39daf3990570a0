"""Dashboard of admission and scaling."""

from tidegate.catalogue import actor as actor_stats
from tidegate.catalogue import admission as admission_stats
from tidegate.catalogue import task_queue as queue_stats
from tidegate.catalogue import telemetry as names
from tools.monitoring.panels import Board, Panel, Query, Row
from tools.monitoring.prometheus_names import label
from tools.monitoring.queries import (
    CAUSE,
    OUTCOME,
    one,
    rate,
    total,
    total_rate,
)
from tools.monitoring.slo_rules import OF_RUN

ADMISSION = Board(
    uid="tidegate-admission",
    title="Tidegate / Admission and scaling",
    description="Admission of work, the causes of delays, and the scaling of actors.",
    rows=(
        Row(
            "Admission",
            (
                Panel(
                    "Decisions per second",
                    (
                        Query(
                            f"sum by ({OF_RUN}, {label(names.ATTR_DECISION)}, {CAUSE})"
                            f" ({rate(names.METRIC_ADMISSION_DECISIONS)})",
                            f"{{{{{label(names.ATTR_DECISION)}}}}} {{{{{CAUSE}}}}}",
                        ),
                    ),
                    description="Tasks admitted, and starts of delays by reason. Normal: admissions at the rate of"
                    " training. Only delays: the reason names what is full.",
                    unit="cps",
                ),
                Panel(
                    "Capacity",
                    (
                        Query(
                            f"sum by ({OF_RUN}) ({one(admission_stats.CAPACITY.metric)})", "admissible now"
                        ),
                        Query(
                            f"sum by ({OF_RUN}) ({one(admission_stats.MAX_RUNNING.metric)})",
                            "limit on running trajectories",
                        ),
                    ),
                    description="How much work may start now, and the limit on running trajectories. Normal: near"
                    " zero with a busy learner. A limit that falls: admission slows down to keep the"
                    " staleness budget.",
                ),
                Panel(
                    "Staleness budget",
                    (Query(f"max by ({OF_RUN}) ({one(admission_stats.MAX_LAG.metric)})", "max_lag"),),
                    description="`max_lag` in force. Normal: constant, unless the goodput controller adjusts it. After"
                    " a change that was not requested: see the log of admission.",
                ),
                Panel(
                    "Paused",
                    (Query(f"max by ({OF_RUN}) ({one(admission_stats.PAUSED.metric)})", "paused"),),
                    kind="stat",
                    description="Whether an operator has paused admission. While it is paused nothing starts and"
                    " alerts about progress are silent. To end it: `tidegate resume`, or the TrainingRun.",
                    unit="bool_yes_no",
                ),
            ),
        ),
        Row(
            "Scaling",
            (
                Panel(
                    "Mode",
                    (
                        Query(
                            f"max by ({OF_RUN}, {label(names.ATTR_MODE)}) ({one(admission_stats.SCALING_MODE.metric)})",
                            f"{{{{{label(names.ATTR_MODE)}}}}}",
                        ),
                    ),
                    kind="timeline",
                    description="The scaling mode in force: what admission does when objectives are at risk. Normal:"
                    " one mode for hours. Frequent changes: the run is at a limit; see the bottleneck.",
                    unit="bool_on_off",
                ),
                Panel(
                    "Actors reporting",
                    (Query(f"count by ({OF_RUN}) ({one(actor_stats.SERVING_STEP.metric)})", "actors"),),
                    description="Actors whose metrics arrive. Normal: the number that was asked for.",
                    unit="none",
                ),
                Panel(
                    "Trajectories running, and trained but not announced",
                    (
                        Query(
                            f"sum by ({OF_RUN}) ({one(queue_stats.UNANNOUNCED_TRAJECTORIES.metric)})",
                            "unannounced",
                        ),
                        Query(
                            f"sum by ({OF_RUN}) ({one(queue_stats.RUNNING_TRAJECTORIES.metric)})", "running"
                        ),
                    ),
                    description="Running: published tasks that are not in the store. Unannounced: trained in an"
                    " update whose version is not out. A high unannounced line: publishing versions is"
                    " slow.",
                ),
            ),
        ),
        Row(
            "Recommendation",
            (
                Panel(
                    "Actors reporting, recommended and needed",
                    (
                        total(admission_stats.SCALING_CURRENT.metric, "reporting"),
                        total(admission_stats.SCALING_RECOMMENDED.metric, "recommended next"),
                        total(admission_stats.SCALING_NEEDED.metric, "needed"),
                    ),
                    only_with="a scaling recommendation",
                    description="Needed: would keep the learner busy. Recommended: the next step towards it."
                    " Reporting stays below recommended: no nodes, no quota, or pods that do not start.",
                ),
                Panel(
                    "Goodput",
                    (total(admission_stats.GOODPUT.metric, "trajectories per second"),),
                    description="Trained trajectories per second, weighted by their effective sample size. Normal:"
                    " stable. It falls while the rate of training does not: data is too old or too"
                    " similar.",
                    unit="cps",
                ),
                Panel(
                    "Hard synchronisations, by outcome",
                    (
                        Query(
                            f"sum by ({OF_RUN}, {OUTCOME}) ({one(names.METRIC_HARD_SYNCS)})",
                            f"{{{{{OUTCOME}}}}}",
                        ),
                    ),
                    kind="stat",
                    description="Moments at which admission drained everything. Normal: none, or after a change of"
                    " `max_lag`. Aborted ones: work did not drain within the deadline.",
                ),
            ),
        ),
        Row(
            "Kubernetes",
            (
                Panel(
                    "Requests to the API per second",
                    (
                        total_rate(admission_stats.KUBERNETES_REQUESTS.metric, "requests"),
                        total_rate(admission_stats.KUBERNETES_FAILURES.metric, "failed"),
                        total_rate(admission_stats.KUBERNETES_CONFLICTS.metric, "conflicts"),
                    ),
                    only_with="Kubernetes",
                    description="Requests of admission to the Kubernetes API. Normal: a few, no failures. Failed: see"
                    " the alert TidegateKubernetesFailing. Conflicts: another manager writes the same"
                    " objects.",
                    unit="reqps",
                ),
                Panel(
                    "Leader",
                    (Query(one(admission_stats.KUBERNETES_LEADER.metric), "{{instance}}"),),
                    kind="timeline",
                    only_with="Kubernetes",
                    description="Which instance of admission holds the Lease. Normal: one, all the time. None:"
                    " nothing is scaled and no condition is written.",
                    unit="bool_yes_no",
                ),
                Panel(
                    "Scaled or annotated by other managers",
                    (
                        total(admission_stats.FOREIGN_SCALES.metric, "scalings"),
                        total(admission_stats.FOREIGN_POD_COSTS.metric, "pod deletion costs"),
                    ),
                    kind="stat",
                    description="Admission leaves such a scale alone for `scaling.hold_s`, and such pods always."
                    " Normal: none. Otherwise choose one manager: HPA, KEDA, or admission.",
                    only_with="Kubernetes",
                ),
            ),
        ),
    ),
)
