"""The result of every objective."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Loss:
    """A scalar to minimise, and its metrics, detached and by name."""

    total: Tensor
    metrics: dict[str, float]
