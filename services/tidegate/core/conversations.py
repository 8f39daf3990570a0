"""The conversations of a completion: one, or several of an agent's episode that do not continue each other.

The tokens of all lie one after the other in a record, and so do their prompts. The tensor ``conversations`` divides
both; a record of one conversation has none.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tidegate.core.errors import RecordError
from tidegate.core.records import Array

CONVERSATIONS = "conversations"
# As many as an episode may have calls (`actor.gateway.turns_max`).
CONVERSATIONS_MAX = 1024


class ConversationSlice(NamedTuple):
    """One conversation's place among the tokens of all prompts and of all completions."""

    prompt: slice
    tokens: slice


def conversations_array(lengths: Sequence[tuple[int, int]]) -> Array:
    """The tensor of a record; ``lengths``: how many tokens each prompt has, and each continuation of one."""
    return np.array(lengths, dtype=np.int32).reshape(-1, 2)


def conversations_of(tensors: Mapping[str, Array]) -> list[ConversationSlice]:
    """The conversations of a record with ``prompt_tokens`` and ``tokens``, in the order of their tokens.

    Raises:
        RecordError: the tensor does not divide these tokens.
    """
    num_prompt, num_tokens = len(tensors["prompt_tokens"]), len(tensors["tokens"])
    lengths_C2 = tensors.get(CONVERSATIONS)
    if lengths_C2 is None:
        return [ConversationSlice(slice(0, num_prompt), slice(0, num_tokens))]
    is_table = lengths_C2.dtype == np.int32 and lengths_C2.ndim == 2 and lengths_C2.shape[1] == 2
    if not is_table or not 0 < len(lengths_C2) <= CONVERSATIONS_MAX:
        raise RecordError(
            f"conversations is {lengths_C2.dtype}{list(lengths_C2.shape)}",
            why=f"it needs two int32 for each conversation, tokens of prompt and of reply; at most {CONVERSATIONS_MAX}",
        )
    ends_C2 = np.cumsum(lengths_C2, axis=0, dtype=np.int64)
    if lengths_C2.min() < 1 or ends_C2[-1].tolist() != [num_prompt, num_tokens]:
        raise RecordError(
            f"conversations divides {ends_C2[-1].tolist()} tokens of prompts and of replies",
            why=f"the record has {[num_prompt, num_tokens]}, and no part may be empty",
        )
    starts_C2 = ends_C2 - lengths_C2
    return [
        ConversationSlice(slice(prompt_start, prompt_stop), slice(start, stop))
        for (prompt_start, start), (prompt_stop, stop) in zip(
            starts_C2.tolist(), ends_C2.tolist(), strict=True
        )
    ]
