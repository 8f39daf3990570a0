"""Divides completions into passes whose activations fit into memory.

Shapes: B completions, C conversations in them.
"""

from typing import cast

import torch
from torch import Tensor

from tidegate.models.completion_batch import CompletionBatch


def in_passes(completions: CompletionBatch, rows_B: Tensor, *, tokens_max: int) -> list[Tensor]:
    """``rows_B`` in parts of at most ``tokens_max`` padded tokens each, a prompt counted once for its completions.

    Neighbours stay together, so that a prompt's samples share a pass where they fit; a completion longer than
    ``tokens_max``, with all of its conversations, is a part of its own. Without rows there is one empty part, so that
    every rank runs a pass.
    """
    prompt_tokens, longest = completions.prompts_QP.shape[1], int(completions.lengths_C.max())
    prompts_of: dict[int, list[int]] = {}
    pairs = torch.stack([completions.rows_C, completions.prompt_index_C], dim=1)
    for row, prompt in cast("list[list[int]]", pairs.cpu().numpy().tolist()):
        prompts_of.setdefault(row, []).append(prompt)
    parts: list[Tensor] = []
    start, prompts, num_conversations = 0, set[int](), 0
    rows: list[int] = rows_B.cpu().numpy().tolist()
    for stop, row in enumerate(rows):
        of_row = prompts_of[row]
        with_this = prompts | set(of_row)
        size = len(with_this) * prompt_tokens + (num_conversations + len(of_row)) * longest
        if size > tokens_max and stop > start:
            parts.append(rows_B[start:stop])
            start, with_this, num_conversations = stop, set(of_row), 0
        prompts = with_this
        num_conversations += len(of_row)
    parts.append(rows_B[start:])
    return parts
