"""Every alert with what its runbook page says: the burn of each objective, and what needs no budget to be wrong."""

import msgspec

from tidegate.catalogue import actor as actor_stats
from tidegate.catalogue import admission as admission_stats
from tidegate.catalogue import learner as learner_stats
from tidegate.catalogue import telemetry as names
from tidegate.core.slo_catalogue import REMEDIES
from tools.monitoring.prometheus_names import label, metric
from tools.monitoring.slo_rules import RUN, SLO_NAMES, Period, alert_expressions, alert_name

PAUSED = f"max by ({RUN}) ({metric(admission_stats.PAUSED.metric)}) > 0"


class Alert(msgspec.Struct, frozen=True):
    """One alert. ``for_share``: of the period, how long it must hold first; ``steps``: what to do, in order."""

    name: str
    severity: str
    expr: str
    summary: str
    meaning: str
    confirm: tuple[str, ...]
    steps: tuple[str, ...]
    for_share: float = 0.0


# What each objective promises, and how its burn feels.
_MEANINGS: dict[str, tuple[str, str]] = {
    "lag_p95": (
        "trajectories are trained too many versions behind",
        "More of what is trained is older than the run promised. Learning gets slower and less stable long before the"
        " hard bound is reached.",
    ),
    "lag_max": (
        "a trajectory was trained beyond the staleness budget",
        "The bound that nothing may pass was passed: a defect, not a load. See TidegateMaxLagExceeded.",
    ),
    "age_p95": (
        "trajectories are trained too long after they were started",
        "Rollouts take long, or wait long before the learner; near `max_age_s` they are dropped.",
    ),
    "waste_ratio": (
        "too much finished work is dropped",
        "Work is admitted, done and thrown away: the actors are paid for nothing.",
    ),
    "learner_idle_ratio": (
        "the learner waits most of its time",
        "The dearest machine of the run waits for batches.",
    ),
    "actor_idle_ratio": (
        "actors wait most of their time",
        "Actors hold no task: admission holds back, or the learner cannot keep up.",
    ),
    "version_propagation_s": (
        "new versions take too long to reach the actors",
        "Actors go on with old policies, and everything they make starts with a lag.",
    ),
    "clipped_fraction": (
        "the objective clips most of what it is given",
        "The policy has moved away from its data: most of the gradient is cut off.",
    ),
    "effective_sample_size": (
        "few of the samples of a batch carry the gradient",
        "Importance weights are uneven: a batch counts like a fraction of itself.",
    ),
    "bin_drift": (
        "what is trained is not what was decided, by curriculum bin",
        "Some bins lose more of their work than others, so the policy learns another mix than the curriculum's.",
    ),
    "length_drift": (
        "what is trained is not what was decided, by length",
        "Long work is dropped more than short work, so the policy learns from what is easy to finish.",
    ),
}


def burn_alerts(period: Period) -> list[Alert]:
    """Two alerts an objective: one that pages, one that can wait until morning."""
    found: list[Alert] = []
    for slo in SLO_NAMES:
        what, meaning = _MEANINGS[slo]
        found.extend(
            Alert(
                name=alert_name(slo),
                severity=severity,
                expr=expr,
                summary=f"Run {{{{ $labels.{RUN} }}}}: {what}; the budget of {slo} burns",
                meaning=meaning,
                confirm=(
                    "`tidegate slo` shows the objective, what is left of its budget, and who was blamed last.",
                    "`tidegate explain` names the bottleneck with its numbers.",
                ),
                steps=(REMEDIES[slo][0].upper() + REMEDIES[slo][1:] + ".",),
            )
            for severity, expr in alert_expressions(slo, period).items()
        )
    return found


def other_alerts(period: Period) -> list[Alert]:
    """What is wrong without an objective, and what would hide all of them."""
    long = period.window(1 / 72)
    bad = f'{label(names.ATTR_SLO)}="lag_max",{label(names.ATTR_SLO_RESULT)}="bad"'
    version = f"max by ({RUN}) ({metric(learner_stats.VERSION_STEP.metric)})"
    serving = f"min by ({RUN}) ({metric(actor_stats.SERVING_STEP.metric)})"
    wait = metric(names.METRIC_LEARNER_WAIT)
    draining = metric(names.METRIC_DRAINING) + '{job="tidegate/tidegate-admission"}'
    work = f'{label(names.ATTR_STREAM)}=~"TASKS|ROLLOUTS|TRAJECTORIES"'
    stream, consumer = label(names.ATTR_STREAM), label(names.ATTR_CONSUMER)
    return [
        Alert(
            name="TidegateMaxLagExceeded",
            severity="page",
            expr=f"sum by ({RUN}) (increase({metric(names.METRIC_SLO_EVENTS)}{{{bad}}}[{long}])) > 0",
            summary=f"Run {{{{ $labels.{RUN} }}}}: a trajectory was trained beyond the lag that lag_max allows",
            meaning="One trajectory is enough. With the bound that the run file sets by default this is a defect: two"
            " checks stand before a gradient. With a bound of your own below `max_lag` it is an early warning.",
            confirm=(
                "`tidegate slo` shows lag_max, its bound, and the value that broke it.",
                "`tidegate audit` must still balance. The trace of a late trajectory is always kept: look for"
                " `tidegate.slo.violation=true`, or `tidegate trace TRAJECTORY_ID`.",
            ),
            steps=(
                "If the bound is `max_lag`: stop the run and keep its folder; nothing trained since can be trusted.",
                "If the bound is tighter: treat it as TidegateLagP95Burn.",
            ),
        ),
        Alert(
            name="TidegateLearnerStarved",
            severity="ticket",
            expr=f"sum by ({RUN}) (rate({wait}[{long}])) > 0.9 unless on ({RUN}) {PAUSED}",
            summary=f"Run {{{{ $labels.{RUN} }}}}: the learner trains less than a tenth of its time",
            meaning="It waits for batches (cause empty), gives back batches that came too late (stale), or waits for"
            " its last version to be published (weights).",
            confirm=(
                f"`sum by ({label(names.ATTR_CAUSE)}) (rate({wait}[5m]))` says which.",
                "`tidegate explain` says who keeps it waiting.",
            ),
            steps=(
                "empty: add actors (`kubectl scale deployment/<release>-actor --replicas=N`), or widen `max_lag`.",
                "stale: shorten rollouts, or set `staleness.pacing: true`.",
                "weights: look at weight-distribution's disk and network.",
            ),
            for_share=1 / 144,
        ),
        Alert(
            name="TidegateNothingTrained",
            severity="page",
            expr=f"sum by ({RUN}) (increase({metric(names.METRIC_CONSUMED)}[{long}])) == 0 unless on ({RUN}) {PAUSED}",
            summary=f"Run {{{{ $labels.{RUN} }}}}: nothing was trained, and nobody paused it",
            meaning="No objective burns while nothing happens: a run that stands still is 0 of 0. Zero actors is a"
            " pause as well, but one that nobody declared.",
            confirm=(
                "`tidegate status`: which service is not ready, which has nothing to do?",
                "`kubectl get pods -l app.kubernetes.io/name=tidegate`.",
            ),
            steps=(
                "No actors: scale them up, or declare the pause (`tidegate pause`, or the TrainingRun's spec).",
                "A service that restarts: its log's last lines say why and what to do.",
                "Streams full: see TidegateStreamNearFull.",
            ),
        ),
        Alert(
            name="TidegateTelemetryLost",
            severity="page",
            expr=f"(group by ({RUN}) ({metric(names.METRIC_SLO_TARGET)} offset {long})"
            f" unless group by ({RUN}) ({metric(names.METRIC_SLO_TARGET)})"
            f" unless group by ({RUN}) (max_over_time({draining}[{long}]) > 0))",
            summary=f"Run {{{{ $labels.{RUN} }}}}: admission sends no metrics any more, so no objective is watched",
            meaning="Admission, the collector or the way between them is gone. Training goes on with the last limits;"
            " nobody would hear of a breach. A run that was told to stop is not meant.",
            confirm=(
                "`kubectl get pods -l 'app.kubernetes.io/component in (admission, collector)'`.",
                "`tidegate slo` asks admission itself.",
            ),
            steps=("Bring back what is missing; the counters go on where they stood.",),
            for_share=1 / 288,
        ),
        Alert(
            name="TidegateWeightsStuck",
            severity="page",
            expr=f"(({version} - {serving}) > max by ({RUN}) ({metric(admission_stats.MAX_LAG.metric)}))",
            summary=f"Run {{{{ $labels.{RUN} }}}}: an actor serves a version beyond the staleness budget",
            meaning="What that actor makes is dropped before it is trained. One actor that hangs or cannot pull is"
            " enough; an actor that is being started is not meant, hence the wait.",
            confirm=(
                "`tidegate status` shows the version that each actor serves.",
                "The actor's log: `policy_refused` or retries of a pull.",
            ),
            steps=(
                "Delete the actor's pod: its task is handed on.",
                "All of them: look at weight-distribution (disk full? network policy?).",
            ),
            for_share=1 / 288,
        ),
        Alert(
            name="TidegateStreamNearFull",
            severity="ticket",
            expr=f"max by ({RUN}, {stream}) ({metric(names.METRIC_STREAM_FULLNESS)}{{{work}}}) > 0.8",
            summary=f"Run {{{{ $labels.{RUN} }}}}: stream {{{{ $labels.{stream} }}}} is over 80 % full",
            meaning="At the limit publishers wait: nothing is lost, and everything before that stream stands still.",
            confirm=(
                "`tidegate explain` names the stage behind the stream.",
                f"`{metric(names.METRIC_CONSUMER_PENDING)}` of the stream: does its consumer still read?",
            ),
            steps=(
                "Bring back who reads the stream: actors (TASKS), environments (ROLLOUTS), the store (TRAJECTORIES).",
                "Only slow: add actors or environments, or lower `max_running`.",
            ),
            for_share=1 / 288,
        ),
        Alert(
            name="TidegateRedelivery",
            severity="ticket",
            expr=f"max by ({RUN}, {stream}, {consumer}) ({metric(names.METRIC_CONSUMER_REDELIVERED)}) > 0",
            summary=f"Run {{{{ $labels.{RUN} }}}}: {{{{ $labels.{consumer} }}}} gets the same messages again and again",
            meaning="A message is redelivered when its reader died or took longer than it had promised. Once after a"
            " death is as it should be; for long it means that a message kills its readers, or that they are too slow.",
            confirm=(
                f"`{metric(names.METRIC_CONSUMER_REDELIVERED)}` and the readers' restarts.",
                "After the last delivery a message is set aside: `tidegate status` counts quarantined ones.",
            ),
            steps=(
                "Look at the log of the reader that died last.",
                "Readers that are alive and slow: give them more CPU, or make rollouts shorter.",
            ),
            for_share=1 / 144,
        ),
        Alert(
            name="TidegateQuarantine",
            severity="ticket",
            expr=f"sum by ({RUN}) (increase({metric(names.METRIC_QUARANTINED)}[{long}])) > 0",
            summary=f"Run {{{{ $labels.{RUN} }}}}: a message was set aside as invalid",
            meaning="Nothing is dropped silently: what cannot be read or trained is kept in the stream QUARANTINE with"
            " its reason, and its trajectories are settled as dropped.",
            confirm=(
                "The log of the service that refused it has `message_refused` or `quarantined` with the reason.",
            ),
            steps=(
                "Two versions of the image at work, or a foreign publisher on the broker: put that in order.",
                "Otherwise keep the message and report it: it is a defect.",
            ),
        ),
        Alert(
            name="TidegateProvenanceIncomplete",
            severity="ticket",
            expr=f"sum by ({RUN}) (increase({metric(names.METRIC_PROVENANCE_INCOMPLETE)}[{long}])) > 0",
            summary=f"Run {{{{ $labels.{RUN} }}}}: a trajectory was trained without the record of one of its stages",
            meaning="Its trace has a hole that nobody can fill any more.",
            confirm=(
                f"`sum by ({label(names.ATTR_STAGE)}) ({metric(names.METRIC_PROVENANCE_INCOMPLETE)})`.",
            ),
            steps=("Look for actors or environments of another version.",),
        ),
        Alert(
            name="TidegateCollectorDrops",
            severity="ticket",
            expr="\nor\n".join(
                f"sum by (job, instance) (rate({name}[{long}])) > 0"
                for name in (
                    "otelcol_receiver_refused_spans_total",
                    "otelcol_receiver_refused_metric_points_total",
                    "otelcol_exporter_send_failed_spans_total",
                    "otelcol_exporter_send_failed_metric_points_total",
                    "otelcol_exporter_enqueue_failed_spans_total",
                )
            ),
            summary="The collector {{ $labels.instance }} refuses or loses telemetry",
            meaning="It is short of memory (refused), or a backend does not take what it sends (failed). Training is"
            " not touched; metrics are cumulative and catch up, traces are lost.",
            confirm=("The collector's log, and which of the counters in the alert's expression grow.",),
            steps=(
                "refused: raise the collector's memory limit, or lower `telemetry.sample_ratio`.",
                "failed: is the trace store there, and does it accept as much?",
            ),
            for_share=1 / 288,
        ),
    ]
