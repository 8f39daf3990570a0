"""A plan: one model on some GPUs, with a split between learner and rollouts, and what it costs."""

import math

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.core.sizing.accelerators import GB, Accelerator, Gpus
from tidegate.core.sizing.learner import (
    LearnerMemory,
    LearnerRate,
    Training,
    check_training,
    learner_memory,
    learner_rate,
)
from tidegate.core.sizing.rollouts import (
    TEXTS_MIN,
    RolloutMemory,
    actor_host_bytes,
    rollout_memory,
    rollout_rate,
    server_folder_bytes,
)
from tidegate.core.sizing.versions import (
    Disk,
    Hop,
    checkpoint_s,
    disk,
    hops,
    learner_host_bytes,
    version_bytes,
)

# Of the layers, where nothing was measured: what mature trainers report for dense models is 0.35 to 0.5; this learner
# has neither packing nor compiled kernels.
MFU = 0.25
GPUS_OF_NODE = 8
KEEP_VERSIONS, KEEP_CHECKPOINTS = 32, 2
SECONDS_PER_HOUR = 3600.0
# Beyond it a server's GPUs would be on several nodes.
TENSOR_PARALLEL_MAX = 8


class PlanRequest(msgspec.Struct, frozen=True):
    """What to plan. ``usd_per_gpu_h``: 0 leaves the cost out. ``mfu``: model FLOP utilisation of the layers.

    ``learner_gpus``: how many GPUs train; 0 proposes a split.
    """

    training: Training
    gpus: Gpus
    mfu: float = MFU
    usd_per_gpu_h: float = 0.0
    keep_versions: int = KEEP_VERSIONS
    keep_checkpoints: int = KEEP_CHECKPOINTS
    learner_gpus: int = 0


class Split(msgspec.Struct, frozen=True):
    """GPUs of the learner and of the rollouts, and the tokens/s of each: the smaller is what the platform trains.

    ``tensor_parallel``: GPUs of one actor. ``idle``: GPUs too few for another actor.
    """

    learner_gpus: int
    num_actors: int
    tensor_parallel: int
    idle: int
    trained_tokens_per_s: float
    generated_tokens_per_s: float

    @property
    def tokens_per_s(self) -> float:
        """Of the whole: as slow as its slower side."""
        return min(self.trained_tokens_per_s, self.generated_tokens_per_s)


class GpuPlan(msgspec.Struct, frozen=True):
    """The answer. Memory is of one GPU; host memory of one pod of the learner, and of one actor without its server."""

    request: PlanRequest
    learner: LearnerMemory
    rollout: RolloutMemory
    rate: LearnerRate
    split: Split
    version_bytes: float
    hops: tuple[Hop, ...]
    disk: Disk
    checkpoint_s: float
    learner_host: float
    actor_host: float
    usd_per_h: float
    usd_per_million_tokens: float


def plan(request: PlanRequest) -> GpuPlan:
    """Work out a plan, whether it fits or not (``fitting``).

    Raises:
        ConfigError: the texts are longer than the model's context, or a number makes no sense.
    """
    training = check_training(request.training)
    if not 0.0 < request.mfu <= 1.0:
        raise ConfigError(f"An MFU of {request.mfu:g} is no share", fix="give a number above 0 and at most 1")
    if not 0 <= request.learner_gpus <= request.gpus.count:
        raise ConfigError(
            f"{request.learner_gpus} GPUs of {request.gpus.count} cannot train", fix="give a smaller number"
        )
    split = split_of(request)
    training = msgspec.structs.replace(training, ranks=split.learner_gpus)
    gpu = request.gpus.kind
    usd_per_h = request.usd_per_gpu_h * request.gpus.count
    rate = split.tokens_per_s
    return GpuPlan(
        request=request,
        learner=learner_memory(training),
        rollout=rollout_memory(training, gpu, tensor_parallel=split.tensor_parallel),
        rate=learner_rate(training, gpu, mfu=request.mfu),
        split=split,
        version_bytes=version_bytes(training),
        hops=hops(training, num_actors=split.num_actors),
        disk=disk(
            training,
            keep_versions=request.keep_versions,
            keep_checkpoints=request.keep_checkpoints,
            actor_folders=server_folder_bytes(training),
        ),
        checkpoint_s=checkpoint_s(training),
        learner_host=learner_host_bytes(training, ranks_in_pod=min(split.learner_gpus, GPUS_OF_NODE)),
        actor_host=actor_host_bytes(training),
        usd_per_h=usd_per_h,
        usd_per_million_tokens=usd_per_h / SECONDS_PER_HOUR / rate * 1e6 if rate > 0.0 else 0.0,
    )


def tensor_parallel_of(training: Training, gpu: Accelerator) -> int:
    """GPUs of one actor: the fewest that hold the model and ``TEXTS_MIN`` texts; the most of a node where none do."""
    size = 1
    while size < TENSOR_PARALLEL_MAX:
        if rollout_memory(training, gpu, tensor_parallel=size).texts >= TEXTS_MIN:
            return size
        size *= 2
    return size


def split_of(request: PlanRequest) -> Split:
    """The fewest learner GPUs that keep up with the rollouts of all others; half of them where none do."""
    training, gpus = request.training, request.gpus
    parallel = tensor_parallel_of(training, gpus.kind)
    trained = learner_rate(training, gpus.kind, mfu=request.mfu).tokens_per_s
    generated = rollout_rate(training, gpus.kind, tensor_parallel=parallel)

    def with_learner(learner_gpus: int) -> Split:
        actors, idle = divmod(gpus.count - learner_gpus, parallel)
        return Split(
            learner_gpus=learner_gpus,
            num_actors=actors,
            tensor_parallel=parallel,
            idle=idle,
            trained_tokens_per_s=learner_gpus * trained,
            generated_tokens_per_s=actors * generated,
        )

    if request.learner_gpus:
        return with_learner(request.learner_gpus)
    # A learner's pod has all of a node's GPUs, or a divisor of them, so that pods are alike.
    sizes = [size for size in range(1, gpus.count + 1) if _pods_are_alike(size)]
    return max(map(with_learner, sizes), key=lambda split: (split.tokens_per_s, -split.learner_gpus))


def _pods_are_alike(learner_gpus: int) -> bool:
    return learner_gpus <= GPUS_OF_NODE or learner_gpus % GPUS_OF_NODE == 0


def gigabytes(size: float) -> str:
    """Bytes as text, in GB of 10^9."""
    return f"{size / GB:,.1f} GB" if size < 100 * GB else f"{size / GB:,.0f} GB"


def gibibytes_up(size: float, *, step: int = 1) -> int:
    """Whole GiB, rounded up to a multiple of ``step``: what a pod asks for."""
    return math.ceil(size / (1 << 30) / step) * step
