"""Bytes and seconds of a policy version from the learner to the actors, and what is kept on disk.

A version is float32, every tensor of it, and comes from one root: seconds are of today's code, measured on one CPU core
(issue 18, findings on GPUs, 1.2 and 1.3); they change with the cores and disks of a cluster.
"""

import msgspec

from tidegate.core.sizing.accelerators import GB
from tidegate.core.sizing.learner import PROCESS_BYTES, Training

# CPU-seconds for a GB of float32: copy out of the trainer; hash and encode; check for finite values; cast and write.
COPY_S_PER_GB = 2.7
ANNOUNCE_S_PER_GB = 1.13
FINITE_S_PER_GB = 0.30
WRITE_S_PER_GB = 1.94
# CPU-seconds to copy the moments of a GB of policy for a checkpoint.
MOMENTS_S_PER_GB = 5.4
# A volume of block storage in a cloud, and weight distribution's own rate on loopback.
DISK_BYTES_PER_S = 125e6
ROOT_BYTES_PER_S = 2.35e9
# A server's reload of a bfloat16 folder from a file system in memory. A guess until measured.
RELOAD_BYTES_PER_S = 2e9
# Policy, and both moments; and how often a whole checkpoint is in memory while it is written.
CHECKPOINT_POLICIES = 3
CHECKPOINT_COPIES = 2


class Hop(msgspec.Struct, frozen=True):
    """One step of a version's way: bytes that move, and seconds."""

    name: str
    bytes: float
    seconds: float


class Disk(msgspec.Struct, frozen=True):
    """Bytes of the volumes: versions of weight distribution, checkpoints of the learner, folders of one actor."""

    versions: float
    checkpoints: float
    actor_folders: float


def version_bytes(training: Training) -> float:
    """Bytes of a published version: the trained parameters in float32."""
    return 4.0 * training.trained


def hops(training: Training, *, num_actors: int) -> tuple[Hop, ...]:
    """The way of one version to ``num_actors`` actors that each pull it from the one root, in order."""
    size = version_bytes(training)
    written = 4.0 * (training.shape.matrices if training.lora_rank else training.trained)
    folder = 2.0 * training.shape.untied_parameters
    to_all = size * num_actors
    return (
        Hop("learner: copy, the GPU waits", size, COPY_S_PER_GB * size / GB),
        Hop("learner: encode and announce", size, ANNOUNCE_S_PER_GB * size / GB),
        Hop("root: write to its volume", size, size / DISK_BYTES_PER_S),
        Hop(f"root to {num_actors:,} actors", to_all, to_all / ROOT_BYTES_PER_S),
        Hop("actor: check the values", size, FINITE_S_PER_GB * size / GB),
        Hop("actor: cast and write the folder", folder, WRITE_S_PER_GB * written / GB),
        Hop("server: load the folder, paused", folder, folder / RELOAD_BYTES_PER_S),
    )


def checkpoint_bytes(training: Training) -> float:
    """Bytes of one checkpoint: policy and moments, and the reference where it is a second model."""
    policies = CHECKPOINT_POLICIES + (1 if training.reference and not training.lora_rank else 0)
    return policies * version_bytes(training)


def checkpoint_s(training: Training) -> float:
    """Seconds of a checkpoint: copied, then written and synced to block storage."""
    copied = MOMENTS_S_PER_GB * version_bytes(training) / GB
    return copied + checkpoint_bytes(training) / DISK_BYTES_PER_S


def disk(training: Training, *, keep_versions: int, keep_checkpoints: int, actor_folders: float) -> Disk:
    """Volumes: kept versions, and kept checkpoints with the one that is being written."""
    return Disk(
        versions=keep_versions * version_bytes(training),
        checkpoints=(keep_checkpoints + 1) * checkpoint_bytes(training),
        actor_folders=actor_folders,
    )


def learner_host_bytes(training: Training, *, ranks_in_pod: int) -> float:
    """Memory of a learner's pod with GPUs: every rank loads the whole model on the host, and rank 0 writes checkpoints.

    The peak is the larger: the load of all ranks at once, or a checkpoint, whose arrays and encoded bytes are in memory
    together. Source: ``models.pretrained_folder``, ``learner.checkpoint``; issue 18, findings on GPUs, 1.3.
    """
    width = training.width_bytes if training.lora_rank else 4
    loaded = ranks_in_pod * width * training.shape.parameters
    written = CHECKPOINT_COPIES * checkpoint_bytes(training)
    return ranks_in_pod * PROCESS_BYTES + max(float(loaded), written)
