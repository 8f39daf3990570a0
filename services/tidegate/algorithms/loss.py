"""What every objective returns."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Loss:
    """A scalar to minimise, and what is worth watching about it, detached and by name."""

    total: Tensor
    metrics: dict[str, float]
