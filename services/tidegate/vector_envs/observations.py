"""A vector environment's observations as segments record them: by name, indices from 0, of the recorded type.

Shapes: N environments.
"""

from typing import Any

import numpy as np

from tidegate.core.records import Array
from tidegate.core.spaces import OBSERVATIONS, DictSpace, Space, TupleSpace
from tidegate.models.inputs import recorded_leaf


def recorded_observations(space: Space, values: Any) -> dict[str, Array]:
    """The tensors (N, *leaf shape) of one observation of N environments, by the names of ``observation_leaves``.

    ``values``: as Gymnasium's vector environments give them: an array, or a dict or tuple of parts.
    """
    recorded: dict[str, Array] = {}
    _record(OBSERVATIONS, space, values, recorded)
    return recorded


def _record(name: str, space: Space, values: Any, recorded: dict[str, Array]) -> None:
    match space:
        case DictSpace():
            for part_name, part in space.spaces.items():
                _record(f"{name}.{part_name}", part, values[part_name], recorded)
        case TupleSpace():
            for index, part in enumerate(space.spaces):
                _record(f"{name}.{index}", part, values[index], recorded)
        case _:
            recorded[name] = recorded_leaf(space, np.asarray(values))
