"""Dashboard of a run's objectives and what limits it."""

from tidegate.catalogue import admission as admission_stats
from tidegate.catalogue import task_queue as queue_stats
from tidegate.catalogue import telemetry as names
from tools.monitoring.panels import Board, Panel, Query, Row
from tools.monitoring.prometheus_names import label
from tools.monitoring.queries import (
    CAUSE,
    buckets,
    equal,
    of_slo,
    one,
    quantiles,
    rate,
)
from tools.monitoring.slo_rules import OF_RUN

OVERVIEW = Board(
    uid="tidegate-slo",
    title="Tidegate / Objectives",
    description="The run's objectives, the error budget left of each, and the bottleneck.",
    rows=(
        Row(
            "Budgets",
            (
                Panel(
                    "Budget left",
                    (
                        Query(
                            f"sort(max by ({OF_RUN}, sloth_slo) ({of_slo('tidegate:slo_budget_left:ratio')}))",
                            "{{sloth_slo}}",
                        ),
                    ),
                    unit="percentunit",
                    kind="bargauge",
                    description="As `tidegate slo` reports it, over the period of the rules. Below 0 the objective is"
                    " broken. Lowest first: treat that one.",
                ),
                Panel(
                    "Burn rate",
                    (
                        Query(
                            f"max by ({OF_RUN}, sloth_slo) ({of_slo('slo:current_burn_rate:ratio')})",
                            "{{sloth_slo}}",
                        ),
                    ),
                    description="At 1 the budget lasts exactly one period. Alerts page at 4.8 and 3; 1.5 is a ticket."
                    " Normal: below 1.",
                ),
                Panel(
                    "Objectives by condition",
                    (
                        Query(
                            f"sum by ({OF_RUN}, {label(names.ATTR_CONDITION)}) ({one(admission_stats.SLOS_IN.metric)})",
                            f"{{{{{label(names.ATTR_CONDITION)}}}}}",
                        ),
                    ),
                    stacked=True,
                    description="How many objectives are met, at risk or broken. Normal: all met. `tidegate slo`"
                    " names the others.",
                ),
                Panel(
                    "Bad observations",
                    (
                        Query(
                            f"sum by ({OF_RUN}, {label(names.ATTR_SLO)})"
                            f" ({rate(names.METRIC_SLO_EVENTS, equal(label(names.ATTR_SLO_RESULT), 'bad'))})",
                            f"{{{{{label(names.ATTR_SLO)}}}}}",
                        ),
                    ),
                    width=12,
                    description="Observations a second that missed their bound. Normal: few. The objective with the"
                    " highest line burns its budget.",
                    unit="cps",
                ),
                Panel(
                    "Coverage",
                    (
                        Query(
                            f"max by ({OF_RUN}, {label(names.ATTR_SLO)}) ({one(names.METRIC_SLO_COVERAGE)})",
                            f"{{{{{label(names.ATTR_SLO)}}}}}",
                        ),
                    ),
                    unit="percentunit",
                    description="Share of the objective's window with observations. Normal: rises to 100 %. A flat or"
                    " falling line: the objective is not observed, and cannot alert.",
                    width=12,
                ),
                Panel(
                    "Targets",
                    (
                        Query(
                            f"max by ({OF_RUN}, {label(names.ATTR_SLO)}) ({one(names.METRIC_SLO_TARGET)})",
                            f"{{{{{label(names.ATTR_SLO)}}}}}",
                        ),
                    ),
                    unit="percentunit",
                    kind="stat",
                    width=12,
                    description="Required share of good observations of each objective, from the run file. Changes"
                    " only with the run file.",
                ),
            ),
        ),
        Row(
            "Staleness",
            (
                Panel(
                    "Policy lag of trained trajectories",
                    (
                        *quantiles(names.METRIC_LAG, exemplars=True),
                        Query(f"max by ({OF_RUN}) ({one(names.METRIC_LAG_WINDOW_MAX)})", "max"),
                        Query(f"max by ({OF_RUN}) ({one(admission_stats.MAX_LAG.metric)})", "max_lag"),
                    ),
                    description="Quantiles interpolate between whole versions; the objective counts trajectories."
                    " Normal: max stays at or below max_lag. At the bound: fewer running trajectories, or"
                    " a faster learner.",
                ),
                Panel(
                    "Policy lag, distribution",
                    (Query(buckets(names.METRIC_LAG), "{{le}}"),),
                    kind="heatmap",
                    description="How many trajectories were trained with each lag, one panel for each run. Normal:"
                    " the mass is well below `max_lag`.",
                ),
                Panel(
                    "Age of trained trajectories",
                    quantiles(names.METRIC_AGE, exemplars=True),
                    unit="s",
                    description="Seconds from the start of generation to training. Normal: stable, far below"
                    " `max_age_s`. Rising: rollouts queue before the learner.",
                ),
            ),
        ),
        Row(
            "Control",
            (
                Panel(
                    "Bottleneck",
                    (
                        Query(
                            f"max by ({OF_RUN}, {CAUSE}) ({one(admission_stats.BOTTLENECK.metric)})",
                            f"{{{{{CAUSE}}}}}",
                        ),
                    ),
                    kind="timeline",
                    description="What limits the run now, as `tidegate explain` reports it. Normal: learner or"
                    " balanced. actor: add actors; inference, store or weights: see their panels.",
                    unit="bool_on_off",
                ),
                Panel(
                    "In flight, and the limit",
                    (
                        Query(f"sum by ({OF_RUN}) ({one(admission_stats.MAX_RUNNING.metric)})", "limit"),
                        Query(
                            f"sum by ({OF_RUN}) ({one(queue_stats.IN_FLIGHT_TRAJECTORIES.metric)})",
                            "in flight",
                        ),
                        Query(
                            f"sum by ({OF_RUN}) ({one(queue_stats.RUNNING_TRAJECTORIES.metric)})", "running"
                        ),
                    ),
                    description="Trajectories admitted and not ended, and the limit on running ones. Normal: running"
                    " near the limit. Far below: actors are missing or admission delays.",
                ),
                Panel(
                    "Trajectories trained per second",
                    (Query(f"sum by ({OF_RUN}) ({rate(names.METRIC_CONSUMED)})"),),
                    description="Progress of each run. Normal: stable. Zero: nothing is trained; see the alert"
                    " TidegateNothingTrained.",
                    unit="cps",
                ),
            ),
        ),
    ),
)
