"""The few functions that numpy and torch name or define differently; everything else is called on ``xp`` directly.

Networks and distributions are written once and run under numpy in actors, which never load torch, and under torch in
the learner: the caller passes the module (``xp``) that its arrays belong to.
"""

from typing import Any, TypeAlias

import numpy as np

# The module numpy or the module torch.
ArrayModule: TypeAlias = Any


def log_softmax(logits: Any, xp: ArrayModule) -> Any:
    """Logprobs of the last axis' categories, shape kept; one fused operation under torch."""
    if xp is not np:
        return xp.log_softmax(logits, -1)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def take_last(values: Any, index: Any, xp: ArrayModule) -> Any:
    """One entry of the last axis each: values (..., A) and indices (...) to (...)."""
    if xp is not np:
        return values.gather(-1, index.unsqueeze(-1)).squeeze(-1)
    return np.take_along_axis(values, np.expand_dims(index, -1), axis=-1)[..., 0]


def constant(array: np.ndarray[Any, Any], like: Any, xp: ArrayModule) -> Any:
    """A numpy array as an array of ``xp``, on the device of ``like``."""
    return array if xp is np else xp.as_tensor(array, device=like.device)


def as_float32(values: Any, xp: ArrayModule) -> Any:
    """The values as float32, without a copy where they are."""
    return values.astype(np.float32, copy=False) if xp is np else values.to(xp.float32)
