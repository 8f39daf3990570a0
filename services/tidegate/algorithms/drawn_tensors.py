"""What the tensors of units drawn from replay must be, by the store's names, and the one check of them.

Shapes: B units.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tidegate.core.errors import RecordError
from tidegate.core.records import Array

UnitKind = Literal["transition", "sequence"]


@dataclass(frozen=True, slots=True)
class DrawnTensor:
    """One tensor of drawn units. ``shape``: after B, None where any size will do.

    ``nums_values``: of each integer, how many values it has, counted from 0; empty for any number. ``step_axes``: axes
    of ``shape`` that count steps, before those of ``nums_values``.
    """

    shape: tuple[int | None, ...]
    dtype: str
    nums_values: tuple[int, ...] = ()
    step_axes: int = 0


def check_drawn(
    tensors: Mapping[str, Array], expected: Mapping[str, DrawnTensor], *, num_units: int, unit: UnitKind
) -> None:
    """Refuse drawn tensors that are not of this run's environment.

    Raises:
        RecordError: a tensor is missing, has another shape or dtype, or a value is none of its space.
    """
    for name, wanted in expected.items():
        _check(tensors.get(name), wanted, name=name, num_units=num_units, unit=unit)


def _check(tensor: Array | None, wanted: DrawnTensor, *, name: str, num_units: int, unit: UnitKind) -> None:
    if tensor is None:
        raise RecordError(
            f"Drawn {unit}s have no {name}",
            fix=f"set trajectory_store.replay.unit to {unit}; see trajectory_store/replay/windows.py",
        )
    shape = (num_units, *wanted.shape)
    fits = len(shape) == tensor.ndim and all(
        size is None or size == found for size, found in zip(shape, tensor.shape, strict=True)
    )
    if not fits or tensor.dtype.name != wanted.dtype:
        described = tuple("any" if size is None else size for size in shape)
        raise RecordError(
            f"Drawn {unit}s have {name} of shape {tensor.shape} and type {tensor.dtype}",
            why=f"this environment's have {described} and {wanted.dtype}",
            fix="use the workload section that they were recorded with, or start in a new run folder",
        )
    if wanted.nums_values and tensor.size:
        limits = np.array(wanted.nums_values).reshape(tensor.shape[1 + wanted.step_axes :])
        if int(tensor.min()) < 0 or not (tensor < limits).all():
            raise RecordError(
                f"Drawn {unit}s have {name} from {int(tensor.min())} to {int(tensor.max())}",
                why=f"the environment's space has {wanted.nums_values} values, counted from 0",
            )
