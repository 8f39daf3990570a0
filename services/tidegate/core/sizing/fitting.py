"""What of a plan does not fit a machine, and the nearest plan that does."""

from collections.abc import Iterator

import msgspec

from tidegate.core.sizing.accelerators import ACCELERATORS, Gpus
from tidegate.core.sizing.learner import Training, learner_memory
from tidegate.core.sizing.plan import GpuPlan, PlanRequest, gigabytes, plan
from tidegate.core.sizing.rollouts import rollout_memory
from tidegate.core.sizing.shapes import SHAPES

# Rank of the adapters that are proposed where all weights do not fit.
LORA_RANK = 16
# Lengths that are proposed, in tokens.
LENGTHS = (131_072, 65_536, 32_768, 24_576, 16_384, 12_288, 8_192, 6_144, 4_096, 3_072, 2_048, 1_024, 512)


class Machine(msgspec.Struct, frozen=True):
    """What there is: bytes of one GPU, of the host, and free on its disk. None: not known, and not judged."""

    gpu_bytes: float | None = None
    host_bytes: float | None = None
    disk_bytes: float | None = None


class Misfit(msgspec.Struct, frozen=True):
    """Why a plan cannot run, and what can; each a clause of an error (``core.errors``)."""

    what: str
    why: str
    fix: str


def does_not_fit(given: GpuPlan, machine: Machine) -> Misfit | None:
    """The first part of a plan that a machine cannot hold; None where it fits."""
    training, gpu = given.request.training, given.request.gpus
    room = gpu.kind.memory_bytes if machine.gpu_bytes is None else machine.gpu_bytes
    kind = f"a GPU of {gigabytes(room)} ({gpu.kind.name})"
    if given.learner.total > room:
        return Misfit(
            what=f"{name_of(training)} needs {gigabytes(given.learner.total)} on each GPU of the learner",
            why=f"it is {kind}, and every rank holds the whole model: {largest_parts(given)}",
            fix=nearest(given.request, room=room),
        )
    if given.rollout.texts == 0 or given.split.num_actors == 0:
        return Misfit(
            what=f"{given.split.learner_gpus} of {gpu.count} GPUs train, and the others hold no actor",
            why=f"an actor of {training.shape.name} needs {given.split.tensor_parallel} x {kind}",
            fix=nearest(given.request, room=room),
        )
    for name, needed, there in (
        ("memory of the learner's host", given.learner_host, machine.host_bytes),
        ("disk of the learner's checkpoints", given.disk.checkpoints, machine.disk_bytes),
    ):
        if there is not None and needed > there:
            return Misfit(
                what=f"{name_of(training)} needs {gigabytes(needed)} as {name}",
                why=f"there are {gigabytes(there)}",
                fix="use a larger machine, or train adapters (policy.lora.rank)",
            )
    return None


def does_not_fit_device(
    training: Training, *, room: float, device: str, reserve_bytes: float
) -> Misfit | None:
    """As ``does_not_fit``, for the learner alone on a device that no plan names, such as the memory of a laptop.

    ``device``: what it is, in a sentence. ``reserve_bytes``: what a process needs there besides the model.
    """

    def needed(of: Training) -> float:
        return learner_memory(of, reserve_bytes=reserve_bytes).total

    if needed(training) <= room:
        return None
    fitting = next((each for each in _smaller(training) if needed(each) <= room), None)
    return Misfit(
        what=f"{name_of(training)} needs {gigabytes(needed(training))} for the learner",
        why=f"{device} has {gigabytes(room)}",
        fix=f"nearest that fits: {name_of(fitting)}" if fitting else "use a smaller model, or more memory",
    )


def name_of(training: Training) -> str:
    """A training in a sentence."""
    trained = f"LoRA of rank {training.lora_rank}" if training.lora_rank else "all weights"
    passes = f" in passes of {training.pass_tokens:,}" if training.pass_tokens > training.length else ""
    return f"{training.shape.name}, {trained}, texts of {training.length:,} tokens{passes}"


def largest_parts(given: GpuPlan) -> str:
    """The largest parts of a learner's memory, as text."""
    parts = {
        name.replace("_", " "): float(getattr(given.learner, name))
        for name in given.learner.__struct_fields__
        if name != "start_of_ranks"
    }
    largest = sorted(parts, key=lambda name: -parts[name])[:3]
    return ", ".join(f"{name} {gigabytes(parts[name])}" for name in largest)


def nearest(request: PlanRequest, *, room: float) -> str:
    """The nearest plans that fit, each by changing one thing: length or adapters, the GPU, the model."""
    found: list[str] = []
    own = next((each for each in _smaller(request.training) if _fits(request, each, room=room)), None)
    if own is not None:
        found.append(name_of(own))
    for kind in sorted(ACCELERATORS.values(), key=lambda each: each.memory_bytes):
        larger = msgspec.structs.replace(request, gpus=Gpus(request.gpus.count, kind))
        if kind.memory_bytes > room and _fits(larger, request.training, room=kind.memory_bytes):
            found.append(f"the same on {request.gpus.count} x {kind.name}")
            break
    for shape in reversed(SHAPES.values()):
        if shape.parameters < request.training.shape.parameters:
            smaller = msgspec.structs.replace(
                request.training, shape=shape, length=min(request.training.length, shape.context_length)
            )
            if _fits(request, smaller, room=room):
                found.append(name_of(smaller))
                break
    return f"nearest that fits: {'; or '.join(found)}" if found else "use more or larger GPUs"


def _smaller(training: Training) -> Iterator[Training]:
    """The same model in less memory, nearest first: smaller passes, shorter texts, then the same with adapters."""
    lengths = [each for each in LENGTHS if each < training.length]
    ranks = [training.lora_rank] if training.lora_rank else [0, LORA_RANK]
    for rank in ranks:
        if rank != training.lora_rank:
            yield msgspec.structs.replace(training, lora_rank=rank)
        if training.pass_tokens > training.length:
            yield msgspec.structs.replace(training, lora_rank=rank, pass_tokens=training.length)
        for length in lengths:
            yield msgspec.structs.replace(
                training, lora_rank=rank, length=length, pass_tokens=min(training.pass_tokens, length)
            )


def _fits(request: PlanRequest, training: Training, *, room: float) -> bool:
    answer = plan(msgspec.structs.replace(request, training=training))
    memory = rollout_memory(training, answer.request.gpus.kind, tensor_parallel=answer.split.tensor_parallel)
    return answer.learner.total <= room and answer.split.num_actors > 0 and memory.texts > 0
