"""Alerts on what a run needs of its cluster: volumes, pods, certificates, the Kubernetes API, checkpoints, backups.

Metrics of kube-state-metrics and the kubelet name pods and claims, not runs. Their names begin with the release's, and
so does the pod of admission, which exports the run: ``RUN_OF_RELEASE`` joins the two.
"""

from tidegate.catalogue import admission as admission_stats
from tidegate.catalogue import backup as backup_stats
from tidegate.catalogue import learner as learner_stats
from tidegate.catalogue import process as process_stats
from tidegate.catalogue import replication as replication_stats
from tidegate.catalogue import telemetry as names
from tidegate.launch.services import SERVICES
from tidegate.runtime.backup_state import OVERDUE_PERIODS
from tools.monitoring.alerts import OF_WHICH, Alert
from tools.monitoring.prometheus_names import label, metric
from tools.monitoring.slo_rules import NAMESPACE, OF_RUN, RUN, Period, Rule, selected

COMPONENTS = "|".join([*(service.replace("_", "-") for service in SERVICES), "nats", "collector"])
# A StatefulSet's claim begins with the name of its volume, a JobSet's ends with it. RE2 does not number this group.
CLAIMS = "(?:data-)?"
RUN_OF_RELEASE = "tidegate:run_of_release:info"
OF_RELEASE = f"{NAMESPACE}, release"
# Of the volume. A page leaves time to act: streams and payloads fill a percent within minutes.
FREE_TICKET, FREE_PAGE = 0.15, 0.05
# Below this, a restart is a node that went away or a deployment.
RESTARTS_MAX = 2
CERTIFICATE_LEFT_S = 3 * 86400
# The next checkpoint begins after `checkpoint_every_steps` updates and waits for the one before, so 2 is never passed
# while checkpoints can be written.
CHECKPOINT_BEHIND_MAX = 2


def of_objects(
    name: str,
    kind: str,
    *,
    prefix: str = "",
    components: str = COMPONENTS,
    suffix: str = "-.+",
    window: str = "",
) -> str:
    """Series of another exporter about objects of releases, with the label ``release``.

    ``kind``: the label with the object's name, which is prefix, release, component and suffix. The chart replaces
    ``(.+)-(`` by its own release where the scope of the rules is a release. ``window``: the increase over it instead.
    """
    pattern = f"{prefix}(.+)-({components}){suffix}"
    series = f'{name}{{{NAMESPACE}=~".+",{kind}=~"{pattern}"}}'
    if window:
        series = f"increase({series}[{window}])"
    return f'label_replace({series}, "release", "$1", "{kind}", "{pattern}")'


def with_run(expr: str) -> str:
    """An expression by release, with the run that the release has."""
    return f'({expr}) * on ({OF_RELEASE}) group_left ({RUN}) {RUN_OF_RELEASE}{{{RUN}=~".+"}}'


def run_of_release() -> Rule:
    """1 for the run of each release that reported within the last hour; one where it was given another id."""
    target = selected(names.METRIC_SLO_TARGET, 'instance=~"(.+)-(admission)-[0-9]+"')
    named = (
        f'label_replace(last_over_time({target}[1h]), "release", "$1", "instance", "(.+)-(admission)-[0-9]+")'
    )
    runs = f"group by ({OF_RUN}, release) ({named})"
    return {"record": RUN_OF_RELEASE, "expr": f"topk by ({OF_RELEASE}) (1, {runs})"}


def cluster_alerts(period: Period) -> list[Alert]:
    """Every alert of this module. Those on other exporters are silent where the exporter is missing."""
    long = period.window(1 / 72)
    return [
        *(_volume(severity, free) for severity, free in (("page", FREE_PAGE), ("ticket", FREE_TICKET))),
        _checkpoint_old(),
        _backup_old(),
        _replica_away(),
        _all_stand_by(),
        _crash_loop(long),
        _certificate_expires(),
        _actors_pending(),
        _kubernetes_failing(long),
    ]


def _checkpoint_old() -> Alert:
    return Alert(
        name="TidegateCheckpointOld",
        severity="ticket",
        expr=f"max by ({OF_RUN}) ({selected(learner_stats.CHECKPOINT_BEHIND.metric)}) > {CHECKPOINT_BEHIND_MAX}",
        summary=f"{OF_WHICH}: updates go on without a new checkpoint",
        meaning="More than twice `learner.checkpoint_every_steps` updates were made since the newest checkpoint. A"
        " crash of the learner repeats them all, and the store keeps their payloads until then.",
        confirm=(
            "The learner's log has `checkpoint_failed` with the reason.",
            f"`{metric(learner_stats.CHECKPOINT_FAILURES.metric)}` increases.",
        ),
        steps=(
            "The volume is full: enlarge the learner's claim, or lower `learner.keep_checkpoints`.",
            "The volume is read-only or gone: repair the node or its storage; training goes on meanwhile.",
        ),
        for_share=1 / 288,
    )


def _backup_old() -> Alert:
    causes = metric(backup_stats.BACKUP_FAILURES_BECAUSE.metric)
    return Alert(
        name="TidegateBackupOld",
        severity="ticket",
        expr=f"max by ({OF_RUN}) ({selected(backup_stats.BACKUP_BEHIND.metric)}) > {OVERDUE_PERIODS:g}",
        summary=f"{OF_WHICH}: no backup was completed for {OVERDUE_PERIODS:g} periods",
        meaning="The run trains, and what it does is on its own disk alone: with the machine, everything after the"
        " newest complete backup would be lost, and by now that is more than three times `backup.every_s`. The backup"
        " before stays in force. Admission reports it, so that a backup process that hangs or has died is seen too.",
        confirm=(
            "`tidegate explain --dir RUN` names the newest complete backup, since when there is none, and why the last"
            " try failed; so do `backup.json` of the run folder and `logs/backup.log`, in a cluster"
            " `kubectl logs RELEASE-admission-0 -c backup`.",
            f"`sum by ({label(names.ATTR_CAUSE)}) ({causes})` has the tries that failed, by cause.",
        ),
        steps=(
            "refused: the credentials ended, or may no longer list, read, write and delete below the prefix. Restart"
            " the backup with valid ones: `tidegate backup RUN --to PLACE --every 600`, in a cluster by"
            " changing the Secret and deleting admission's pod.",
            "unavailable, deadline: the place or the network is away. It is tried again with a growing pause.",
            "disk: free space for copies of ledger and journal, in a cluster on the volumes of store and task queue;"
            " the log says how much.",
            "conflict: a second process backs up the same run. Stop the run that should not train, or its backup; in a"
            " cluster then delete admission's pod.",
            "No failures: the process has ended (the end of `logs/backup.log` says why; start it again as above), the"
            " run has no checkpoint yet, or one backup takes longer than `backup.every_s`: then raise that.",
        ),
        for_share=1 / 288,
    )


def _replica_away() -> Alert:
    return Alert(
        name="TidegateReplicaAway",
        severity="page",
        expr=f"max by ({OF_RUN}, job) ({selected(replication_stats.REPLICA_AWAY_S.metric)}) > 0",
        summary=f"{OF_WHICH}: PostgreSQL does not take the replica of {{{{ $labels.job }}}}",
        meaning="Task queue and trajectory store answer nothing that PostgreSQL does not have, so that nothing is lost"
        " with their volumes: training stands still until it answers. Leases do not end meanwhile, and messages wait at"
        " the broker.",
        confirm=(
            "`tidegate explain` has the last error of each of the two; so have their logs (`replica_away`).",
        ),
        steps=(
            "It does not answer: repair PostgreSQL, its Service or the network policies on the way"
            " (`postgres.port`, `networkPolicy.externalEgress`). Training goes on by itself.",
            "Its disk is full: enlarge it. The schemas of runs that are over can be dropped; their names begin with"
            " `tidegate_`.",
            "The password changed: update the Secret, then delete the pods of task queue and trajectory store.",
            "It is lost for good: with the volumes intact, remove the section `postgres` from the run, or name an empty"
            " database, which is filled from the files.",
        ),
        for_share=1 / 288,
    )


def _all_stand_by() -> Alert:
    return Alert(
        name="TidegateAllStandBy",
        severity="page",
        expr=f"min by ({OF_RUN}, job) ({selected(process_stats.STANDBY.metric)}) > 0",
        summary=f"{OF_WHICH}: every pod of {{{{ $labels.job }}}} stands by, and none works",
        meaning="Of the pods of a service one works and the others wait for it to end. Now all of them wait. Without"
        " task queue, trajectory store or learner training stands still; without admission it goes on under the last"
        " limits, and pauses, scaling and the end of the run wait.",
        confirm=(
            "The logs of its pods: `replica_not_read` (task queue and trajectory store) has what PostgreSQL says,"
            " `kubernetes_failed` (admission) what the Kubernetes API says, `turn_not_possible` (learner) why it"
            " waits.",
        ),
        steps=(
            "Task queue or trajectory store: repair PostgreSQL or the way to it, as for"
            " [TidegateReplicaAway](TidegateReplicaAway.md). A pod takes over by itself.",
            "Learner: let its pods reach the trajectory store. One whose checkpoint is too old waits for the pod that"
            " trained last, or for its volume.",
            "Admission: see that its pods reach the API server and the broker, and who holds the Lease:"
            " `kubectl get lease`.",
        ),
        for_share=1 / 288,
    )


def _crash_loop(long: str) -> Alert:
    return Alert(
        name="TidegateCrashLoop",
        severity="page",
        expr=with_run(_crash_loops(long)),
        summary=f"{OF_WHICH}: {{{{ $labels.container }}}} of pod {{{{ $labels.pod }}}} restarts again and again",
        meaning="A container ended and was started more than twice within the window. Other pods of its service may"
        " still work. A run that never reported has no alert: `helm install --wait` reports it. Needs"
        " kube-state-metrics.",
        confirm=(
            "`kubectl describe pod POD`: the last state has the exit code and the termination message.",
            "`kubectl logs POD --previous`: the last line gives the reason and a fix.",
        ),
        steps=(
            "OOMKilled: raise the memory limit of that service.",
            "Exit code 2: the run file or the environment is wrong; `tidegate check` says where.",
            "Anything else: keep the log and report a defect; `helm rollback` if it began with an upgrade.",
        ),
    )


def _certificate_expires() -> Alert:
    return Alert(
        name="TidegateCertificateExpires",
        severity="ticket",
        expr=f"min by ({OF_RUN}, job) ({selected(process_stats.CERTIFICATE_EXPIRES_AT_S.metric)})"
        f" - time() < {CERTIFICATE_LEFT_S}",
        summary=f"{OF_WHICH}: the certificate of {{{{ $labels.job }}}} ends within three days",
        meaning="Certificates are renewed long before their end, so renewal failed. At the end every new connection"
        " of that service fails.",
        confirm=(
            "cert-manager: `kubectl describe certificate` shows why it is not renewed.",
            "`tls.selfSigned`: `kubectl get jobs` shows the Job of the CronJob `<release>-certificates`; read"
            " its log.",
        ),
        steps=(
            "Repair the issuer, or run the CronJob once:"
            " `kubectl create job --from=cronjob/<release>-certificates now`.",
            "A Secret of your own: replace its contents; services read it without a restart.",
        ),
        for_share=1 / 288,
    )


def _actors_pending() -> Alert:
    return Alert(
        name="TidegateActorsPending",
        severity="ticket",
        expr=with_run(
            f"{_actors('kube_deployment_spec_replicas')} - {_actors('kube_deployment_status_replicas_ready')} > 0"
        ),
        summary=f"{OF_WHICH}: {{{{ $value }}}} actors of {{{{ $labels.deployment }}}} were asked for and are not"
        f" ready",
        meaning="No node has room, a quota or Kueue holds them back, or they start and do not become ready. The run"
        " trains with the actors that it has. Needs kube-state-metrics.",
        confirm=(
            "`kubectl get pods -l app.kubernetes.io/component=actor`: Pending, or running and not ready?",
            "`kubectl describe pod POD`: the scheduler's events say what is missing.",
        ),
        steps=(
            "Pending: add nodes, raise the quota, or ask for fewer actors.",
            "SchedulingGated: Kueue has not admitted them; see `kubectl get workloads`.",
            "Running: they wait for a policy or an environment; see TidegateWeightsStuck and their log.",
        ),
        for_share=1 / 96,
    )


def _kubernetes_failing(long: str) -> Alert:
    return Alert(
        name="TidegateKubernetesFailing",
        severity="ticket",
        expr=f"sum by ({OF_RUN}) (increase({selected(admission_stats.KUBERNETES_FAILURES.metric)}[{long}])) > 3"
        f" and sum by ({OF_RUN}) (increase({selected(admission_stats.KUBERNETES_FAILURES.metric)}[{long}]))"
        f" > 0.5 * sum by ({OF_RUN}) (increase({selected(admission_stats.KUBERNETES_REQUESTS.metric)}[{long}]))",
        summary=f"{OF_WHICH}: most requests of admission to the Kubernetes API fail",
        meaning="Admission neither sees nor scales its actors, and writes no conditions. Training continues with"
        " the actors that there are.",
        confirm=("Admission's log has the failed request and the answer.",),
        steps=(
            "403: the Role `<release>-admission` was changed or removed; `helm upgrade` restores it.",
            "Timeouts: a network policy or the API server; set `networkPolicy` to let admission reach it.",
        ),
        for_share=1 / 288,
    )


def _volume(severity: str, free: float) -> Alert:
    available, capacity = (
        f"min by ({OF_RELEASE}, persistentvolumeclaim)"
        f" ({of_objects(f'kubelet_volume_stats_{kind}_bytes', 'persistentvolumeclaim', prefix=CLAIMS)})"
        for kind in ("available", "capacity")
    )
    return Alert(
        name="TidegateVolumeNearFull",
        severity=severity,
        expr=with_run(f"{available} / {capacity} < {free:g}"),
        summary=f"{OF_WHICH}: volume {{{{ $labels.persistentvolumeclaim }}}} has"
        " {{ $value | humanizePercentage }} left",
        meaning="A full volume stops its service: the broker stores nothing, the store takes no trajectories, the"
        " learner writes no checkpoint. Nothing that was acknowledged is lost. Needs the kubelet's metrics.",
        confirm=(
            "`kubectl get pvc`, and the panel Volumes of the dashboard Machines.",
            "`du -sh /data/*` in the pod shows what takes the space.",
        ),
        steps=(
            "Enlarge the claim, where its storage class allows it: `kubectl edit pvc NAME`.",
            "Store: lower `trajectory_store.max_resident_bytes` or `replayable_bytes_max`. Learner: lower"
            " `keep_checkpoints`. Broker: its streams have limits; see TidegateStreamNearFull.",
        ),
        for_share=1 / 288,
    )


def _crash_loops(window: str) -> str:
    named = of_objects("kube_pod_container_status_restarts_total", "pod", window=window)
    return f"sum by ({OF_RELEASE}, pod, container) ({named}) > {RESTARTS_MAX}"


def _actors(name: str) -> str:
    of_actors = of_objects(name, "deployment", components="actor", suffix="(-.+)?")
    return f"max by ({OF_RELEASE}, deployment) ({of_actors})"
