"""Memory and rate of one GPU of the learner, whose every rank holds the whole model (``learner.ranks``).

Units: bytes, tokens, seconds. A pass is what is differentiated at once: ``pass_tokens``, or one text if that is longer.
"""

import math

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.core.sizing.accelerators import Accelerator
from tidegate.core.sizing.shapes import ModelShape

# Bytes of a number, by ``policy.dtype``.
WIDTHS = {"float32": 4, "bfloat16": 2}
# Elements of logits in memory at once, as ``models.completion_batch`` divides them.
LOGITS_MAX = 1 << 24
# Logits, their logarithms, and the gradients of both, in float32.
LOGITS_COPIES = 4
# CUDA's context, NCCL's buffers, cuBLAS' workspace and what the allocator cannot use again. Not measured here.
CUDA_RESERVE_BYTES = 3e9
# torch and transformers as they are imported (0.46-0.57 GB as PSS), and what a first update adds (0.19 GB): measured on
# a CPU with torch 2.13 (docs/gpu.md).
PROCESS_BYTES = 0.65e9
# Reads of a minibatch: prompts, and completions behind them. Each rounds all weights again, and its graph holds them.
READS = 2


class Training(msgspec.Struct, frozen=True):
    """How a model is trained; the fields are those of the run file.

    ``lora_rank`` 0 trains all weights. ``length``: tokens of the longest text, prompt included. ``width_bytes``: of an
    activation, 2 in bfloat16 and 4 in float32. ``reference``: whether the objective reads a reference policy.
    ``ranks``: processes that train together.
    """

    shape: ModelShape
    length: int
    lora_rank: int = 0
    width_bytes: int = 2
    pass_tokens: int = 4096
    reference: bool = False
    ranks: int = 1

    @property
    def trained(self) -> int:
        """Parameters that are trained and published."""
        return self.shape.adapter_parameters(self.lora_rank) if self.lora_rank else self.shape.parameters

    @property
    def tokens_in_pass(self) -> int:
        """Tokens whose activations are in memory at once: a text is never divided (``learner.optim.passes``)."""
        return max(self.pass_tokens, self.length)


def check_training(training: Training) -> Training:
    """A training whose texts fit the model.

    Raises:
        ConfigError: they are longer than its context.
    """
    if training.length > training.shape.context_length:
        raise ConfigError(
            f"Texts of {training.length:,} tokens are longer than the context of {training.shape.name},"
            f" {training.shape.context_length:,}",
            fix="plan with shorter texts, or with a model of a longer context",
        )
    return training


class LearnerMemory(msgspec.Struct, frozen=True):
    """Bytes on the device of one rank, by part."""

    parameters: float
    moments: float
    gradient: float
    compute_copies: float
    reference: float
    activations: float
    attention_masks: float
    logits_and_head: float
    start_of_ranks: float
    reserve: float

    @property
    def training(self) -> float:
        """At the peak of an update."""
        return (
            self.parameters
            + self.moments
            + self.gradient
            + self.compute_copies
            + self.reference
            + self.activations
            + self.attention_masks
            + self.logits_and_head
            + self.reserve
        )

    @property
    def starting(self) -> float:
        """When rank 0 sends policy and moments to the others as one block (``ranks.leading``)."""
        return self.parameters + self.moments + self.reference + self.start_of_ranks + self.reserve

    @property
    def total(self) -> float:
        """The larger of both, which the device must hold."""
        return max(self.training, self.starting)


def learner_memory(training: Training, *, reserve_bytes: float = CUDA_RESERVE_BYTES) -> LearnerMemory:
    """Bytes of one rank. Source: ``models.transformers_lm``, ``learner.optim``; issue 18, findings on GPUs, 1.1."""
    shape, trained, width = training.shape, training.trained, training.width_bytes
    rounds = training.lora_rank == 0 and width < 4
    if training.lora_rank:
        # Frozen weights in the dtype, and adapters in float32; the head once more in float32.
        parameters = width * shape.parameters + 4.0 * trained
        copies = 4.0 * shape.head_parameters if width < 4 else 0.0
    else:
        parameters = 4.0 * trained
        copies = float(READS * width * shape.matrices) if rounds else 0.0
    tokens = training.tokens_in_pass
    return LearnerMemory(
        parameters=parameters,
        moments=8.0 * trained,
        gradient=4.0 * trained,
        compute_copies=copies,
        # With adapters the model itself without them; otherwise a second one (``optim.reference``).
        reference=4.0 * trained if training.reference and not training.lora_rank else 0.0,
        activations=tokens * activation_bytes(training),
        attention_masks=attention_mask_bytes(training),
        logits_and_head=LOGITS_COPIES * 4.0 * min(LOGITS_MAX, tokens * shape.vocabulary_size)
        + _head_bytes(training),
        start_of_ranks=12.0 * trained if training.ranks > 1 else 0.0,
        reserve=reserve_bytes,
    )


def activation_bytes(training: Training) -> float:
    """Bytes that the backward pass keeps of each token, of all layers: nothing is checkpointed.

    A norm keeps its float32 input, the normalised value and its output; the MLP its gate, that gate's activation, the
    other factor and their product; attention its queries, output, keys and values. With adapters, each layer's input
    in float32 (peft casts it), and not what only a frozen weight's gradient needs.
    """
    shape, width, rank = training.shape, training.width_bytes, training.lora_rank
    norms = 2 * shape.width * (4 + 2 * width)
    mlp = 4 * shape.mlp_width * width
    attention = 2 * width * shape.query_width + 2 * width * shape.kv_width
    adapters = 0
    if rank and width < 4:
        adapters = 12 * shape.width + 4 * shape.query_width + 2 * shape.mlp_width
    adapters += 28 * rank
    around = shape.width * (8 + 3 * width)
    return float(shape.num_layers * (norms + mlp + attention + adapters) + around)


def attention_mask_bytes(training: Training) -> float:
    """Bytes that the mask costs: completions are read behind their prompts, by a mask and not by causality alone.

    The library then repeats keys and values for every query head, and each layer keeps the mask as numbers that are
    added to its scores: tokens of the pass times keys (``models.visibility``; torch's scaled_dot_product_attention).
    """
    shape, tokens = training.shape, training.tokens_in_pass
    repeated = 2 * training.width_bytes * (shape.query_width - shape.kv_width) * tokens
    mask = training.width_bytes * tokens * min(training.length, tokens)
    return float(shape.num_layers * (repeated + mask))


def _head_bytes(training: Training) -> float:
    """The head while one chunk of logits is differentiated: its rounded copy and its gradient, cast to and fro."""
    if training.lora_rank:
        return 0.0
    return (10.0 if training.width_bytes < 4 else 4.0) * training.shape.head_parameters


class LearnerRate(msgspec.Struct, frozen=True):
    """Seconds of one token on one GPU: of the layers at the stated MFU, and of the head, which has its own limit."""

    layers_s: float
    head_s: float

    @property
    def tokens_per_s(self) -> float:
        """Trained tokens/s of one GPU."""
        return 1.0 / (self.layers_s + self.head_s)


def layer_flops(training: Training, *, passes: int) -> float:
    """Floating-point operations of one token in all layers: 2 a parameter forwards, 4 backwards (2 with adapters).

    A batch of several passes is computed forwards once more (``learner.optim.gradients``). Attention: 4 x layers x
    query width x keys, of which causality halves the number. Source: Kaplan 2020, section 2.1.
    """
    shape = training.shape
    forward = 2.0 * shape.matrices + 2.0 * shape.num_layers * shape.query_width * training.length
    backward = forward if training.lora_rank else 2.0 * forward
    return forward * (2.0 if passes > 1 else 1.0) + backward


def flop_utilisation(
    training: Training, gpu: Accelerator, *, tokens: float, seconds: float, steps: float = 1.0
) -> float:
    """Share of the peak of its GPUs (one a rank) that an update of ``tokens`` reached: its MFU, as plans take it.

    ``steps``: gradient steps that the tokens are divided among; one that fits into a pass is computed forwards once.

    Of the layers' operations, those that are computed again included, and of all of the update's time; the head's
    operations are not counted. Prompts and completions are ``tokens``, and each attends to a text of mean length.
    """
    if seconds <= 0.0:
        return 0.0
    per_rank = tokens / training.ranks
    passes = math.ceil(per_rank / steps / training.tokens_in_pass)
    peak = gpu.peak_flops(width_bytes=training.width_bytes)
    return per_rank * layer_flops(training, passes=passes) / (peak * seconds)


def learner_rate(training: Training, gpu: Accelerator, *, mfu: float, passes: int = 2) -> LearnerRate:
    """Seconds of one token. ``mfu``: model FLOP utilisation of the layers, which is a guess until it is measured.

    The head is computed in float32 without TF32, in chunks of 2^24 logits that are computed again on the way back;
    each chunk rounds the whole head. So it is bound by reading and writing the head: 64 bytes of each of its
    parameters in every chunk, plus 8 operations of each for every token (6 with adapters, whose head is frozen).
    """
    head = training.shape.head_parameters
    chunk = max(1, LOGITS_MAX // training.shape.vocabulary_size)
    full = training.lora_rank == 0
    moved = (64.0 if training.width_bytes < 4 else 28.0) if full else 12.0
    operations = 8.0 if full else 6.0
    peak = gpu.peak_flops(width_bytes=training.width_bytes)
    return LearnerRate(
        layers_s=layer_flops(training, passes=passes) / (peak * mfu),
        head_s=moved * head / gpu.bytes_per_s / chunk + operations * head / gpu.float32_flops,
    )
