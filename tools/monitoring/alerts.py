"""Every alert with its runbook: the burn of each objective, and conditions that are wrong without a budget."""

import msgspec

from tidegate.catalogue import actor as actor_stats
from tidegate.catalogue import admission as admission_stats
from tidegate.catalogue import learner as learner_stats
from tidegate.catalogue import process as process_stats
from tidegate.catalogue import telemetry as names
from tidegate.catalogue.kinds import Instrument
from tidegate.core.slo_catalogue import REMEDIES
from tools.monitoring.prometheus_names import label, metric
from tools.monitoring.slo_rules import (
    NAMESPACE,
    OF_RUN,
    RUN,
    SCOPE,
    SLO_NAMES,
    Period,
    alert_expressions,
    alert_name,
    of_slo,
    selected,
)

HUNG = selected(actor_stats.ENVIRONMENT_FAULTS.metric, f'{label(names.ATTR_KIND)}="hung"')
# How a summary names the run of an alert; a run on one machine has no namespace.
OF_WHICH = f"Run {{{{ with $labels.{NAMESPACE} }}}}{{{{ . }}}}/{{{{ end }}}}{{{{ $labels.{RUN} }}}}"
# An update in progress that takes no longer than those before it allow.
UPDATING = f"max by ({OF_RUN}) ({selected(learner_stats.UPDATE_DUE_AT_S.metric)}) > time()"


class Alert(msgspec.Struct, frozen=True):
    """One alert. ``for_share``: share of the period for which it must hold; ``steps``: remedies, in order."""

    name: str
    severity: str
    expr: str
    summary: str
    meaning: str
    confirm: tuple[str, ...]
    steps: tuple[str, ...]
    for_share: float = 0.0


# The summary and the description of each objective's burn.
_MEANINGS: dict[str, tuple[str, str]] = {
    "lag_p95": (
        "trajectories are trained too many versions behind",
        "More trained trajectories are older than the objective allows. Learning slows down and becomes less stable"
        " long before the hard bound is reached.",
    ),
    "lag_max": (
        "a trajectory was trained beyond the staleness budget",
        "The hard bound on staleness was exceeded: this is a defect, not load. See TidegateMaxLagExceeded.",
    ),
    "age_p95": (
        "trajectories are trained too long after they were started",
        "Rollouts take long, or queue for long before the learner. At `max_age_s` they are dropped.",
    ),
    "waste_ratio": (
        "too much finished work is dropped",
        "Finished trajectories are dropped: the actors' time on them is wasted.",
    ),
    "verifier_failure_ratio": (
        "verifiers fail at too many completions",
        "A verifier raised, hung, ended its process or returned no number: their completions teach nothing, or the"
        " wrong thing, by `environment.on_error`.",
    ),
    "learner_idle_ratio": (
        "the learner is idle most of the time",
        "The most expensive machine of the run waits for batches.",
    ),
    "actor_idle_ratio": (
        "actors are idle most of the time",
        "Actors have no task: admission delays work, or the learner cannot keep up.",
    ),
    "version_propagation_s": (
        "new versions take too long to reach the actors",
        "Actors keep serving old policies, so every trajectory starts with a lag.",
    ),
    "clipped_fraction": (
        "the objective clips most of each batch",
        "The policy has diverged from its data: most of the gradient is clipped.",
    ),
    "effective_sample_size": (
        "few of the samples of a batch carry the gradient",
        "Importance weights are uneven: a batch contributes as much as a fraction of its size.",
    ),
    "bin_drift": (
        "the trained mix differs from the finished mix, by curriculum bin",
        "Some curriculum bins lose more of their trajectories than others, so the policy trains on a different mix.",
    ),
    "length_drift": (
        "the trained mix differs from the finished mix, by length",
        "Long trajectories are dropped more often than short ones, so the policy trains mostly on short ones.",
    ),
}


# What an operator can do about a policy that these objectives show to be broken, besides the remedy.
_IF_COLLAPSED = (
    "If the reward collapsed with it: `tidegate pause`, `tidegate rollback --to VERSION` (without --to it lists the"
    " versions of the kept checkpoints), then `tidegate resume`.",
)
_MORE_STEPS: dict[str, tuple[str, ...]] = {
    "clipped_fraction": _IF_COLLAPSED,
    "effective_sample_size": _IF_COLLAPSED,
}


def _has_grown(counter: Instrument, *, over: str) -> str:
    """Runs in which a counter grew, also by appearing: one whose members are not reported before they count."""
    series = selected(counter)
    appeared = f"sum by ({OF_RUN}) ({series} unless {series} offset {over}) > 0"
    return f"sum by ({OF_RUN}) (increase({series}[{over}])) > 0 or {appeared}"


def burn_alerts(period: Period) -> list[Alert]:
    """Two alerts for each objective: a page and a ticket."""
    found: list[Alert] = []
    for slo in SLO_NAMES:
        what, meaning = _MEANINGS[slo]
        found.extend(
            Alert(
                name=alert_name(slo),
                severity=severity,
                expr=expr,
                summary=f"{OF_WHICH}: {what}; the error budget of {slo} is burning",
                meaning=meaning,
                confirm=(
                    "`tidegate slo` shows the objective, the budget left, and the bottleneck at its last breach.",
                    "`tidegate explain` names the bottleneck with its numbers.",
                ),
                steps=(REMEDIES[slo][0].upper() + REMEDIES[slo][1:] + ".", *_MORE_STEPS.get(slo, ())),
            )
            for severity, expr in alert_expressions(slo, period).items()
        )
    return found


def other_alerts(period: Period) -> list[Alert]:
    """Conditions that are wrong without an objective, and failures of the monitoring itself."""
    long, seen = period.window(1 / 72), period.window(1 / 4)
    # Also shortly after a pause: the window still holds it.
    paused = f"max by ({OF_RUN}) (max_over_time({selected(admission_stats.PAUSED.metric)}[{long}])) > 0"
    bad = selected(names.METRIC_SLO_EVENTS, of_slo("lag_max"), f'{label(names.ATTR_SLO_RESULT)}="bad"')
    version = f"max by ({OF_RUN}) ({selected(learner_stats.VERSION_STEP.metric)})"
    serving = f"min by ({OF_RUN}) ({selected(actor_stats.SERVING_STEP.metric)})"
    wait, waited = metric(names.METRIC_LEARNER_WAIT), selected(names.METRIC_LEARNER_WAIT)
    trained = selected(names.METRIC_CONSUMED)
    draining = selected(names.METRIC_DRAINING, 'job="tidegate/tidegate-admission"')
    monitored = selected(names.METRIC_SLO_TARGET)
    work = f'{label(names.ATTR_STREAM)}=~"TASKS|ROLLOUTS|TRAJECTORIES"'
    stream, consumer = label(names.ATTR_STREAM), label(names.ATTR_CONSUMER)
    return [
        Alert(
            name="TidegateMaxLagExceeded",
            severity="page",
            expr=f"sum by ({OF_RUN}) (increase({bad}[{long}])) > 0",
            summary=f"{OF_WHICH}: a trajectory was trained with more lag than lag_max allows",
            meaning="One trajectory is enough. With the default bound this is a defect: two checks precede"
            " every gradient. With a bound of your own below `max_lag` it is an early warning.",
            confirm=(
                "`tidegate slo` shows lag_max, its bound, and the value that exceeded it.",
                "`tidegate audit` must still balance. The trace of a late trajectory is always exported: search for"
                " `tidegate.slo.violation=true`, or `tidegate trace TRAJECTORY_ID`.",
            ),
            steps=(
                "If the bound is `max_lag`: stop the run and keep its folder; do not trust versions trained since.",
                "If the bound is tighter: treat it as TidegateLagP95Burn.",
            ),
        ),
        Alert(
            name="TidegateLearnerStarved",
            severity="ticket",
            expr=f"sum by ({OF_RUN}) (rate({waited}[{long}])) > 0.9 unless on ({OF_RUN}) {paused}",
            summary=f"{OF_WHICH}: the learner trains less than a tenth of the time",
            meaning="The learner waits for batches (cause empty), releases batches that are too old (stale),"
            " or waits for its last version to be published (weights).",
            confirm=(
                f"`sum by ({label(names.ATTR_CAUSE)}) (rate({wait}[5m]))` shows the cause.",
                "`tidegate explain` names the bottleneck.",
            ),
            steps=(
                "empty: add actors (`kubectl scale deployment/<release>-actor --replicas=N`), or widen `max_lag`.",
                "stale: shorten rollouts, or set `staleness.pacing: true`.",
                "weights: check the disk and the network of weight-distribution.",
            ),
            for_share=1 / 144,
        ),
        Alert(
            name="TidegateNothingTrained",
            severity="page",
            expr=f"sum by ({OF_RUN}) (increase({trained}[{long}])) == 0 unless on ({OF_RUN}) {paused}"
            f" unless on ({OF_RUN}) {UPDATING}",
            summary=f"{OF_WHICH}: nothing was trained, and the run is not paused",
            meaning="No objective burns while nothing is observed, so a stalled run violates none. A pause"
            " (`tidegate pause`, a suspended TrainingRun, actors that a person scaled to 0) is no stall, nor is an"
            " update that takes at most three times as long as the longest before it.",
            confirm=(
                "`tidegate status` shows which service is not ready or idle.",
                "`kubectl get pods -l app.kubernetes.io/name=tidegate`.",
            ),
            steps=(
                "No actors, although some are requested: their pods do not start, or crash; see their events and logs.",
                "To stop the run on purpose: `tidegate pause --reason TEXT`, and later `tidegate resume`.",
                "A service that restarts: the last lines of its log give the reason and a fix.",
                "Streams full: see TidegateStreamNearFull.",
            ),
            for_share=1 / 288,
        ),
        Alert(
            name="TidegateLearnerAbsent",
            severity="page",
            # Its counters end with it, so that TidegateNothingTrained has nothing to compare.
            expr=f"group by ({OF_RUN}) ({monitored})"
            f" unless on ({OF_RUN}) group by ({OF_RUN}) ({selected(learner_stats.VERSION_STEP.metric)})"
            f" unless on ({OF_RUN}) {paused}",
            summary=f"{OF_WHICH}: no learner reports, and the run is neither paused nor complete",
            meaning="The learner was scaled to 0, its pods wait for a node or for Kueue, or they do not get as far as"
            " reporting. Actors go on until the staleness budget is used, and then wait on their GPUs. Only a declared"
            " pause (`tidegate pause`, a suspended TrainingRun, actors that a person scaled to 0) or a completed run"
            " explains that.",
            confirm=(
                "`kubectl get statefulset <release>-learner`, or `kubectl get jobset` or `trainjob` of that name: how"
                " many pods are wanted, and whether it is suspended.",
                "`kubectl describe pods -l app.kubernetes.io/component=learner`: why they are pending, or why they"
                " ended.",
            ),
            steps=(
                "Scaled to 0 without a pause: `kubectl scale statefulset/<release>-learner --replicas=N`, N the number"
                " of its pods (1 without `learner.ranks`); the run goes on from its last checkpoint.",
                "To stop the run on purpose: `tidegate pause --reason TEXT` first, which also declares the silence.",
                "A JobSet or TrainJob that Kueue suspended: `kubectl get workloads` shows what it waits for.",
                "Pods that end: the message of `kubectl describe` gives the reason and a fix.",
            ),
            for_share=1 / 96,
        ),
        Alert(
            name="TidegateTelemetryLost",
            severity="page",
            # While others report, also after a drain: admission found no other node. Where all are silent,
            # a drain tells a run that ended from one that is lost.
            expr=f"(group by ({OF_RUN}) (last_over_time({monitored}[{seen}]))"
            f" and group by ({OF_RUN}) ({selected(names.METRIC_DRAINING)})"
            f" unless group by ({OF_RUN}) ({monitored}))"
            f" or (group by ({OF_RUN}) ({monitored} offset {long})"
            f" unless group by ({OF_RUN}) ({monitored})"
            f" unless group by ({OF_RUN}) (max_over_time({draining}[{long}]) > 0))",
            summary=f"{OF_WHICH}: admission no longer exports metrics, so no objective is monitored",
            meaning="Admission, the collector or the connection between them is down. Training continues with"
            " the last limits, and a breach raises no alert. A run whose services have all drained is excluded.",
            confirm=(
                "`kubectl get pods -l 'app.kubernetes.io/component in (admission, collector)'`.",
                "`tidegate slo` asks admission itself.",
            ),
            steps=("Restore the missing component; counters continue from their last values.",),
            for_share=1 / 288,
        ),
        Alert(
            name="TidegateWeightsStuck",
            severity="page",
            expr=f"(({version} - {serving}) > max by ({OF_RUN}) ({selected(admission_stats.MAX_LAG.metric)}))",
            summary=f"{OF_WHICH}: an actor serves a version beyond the staleness budget",
            meaning="Trajectories of that actor are dropped before training. One actor that hangs or cannot"
            " pull is enough; the delay of the alert excludes actors that are starting.",
            confirm=(
                "`tidegate status` shows the version that each actor serves.",
                "The actor's log shows `policy_refused` or retried pulls.",
            ),
            steps=(
                "Delete the actor's pod: its task is redelivered to another actor.",
                "All actors: check weight-distribution (disk full? network policy?).",
            ),
            for_share=1 / 288,
        ),
        Alert(
            name="TidegateStreamNearFull",
            severity="ticket",
            expr=f"max by ({OF_RUN}, {stream}) ({selected(names.METRIC_STREAM_FULLNESS, work)}) > 0.8",
            summary=f"{OF_WHICH}: stream {{{{ $labels.{stream} }}}} is over 80 % full",
            meaning="At the limit publishers wait: nothing is lost, and all stages before that stream stall.",
            confirm=(
                "`tidegate explain` names the stage behind the stream.",
                f"`{metric(names.METRIC_CONSUMER_PENDING)}` of the stream: does its consumer still receive?",
            ),
            steps=(
                "Restore the stream's consumer: actors (TASKS), environments (ROLLOUTS), the store (TRAJECTORIES).",
                "If it is only slow: add actors or environments, or lower `max_running`.",
            ),
            for_share=1 / 288,
        ),
        Alert(
            name="TidegateRedelivery",
            severity="ticket",
            expr=f"max by ({OF_RUN}, {stream}, {consumer}) ({selected(names.METRIC_CONSUMER_REDELIVERED)}) > 0",
            summary=f"{OF_WHICH}: consumer {{{{ $labels.{consumer} }}}} receives the same messages"
            " repeatedly",
            meaning="A message is redelivered when its consumer died or exceeded its acknowledgement"
            " deadline. Once after a crash is normal; repeatedly, either a message crashes its"
            " consumers, or the consumers are too slow.",
            confirm=(
                f"`{metric(names.METRIC_CONSUMER_REDELIVERED)}` and the restarts of the consumers.",
                "A task that fails at every delivery is dropped; `tidegate explain TRAJECTORY_ID` tells its error.",
            ),
            steps=(
                "Read the log of the consumer that died last.",
                "Consumers that are alive and slow: give them more CPU, or shorten rollouts.",
            ),
            for_share=1 / 144,
        ),
        Alert(
            name="TidegateQuarantine",
            severity="ticket",
            expr=f"sum by ({OF_RUN}) (increase({selected(names.METRIC_QUARANTINED)}[{long}])) > 0",
            summary=f"{OF_WHICH}: an invalid message was quarantined",
            meaning="Invalid messages are kept in the QUARANTINE stream with the reason, and their"
            " trajectories are recorded as dropped.",
            confirm=(
                "The log of the service that refused it contains `message_refused` or `quarantined` with the reason.",
            ),
            steps=(
                "Check for two image versions in one run, or a foreign publisher on the broker.",
                "Otherwise keep the message and report a defect.",
            ),
        ),
        Alert(
            name="TidegateCallsRefused",
            severity="ticket",
            expr=f"sum by ({OF_RUN}) (increase({selected(process_stats.CALLS_REFUSED_BECAUSE.metric)}[{long}])) > 0",
            summary=f"{OF_WHICH}: a service refused calls for their caller",
            meaning="Every call sends the token of its caller's role, and `wire/call_permissions.py` says which role"
            " may call which method. Refused calls change nothing. Without a fault, a stranger reached the port.",
            confirm=(
                f"`sum by (job, {label(names.ATTR_CAUSE)}) (increase("
                f"{metric(process_stats.CALLS_REFUSED_BECAUSE.metric)}[1h]))` names the service and the cause.",
                "The log of that service has `call_refused` once a minute: the method, the caller's address, and why.",
            ),
            steps=(
                "unauthenticated, from an address of the run: a service of an earlier start, or one whose credential is"
                " older than the last two rotations. Restart it.",
                "permission_denied: a service calls what its role may not: two image versions in one run, or a service"
                " that an attacker took over. Compare the images; rotate the credentials if in doubt.",
                "From elsewhere: close the port (network policies on, loopback on a laptop), then find the caller.",
            ),
        ),
        Alert(
            name="TidegateBrokerRefused",
            severity="ticket",
            expr=f"sum by ({OF_RUN}) (increase({selected(process_stats.BROKER_REFUSED_BECAUSE.metric)}[{long}])) > 0",
            summary=f"{OF_WHICH}: the broker refused a service",
            meaning="Each service has its own user at the broker, and `wire/permissions.py` says which subjects and"
            " calls that user may use. The broker drops what is refused; its sender repeats it and waits.",
            confirm=(
                f"`sum by (job, {label(names.ATTR_CAUSE)}) (increase("
                f"{metric(process_stats.BROKER_REFUSED_BECAUSE.metric)}[1h]))` names the service and the operation.",
                "The log of that service has `broker_refused` at most once a minute for each operation, with the"
                " subject; the broker's log has the violation and the address.",
            ),
            steps=(
                "connect: the service has a password that the broker does not know. Finish the rotation that is in"
                " progress (SECURITY.md, Rotation); the service reads its password again whenever it connects.",
                "publish or subscribe, after an upgrade: two image versions in one run, or a broker with an older table"
                " of permissions. Finish the upgrade, and restart the broker.",
                "publish or subscribe, without one: a defect, or a service that was taken over. Keep its log, replace"
                " its pod, rotate its password.",
            ),
        ),
        Alert(
            name="TidegateHandlersFailed",
            severity="ticket",
            expr=" or ".join(
                _has_grown(statistic.metric, over=long)
                for statistic in (process_stats.CALLS_FAILED, process_stats.MESSAGES_FAILED)
            ),
            summary=f"{OF_WHICH}: a service failed at calls or messages by a defect",
            meaning="An exception that no caller caused ended a call, or the work on a message. The process goes on:"
            " the call was answered INTERNAL, a message of work is quarantined or delivered again, one of state is"
            " ignored.",
            confirm=(
                f"`{metric(process_stats.CALLS_FAILED.metric)}` names the service and the method,"
                f" `{metric(process_stats.MESSAGES_FAILED.metric)}` the service and the stream.",
                "The log of that service has the traceback under `call_failed` or `message_handler_failed`.",
            ),
            steps=(
                "Report the traceback as a defect, with the message from QUARANTINE if there is one.",
                "MemoryError: give the service more memory.",
                "Since an upgrade: roll it back; no data is lost by that.",
            ),
        ),
        Alert(
            name="TidegateEnvironmentHung",
            severity="ticket",
            expr=f"sum by ({OF_RUN}) (increase({HUNG}[{long}])) > 0",
            summary=f"{OF_WHICH}: an environment did not return from a call, which cost its actor",
            meaning="A step, a reset or the constructor of an environment took longer than `workload.step_timeout_s`."
            " Its actor released its tasks and ended, and is started again; nothing is lost.",
            confirm=(
                "`tidegate explain` names the actor, the environment, the copy and the step.",
                "The last error in the log of that actor.",
            ),
            steps=(
                "Correct the environment: a lock, a socket without a timeout, a simulation that does not converge.",
                "Calls that are only slow: raise `workload.step_timeout_s` above the slowest.",
            ),
        ),
        Alert(
            name="TidegateProvenanceIncomplete",
            severity="ticket",
            expr=f"sum by ({OF_RUN}) (increase({selected(names.METRIC_PROVENANCE_INCOMPLETE)}[{long}])) > 0",
            summary=f"{OF_WHICH}: a trajectory was trained without the timing of one of its stages",
            meaning="Its trace lacks a span, and the timing cannot be recovered.",
            confirm=(
                f"`sum by ({label(names.ATTR_STAGE)}) ({metric(names.METRIC_PROVENANCE_INCOMPLETE)})`.",
            ),
            steps=("Check for actors or environments of another image version.",),
        ),
        Alert(
            name="TidegateCollectorDrops",
            severity="ticket",
            expr="\nor\n".join(
                f"sum by ({OF_RUN}, instance) (rate({name}{{{SCOPE}}}[{long}])) > 0"
                for name in (
                    "otelcol_receiver_refused_spans_total",
                    "otelcol_receiver_refused_metric_points_total",
                    "otelcol_exporter_send_failed_spans_total",
                    "otelcol_exporter_send_failed_metric_points_total",
                    "otelcol_exporter_enqueue_failed_spans_total",
                )
            ),
            summary=f"{OF_WHICH}: the collector {{{{ $labels.instance }}}} refuses or loses telemetry",
            meaning="The collector is short of memory (refused), or a backend rejects its exports (failed)."
            " Training is not affected; metrics are cumulative and catch up, traces are lost.",
            confirm=("The collector's log, and the counters of the alert's expression that increase.",),
            steps=(
                "refused: raise the collector's memory limit, or lower `telemetry.sample_ratio`.",
                "failed: check that the trace store is up and accepts the rate.",
            ),
            for_share=1 / 288,
        ),
    ]
