"""Dashboard of what a run has of its cluster: GPUs, pods, volumes, and what it costs in hours."""

from tidegate.catalogue import backup as backup_stats
from tidegate.catalogue import gpu as gpu_stats
from tidegate.catalogue import learner as learner_stats
from tidegate.catalogue import process as process_stats
from tidegate.catalogue import replication as replication_stats
from tidegate.catalogue.telemetry import ATTR_GPU
from tools.monitoring.cluster_alerts import CLAIMS, OF_RELEASE, RUN_OF_RELEASE, of_objects
from tools.monitoring.panels import Board, Panel, Query, Row
from tools.monitoring.prometheus_names import label
from tools.monitoring.queries import CAUSE, CHOSEN, RANGE, one, rate
from tools.monitoring.slo_rules import OF_RUN, RUN

DCGM = "NVIDIA's DCGM exporter, and rules of Tidegate"
GPUS = "GPUs, and the package nvidia-ml-py"
GPU_ID = label(ATTR_GPU)
KUBE = "kube-state-metrics, and rules of Tidegate"
BACKUP = "`backup` in the run file, or `tidegate backup`"
POSTGRES = "`postgres` in the run file"
JOB = "{{job}}"
KUBELET = "the kubelet's metrics, and rules of Tidegate"
POD = "{{pod}}"
GPU = "{{pod}} {{gpu}}"


def of_run(expr: str) -> str:
    """Series by release, of the chosen runs, with their run."""
    return f"{expr} * on ({OF_RELEASE}) group_left ({RUN}) {RUN_OF_RELEASE}{{{CHOSEN}}}"


def gpu(name: str) -> str:
    """A metric of each GPU that a run's pods have."""
    return f"max by ({OF_RELEASE}, pod, gpu) ({of_objects(name, 'pod')})"


def volume(kind: str) -> str:
    """Bytes of each volume of a run."""
    series = of_objects(f"kubelet_volume_stats_{kind}_bytes", "persistentvolumeclaim", prefix=CLAIMS)
    return f"max by ({OF_RELEASE}, persistentvolumeclaim) ({series})"


def actors(name: str) -> str:
    """Actors by Deployment."""
    series = of_objects(name, "deployment", components="actor", suffix="(-.+)?")
    return f"max by ({OF_RELEASE}, deployment) ({series})"


_GPUS = f"count by ({OF_RELEASE}) ({gpu('DCGM_FI_DEV_GPU_UTIL')})"
_MEMORY_USED = f"{gpu('DCGM_FI_DEV_FB_USED')} / ({gpu('DCGM_FI_DEV_FB_USED')} + {gpu('DCGM_FI_DEV_FB_FREE')})"

MACHINES = Board(
    uid="tidegate-machines",
    title="Tidegate / Machines",
    description="GPUs, pods, volumes and hours of machines that a run uses.",
    rows=(
        Row(
            "GPUs",
            (
                Panel(
                    "Utilisation of each GPU",
                    (Query(of_run(f"{gpu('DCGM_FI_DEV_GPU_UTIL')} / 100"), GPU),),
                    unit="percentunit",
                    description="Share of time in which a kernel ran. Normal: above 80 % for the learner and for actors"
                    " with inference servers. Low: they wait; see Bottleneck and the learner's waiting time.",
                    only_with=DCGM,
                ),
                Panel(
                    "Memory of each GPU",
                    (Query(of_run(f"({_MEMORY_USED})"), GPU),),
                    unit="percentunit",
                    description="Share in use. Normal: flat; inference servers take a fixed share at their start. It"
                    " climbs to 100 %: an out-of-memory error follows; use smaller micro-batches.",
                    only_with=DCGM,
                ),
                Panel(
                    "Power of each GPU",
                    (Query(of_run(gpu("DCGM_FI_DEV_POWER_USAGE")), GPU),),
                    unit="watt",
                    description="Normal: near the limit of the card under load. Far below with high utilisation: the"
                    " work is bound by memory or by many small kernels.",
                    only_with=DCGM,
                ),
                Panel(
                    "GPUs of each service, share of time busy",
                    (
                        Query(
                            f"sum by ({OF_RUN}, job, instance) ({rate(gpu_stats.GPU_BUSY_S.metric)})",
                            "{{instance}}",
                        ),
                        Query(
                            f"max by ({OF_RUN}, instance, {GPU_ID}) ({one(gpu_stats.GPU_UTILISATION.metric)})",
                            f"{{{{instance}}}} GPU {{{{{GPU_ID}}}}}, newest",
                        ),
                    ),
                    unit="percentunit",
                    width=8,
                    description="Of the GPUs that a learner or an actor sees, their mean and each; needs no exporter."
                    " Normal: near 100 % for a learner that is the bottleneck. Far below: it waits for its CPU; raise"
                    " `batch_size` or `learner.pass_tokens`.",
                    only_with=GPUS,
                ),
                Panel(
                    "GPUs of each service, memory in use",
                    (
                        Query(
                            f"max by ({OF_RUN}, instance, {GPU_ID}) ({one(gpu_stats.GPU_MEMORY_USED.metric)})"
                            f" / max by ({OF_RUN}, instance, {GPU_ID}) ({one(gpu_stats.GPU_MEMORY.metric)})",
                            f"{{{{instance}}}} {{{{{GPU_ID}}}}}",
                        ),
                    ),
                    unit="percentunit",
                    width=8,
                    description="Share, by all processes of the GPU. Normal: flat. It climbs to 100 %: an out-of-memory"
                    " error follows; lower `learner.pass_tokens`, or the share of the inference server.",
                    only_with=GPUS,
                ),
                Panel(
                    "GPUs that services see",
                    (Query(f"sum by ({OF_RUN}, job) ({one(gpu_stats.GPUS.metric)})", "{{job}}"),),
                    unit="none",
                    width=8,
                    description="Normal: constant. It falls: a GPU does not answer any more; read the log of the"
                    " service (gpus_not_read).",
                    only_with=GPUS,
                ),
            ),
        ),
        Row(
            "Pods",
            (
                Panel(
                    "Actors asked for and ready",
                    (
                        Query(of_run(actors("kube_deployment_spec_replicas")), "{{deployment}} asked for"),
                        Query(
                            of_run(actors("kube_deployment_status_replicas_ready")), "{{deployment}} ready"
                        ),
                    ),
                    unit="none",
                    description="Normal: both lines are equal. Fewer ready ones for long: see the alert"
                    " TidegateActorsPending.",
                    only_with=KUBE,
                ),
                Panel(
                    "Restarts within the last hour",
                    (
                        Query(
                            of_run(
                                f"sum by ({OF_RELEASE}, pod)"
                                f" ({of_objects('kube_pod_container_status_restarts_total', 'pod', window='1h')})"
                            ),
                            POD,
                        ),
                    ),
                    unit="none",
                    description="Normal: none. Several of one pod: see the alert TidegateCrashLoop.",
                    only_with=KUBE,
                ),
                Panel(
                    "Updates since the newest checkpoint",
                    (Query(f"max by ({OF_RUN}) ({one(learner_stats.CHECKPOINT_BEHIND.metric)})"),),
                    unit="percentunit",
                    description="As a share of `learner.checkpoint_every_steps`. Normal: a saw that ends near 100 %,"
                    " and below 200 %. Above: see the alert TidegateCheckpointOld.",
                ),
            ),
        ),
        Row(
            "Volumes",
            (
                Panel(
                    "Volumes, share in use",
                    (
                        Query(
                            of_run(f"(1 - {volume('available')} / {volume('capacity')})"),
                            "{{persistentvolumeclaim}}",
                        ),
                    ),
                    unit="percentunit",
                    width=12,
                    description="Normal: flat after the first hours. At 85 % a ticket is opened, at 95 % a page: see"
                    " the alert TidegateVolumeNearFull.",
                    only_with=KUBELET,
                ),
                Panel(
                    "Volumes, bytes left",
                    (Query(of_run(volume("available")), "{{persistentvolumeclaim}}"),),
                    unit="bytes",
                    width=12,
                    description="Normal: flat. Its slope tells when the volume is full; enlarge the claim before.",
                    only_with=KUBELET,
                ),
            ),
        ),
        Row(
            "Backups",
            (
                Panel(
                    "Age of the newest backup",
                    (Query(f"max by ({OF_RUN}) ({one(backup_stats.BACKUP_AGE_S.metric)})"),),
                    unit="s",
                    width=6,
                    description="What would be lost with the machine. Normal: a saw that ends near `backup.every_s`."
                    " Above three times that: see the alert TidegateBackupOld.",
                    only_with=BACKUP,
                ),
                Panel(
                    "Size of the newest backup",
                    (Query(f"max by ({OF_RUN}) ({one(backup_stats.BACKUP_BYTES.metric)})"),),
                    unit="bytes",
                    width=6,
                    description="Normal: it grows with ledger and journal. The backups that are kept share what they"
                    " have in common.",
                    only_with=BACKUP,
                ),
                Panel(
                    "Time to make a backup",
                    (Query(f"max by ({OF_RUN}) ({one(backup_stats.BACKUP_DURATION_S.metric)})"),),
                    unit="s",
                    width=6,
                    description="Normal: well below `backup.every_s`. Near it: raise that, or use a nearer place.",
                    only_with=BACKUP,
                ),
                Panel(
                    "Failed tries of backups",
                    (
                        Query(
                            f"sum by ({OF_RUN}, {CAUSE}) (increase({one(backup_stats.BACKUP_FAILURES_BECAUSE.metric)}"
                            f"[{RANGE}]))",
                            f"{{{{{CAUSE}}}}}",
                        ),
                    ),
                    unit="none",
                    width=6,
                    description="Within the time range above, by cause. Normal: none. One now and then is repeated by"
                    " itself; the alert TidegateBackupOld names what to do about each cause.",
                    only_with="failed backups",
                ),
            ),
        ),
        Row(
            "Replicas in PostgreSQL",
            (
                Panel(
                    "Transactions a second",
                    (
                        Query(
                            f"sum by ({OF_RUN}, job) ({rate(replication_stats.REPLICA_PUSHES.metric)})", JOB
                        ),
                    ),
                    unit="none",
                    width=8,
                    description="Normal: two to four for each update of the learner, and one a second while idle.",
                    only_with=POSTGRES,
                ),
                Panel(
                    "Time of a transaction",
                    (
                        Query(
                            f"sum by ({OF_RUN}, job) ({rate(replication_stats.REPLICA_PUSH_S.metric)})"
                            f" / sum by ({OF_RUN}, job) ({rate(replication_stats.REPLICA_PUSHES.metric)})",
                            JOB,
                        ),
                    ),
                    unit="s",
                    width=8,
                    description="Every answer of the service waits for one. Normal: milliseconds, more with large"
                    " payloads. Above 50 ms: a nearer or faster server, or `postgres.payloads: false`.",
                    only_with=POSTGRES,
                ),
                Panel(
                    "Time without PostgreSQL",
                    (Query(f"max by ({OF_RUN}, job) ({one(replication_stats.REPLICA_AWAY_S.metric)})", JOB),),
                    unit="s",
                    width=8,
                    description="Normal: 0. Above that training stands still: the alert TidegateReplicaAway names what"
                    " to do.",
                    only_with=POSTGRES,
                ),
            ),
        ),
        Row(
            "Cost",
            (
                Panel(
                    "CPU hours of the chosen time",
                    (
                        Query(
                            f"sum by ({OF_RUN}) (increase({one(process_stats.CPU_S.metric)}[{RANGE}])) / 3600"
                        ),
                    ),
                    unit="none",
                    kind="stat",
                    description="Hours of CPU that the run's services used in the time range above. Multiply by your"
                    " price an hour; requests that were not used cost as well.",
                ),
                Panel(
                    "GPU hours of the chosen time",
                    (Query(of_run(f"sum_over_time(({_GPUS})[{RANGE}:1m]) / 60")),),
                    unit="none",
                    kind="stat",
                    description="Hours of GPUs that the run's pods held in the time range above, busy or idle."
                    " Multiply by your price an hour.",
                    only_with=DCGM,
                ),
                Panel(
                    "CPU cores in use, by service",
                    (Query(f"sum by ({OF_RUN}, job) ({rate(process_stats.CPU_S.metric)})", "{{job}}"),),
                    unit="none",
                    stacked=True,
                    description="Normal: actors and learner dominate. Another service near its limit is a"
                    " bottleneck; give it more CPU.",
                ),
            ),
        ),
    ),
)
