"""Divides completions into passes whose activations fit into memory.

Shapes: B completions, T tokens of the longest, P tokens of the longest prompt.
"""

from torch import Tensor

from tidegate.models.completion_batch import CompletionBatch


def in_passes(completions: CompletionBatch, rows_B: Tensor, *, tokens_max: int) -> list[Tensor]:
    """``rows_B`` in parts of at most ``tokens_max`` padded tokens each, a prompt counted once for its completions.

    Neighbours stay together, so that a prompt's samples share a pass where they fit; a completion longer than
    ``tokens_max`` is a part of its own. Without rows there is one empty part, so that every rank runs a pass.
    """
    prompt_tokens, completion_tokens = completions.prompts_GP.shape[1], completions.tokens_BT.shape[1]
    parts: list[Tensor] = []
    start, groups = 0, set[int]()
    group_of: list[int] = completions.group_index_B[rows_B].cpu().numpy().tolist()
    for stop, group in enumerate(group_of):
        with_this = groups | {group}
        size = len(with_this) * prompt_tokens + (stop + 1 - start) * completion_tokens
        if size > tokens_max and stop > start:
            parts.append(rows_B[start:stop])
            start, with_this = stop, {group}
        groups = with_this
    parts.append(rows_B[start:])
    return parts
