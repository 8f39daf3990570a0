"""Whether the pods of a learner, or its machines, can hold what they would train, and the nearest that they can."""

import msgspec

from tidegate.core.sizing.accelerators import ACCELERATORS, Accelerator
from tidegate.core.sizing.fitting import Misfit, does_not_fit_device, name_of
from tidegate.core.sizing.learner import CUDA_RESERVE_BYTES, PROCESS_BYTES, Training, learner_memory
from tidegate.core.sizing.plan import gibibytes_up, gigabytes
from tidegate.core.sizing.versions import checkpoint_bytes, learner_host_bytes


class LearnerRoom(msgspec.Struct, frozen=True):
    """What a learner has: ``ranks`` processes in ``pods`` pods or machines, each with a GPU of ``kind`` or with none.

    ``memory_bytes`` and ``disk_bytes``: of one pod, and of the volume of checkpoints. None: not known, and not judged.
    """

    ranks: int = 1
    pods: int = 1
    kind: Accelerator | None = None
    memory_bytes: float | None = None
    disk_bytes: float | None = None

    @property
    def ranks_in_pod(self) -> int:
        """Processes that share the memory of a pod."""
        return max(1, self.ranks // self.pods)


def does_not_fit_room(training: Training, room: LearnerRoom, *, keep_checkpoints: int) -> Misfit | None:
    """The first part of a training that a learner's pods cannot hold: GPU, memory or disk; None where it fits."""
    training = msgspec.structs.replace(training, ranks=room.ranks)
    parts = (
        _beyond_gpu(training, room.kind) if room.kind is not None else _beyond_host(training, room),
        _beyond_pod(training, room) if room.kind is not None else None,
        _beyond_disk(training, room, keep_checkpoints=keep_checkpoints),
    )
    return next((part for part in parts if part is not None), None)


def _beyond_gpu(training: Training, kind: Accelerator) -> Misfit | None:
    misfit = does_not_fit_device(
        training,
        room=kind.memory_bytes,
        device=f"each GPU ({kind.name}), which holds the whole model,",
        reserve_bytes=CUDA_RESERVE_BYTES,
    )
    needed = learner_memory(training).total
    larger = [each for each in ACCELERATORS.values() if each.memory_bytes >= needed]
    if misfit is None or not larger:
        return misfit
    nearest = min(larger, key=lambda each: each.memory_bytes).name
    return msgspec.structs.replace(misfit, fix=f"{misfit.fix}; or the same on {nearest}")


def _beyond_host(training: Training, room: LearnerRoom) -> Misfit | None:
    if room.memory_bytes is None:
        return None
    return does_not_fit_device(
        training,
        room=room.memory_bytes / room.ranks_in_pod,
        device="a pod of the learner"
        if room.ranks_in_pod == 1
        else f"each of {room.ranks_in_pod} ranks in a pod",
        reserve_bytes=PROCESS_BYTES,
    )


def _beyond_pod(training: Training, room: LearnerRoom) -> Misfit | None:
    needed = learner_host_bytes(training, ranks_in_pod=room.ranks_in_pod)
    if room.memory_bytes is None or needed <= room.memory_bytes:
        return None
    return Misfit(
        what=f"{name_of(training)} needs {gigabytes(needed)} of memory in a pod of {room.ranks_in_pod} ranks",
        why=f"it has {gigabytes(room.memory_bytes)}; each rank loads the whole model on the host, and rank 0 writes"
        " checkpoints",
        fix=f"give the learner's pods {gibibytes_up(needed)}Gi or more, or fewer ranks each",
    )


def _beyond_disk(training: Training, room: LearnerRoom, *, keep_checkpoints: int) -> Misfit | None:
    needed = (keep_checkpoints + 1) * checkpoint_bytes(training)
    if room.disk_bytes is None or needed <= room.disk_bytes:
        return None
    return Misfit(
        what=f"{name_of(training)} needs {gigabytes(needed)} of disk for checkpoints",
        why=f"the learner's volume has {gigabytes(room.disk_bytes)}; it keeps {keep_checkpoints} and writes another",
        fix=f"give it {gibibytes_up(needed)}Gi or more, or lower learner.keep_checkpoints",
    )
