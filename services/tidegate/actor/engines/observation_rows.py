"""The observations of a segment as they are made: images by their frames, each once, all other parts in full."""

from collections.abc import Mapping

import numpy as np

from tidegate.algorithms.frame_stacks import FrameRecorder
from tidegate.core.records import Array
from tidegate.core.spaces import Leaf, is_image, recorded_dtype, recorded_shape


class ObservationRows:
    """``num_steps`` + 1 rows of every part of an observation; the layout is ``algorithms.segments``."""

    def __init__(self, leaves: Mapping[str, Leaf], *, num_steps: int, num_envs: int) -> None:
        self._images = {
            name: FrameRecorder(leaf, num_steps=num_steps, num_envs=num_envs)
            for name, leaf in leaves.items()
            if is_image(leaf)
        }
        self._others: dict[str, Array] = {
            name: np.empty((num_steps + 1, num_envs, *recorded_shape(leaf)), recorded_dtype(leaf))
            for name, leaf in leaves.items()
            if name not in self._images
        }
        self._num_rows = 0

    def append(self, observations: Mapping[str, Array]) -> None:
        """Record the next row, (N, *leaf shape) by name; nothing refers to it afterwards."""
        for name, rows in self._others.items():
            rows[self._num_rows] = observations[name]
        for name, recorder in self._images.items():
            recorder.append(observations[name])
        self._num_rows += 1

    def tensors(self) -> dict[str, Array]:
        """The tensors of a whole segment."""
        tensors = dict(self._others)
        for name, recorder in self._images.items():
            tensors |= recorder.tensors(name)
        return tensors
