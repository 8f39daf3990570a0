"""Compares the logprobs that a device computes with the CPU's."""

from pathlib import Path
from typing import Literal

import torch

from tidegate.models.completion_batch import completion_logprobs, pack_completions
from tidegate.models.transformers_lm import TransformersLm, TransformersLmSpec

NUM_ROWS = 8


def logprob_error(
    folder: Path,
    device: torch.device,
    *,
    dtype: Literal["float32", "bfloat16"],
    context_length: int,
    num_tokens: int,
) -> float:
    """Mean absolute difference (nats) of the logprobs of drawn tokens: ``dtype`` on the device, float32 on the CPU.

    Raises:
        RuntimeError: the device fails, or its memory does not hold the model.
    """
    generator = torch.Generator().manual_seed(0)
    on_cpu = _model(folder, "float32", context_length)
    drawn_BT = torch.randint(1, on_cpu.vocabulary_size, (NUM_ROWS, num_tokens), generator=generator)
    rows: list[list[int]] = [[int(token) for token in row] for row in drawn_BT]
    batch = pack_completions(
        [rows[0]], rows, group_index=[0] * NUM_ROWS, vocabulary_size=on_cpu.vocabulary_size
    )
    with torch.no_grad():
        expected_BT = completion_logprobs(on_cpu, batch)
        del on_cpu
        found_BT = completion_logprobs(_model(folder, dtype, context_length).to(device), batch.to(device))
    return float((found_BT.cpu() - expected_BT).abs().mean())


def _model(folder: Path, dtype: Literal["float32", "bfloat16"], context_length: int) -> TransformersLm:
    spec = TransformersLmSpec(folder=str(folder), context_length=context_length, dtype=dtype)
    return TransformersLm(spec, trains=False)
