"""What the pods of a planned run ask for: processes, memory, shared memory, disk, and the time to end.

Whole GiB and seconds, each with ``MARGIN`` above the plan, whose memory was within a tenth of what was measured
(docs/gpu.md). The presets of the chart are made from these numbers (``tools/chart_presets.py``; issue 18).
"""

import math

import msgspec

from tidegate.core.sizing.plan import GPUS_OF_NODE, GpuPlan, gibibytes_up
from tidegate.core.sizing.rollouts import server_host_bytes

MARGIN = 1.1
# NCCL's advice for containers is 1 GB of /dev/shm (`--shm-size=1g`), for a process of each GPU. A guess until measured.
SHARED_MEMORY_BYTES = float(1 << 30)
# What the data folder of an actor holds besides the folders of its server: spool, caches, logs.
SCRATCH_BYTES = 4e9
# Volumes below it are slower at many providers, and no cheaper.
DISK_GIB_MIN = 10
# Of a service that keeps a version in memory while it writes or sends it, besides the version.
WEIGHTS_BYTES = 1e9
DRAIN_S_MIN, DRAIN_STEP_S = 10, 5


class Pods(msgspec.Struct, frozen=True):
    """Pods of one service: how many, GPUs of each, GiB of memory with ``/dev/shm`` in it, of that and of its volume."""

    count: int
    gpus: int
    memory_gib: int
    shared_memory_gib: int
    disk_gib: int


class RunPods(msgspec.Struct, frozen=True):
    """Pods of a run by service; ``drain_s``: seconds from SIGTERM in which each of them finishes its work."""

    learner: Pods
    actor: Pods
    weights: Pods
    drain_s: int


def pods_of(plan: GpuPlan, *, batch_texts: int) -> RunPods:
    """The pods of a plan whose updates have ``batch_texts`` texts.

    A learner's pod has the GPUs of a node, or all of them where they are fewer. It may be told to end at the start of
    an update of the longest texts, and then writes a checkpoint.
    """
    split, training = plan.split, plan.request.training
    in_pod = min(split.learner_gpus, GPUS_OF_NODE)
    update_s = batch_texts * training.length / split.trained_tokens_per_s
    return RunPods(
        learner=_pods(
            split.learner_gpus // in_pod, in_pod, memory=plan.learner_host, disk=plan.disk.checkpoints
        ),
        actor=_pods(
            split.num_actors,
            split.tensor_parallel,
            memory=plan.actor_host + server_host_bytes(tensor_parallel=split.tensor_parallel),
            disk=plan.disk.actor_folders + SCRATCH_BYTES,
        ),
        weights=_pods(1, 0, memory=WEIGHTS_BYTES + 2 * plan.version_bytes, disk=plan.disk.versions),
        drain_s=max(DRAIN_S_MIN, math.ceil((update_s + plan.checkpoint_s) / DRAIN_STEP_S) * DRAIN_STEP_S),
    )


def _pods(count: int, gpus: int, *, memory: float, disk: float) -> Pods:
    shared = gpus * SHARED_MEMORY_BYTES
    return Pods(
        count=count,
        gpus=gpus,
        memory_gib=gibibytes_up(memory * MARGIN + shared),
        shared_memory_gib=gibibytes_up(shared),
        disk_gib=max(DISK_GIB_MIN, gibibytes_up(disk * MARGIN, step=5)),
    )
