"""The landing page: every run of a cluster in one table, each leading to its own dashboards."""

from tidegate.catalogue import actor as actor_stats
from tidegate.catalogue import admission as admission_stats
from tidegate.catalogue import learner as learner_stats
from tidegate.catalogue import telemetry as names
from tools.monitoring.panels import Board, Panel, Query, Row
from tools.monitoring.queries import of_slo, one, rate
from tools.monitoring.slo_rules import OF_RUN

RUNS = Board(
    uid="tidegate-runs",
    title="Tidegate / Runs",
    description="All runs of the chosen namespaces. Begin here; a run's name leads to its objectives.",
    rows=(
        Row(
            "Runs",
            (
                Panel(
                    "All runs",
                    (
                        Query(
                            f"count by ({OF_RUN}) ({one(actor_stats.SERVING_STEP.metric)})",
                            "actors",
                            unit="none",
                        ),
                        Query(
                            f"max by ({OF_RUN}) ({one(learner_stats.VERSION_STEP.metric)})",
                            "version",
                            unit="none",
                        ),
                        Query(
                            f"sum by ({OF_RUN}) ({rate(names.METRIC_CONSUMED)})",
                            "trained per second",
                            unit="cps",
                        ),
                        Query(
                            f"max by ({OF_RUN}) ({one(learner_stats.MEAN_RETURN.metric)})"
                            f" or max by ({OF_RUN}) ({one(learner_stats.MEAN_REWARD.metric)})",
                            "return or reward",
                        ),
                        Query(
                            f"min by ({OF_RUN}) ({of_slo('tidegate:slo_budget_left:ratio')})",
                            "lowest budget left",
                            unit="percentunit",
                        ),
                        Query(
                            f"max by ({OF_RUN}) ({one(admission_stats.PAUSED.metric)})",
                            "paused",
                            unit="bool_yes_no",
                        ),
                    ),
                    kind="table",
                    unit="short",
                    width=24,
                    height=10,
                    description="One row for each run. A run that trains nothing and is not paused needs a look:"
                    " choose its name. A budget below 0 %: an objective is broken.",
                ),
            ),
        ),
        Row(
            "Progress",
            (
                Panel(
                    "Trajectories trained per second",
                    (Query(f"sum by ({OF_RUN}) ({rate(names.METRIC_CONSUMED)})"),),
                    unit="cps",
                    width=12,
                    description="One line for each run. Normal: stable. A line at zero: see the alert"
                    " TidegateNothingTrained, or whether the run is paused.",
                ),
                Panel(
                    "Lowest budget left",
                    (Query(f"min by ({OF_RUN}) ({of_slo('tidegate:slo_budget_left:ratio')})"),),
                    unit="percentunit",
                    width=12,
                    description="The objective of each run that is closest to being broken. Below 0 % it is. Choose the"
                    " run in the table above to see which objective.",
                ),
                Panel(
                    "Actors reporting",
                    (Query(f"count by ({OF_RUN}) ({one(actor_stats.SERVING_STEP.metric)})"),),
                    unit="none",
                    width=12,
                    description="Actors of each run whose metrics arrive. Normal: the number that was asked for. It"
                    " falls: nodes were taken away, or pods restart.",
                ),
                Panel(
                    "Versions behind the learner, slowest actor",
                    (
                        Query(
                            f"max by ({OF_RUN}) ({one(learner_stats.VERSION_STEP.metric)})"
                            f" - min by ({OF_RUN}) ({one(actor_stats.SERVING_STEP.metric)})"
                        ),
                    ),
                    unit="none",
                    width=12,
                    description="Normal: 0 to 2 for each run. Above `max_lag` work is dropped; see the alert"
                    " TidegateWeightsStuck.",
                ),
            ),
        ),
    ),
)
