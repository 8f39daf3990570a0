"""The attention mask of a pass, independent of the library that computes the attention.

Shapes: B rows, T tokens of this pass, S tokens in the cache.
"""

import torch
from torch import Tensor

from tidegate.models.causal_lm import KvCache


def visibility(
    cache: KvCache | None, *, num_tokens: int, lengths_B: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Which keys each query may see: the mask for attention (None: all, or plain causal), and ``valid_BS``.

    Padding is on the right of a pass, so causality hides it from that pass's own tokens; only later passes mask it.
    Rows without padding share one mask, or need none.
    """
    num_rows, device = lengths_B.shape[0], lengths_B.device
    num_past = 0 if cache is None else cache.keys[0].shape[2]
    past_valid = None if cache is None else cache.valid_BS
    padded = bool((lengths_B < num_tokens).any())
    valid_BS = None
    if padded or past_valid is not None:
        before = (
            torch.ones(num_rows, num_past, dtype=torch.bool, device=device)
            if past_valid is None
            else past_valid
        )
        valid_BS = torch.cat([before, torch.arange(num_tokens, device=device) < lengths_B[:, None]], dim=1)
    if past_valid is None and (num_past == 0 or num_tokens == 1):
        return None, valid_BS
    causal = torch.ones(num_tokens, num_past + num_tokens, dtype=torch.bool, device=device).tril(num_past)
    if past_valid is None:
        return causal, valid_BS
    seen_past = torch.cat(
        [past_valid, torch.ones(num_rows, num_tokens, dtype=torch.bool, device=device)], dim=1
    )
    return (causal & seen_past[:, None, :])[:, None], valid_BS
