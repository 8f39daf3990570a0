"""Reads drawn units out of the pages: the tensors that a learner trains on.

A transition: ``observations*`` before its first step and ``next.observations*`` after its last one, ``rewards`` of all
of its steps (B, n), its ``lengths`` in steps, and whether its last step ``terminated`` the episode; any other tensor of
the steps (``actions``, ``behavior_logprobs``) of the first one. Rewards past the length are 0.

A sequence of L steps: ``observations*`` (B, L+1, ...), every tensor of the steps (B, L, ...), its ``lengths``, stored
recurrent state (``memory``) of its first step, and ``is_initial`` where that step begins an episode between two stored
states, so that its state is the initial one. What is past the length repeats the last step; flags and rewards there are
0.

Images are given as references into frames (``FrameReferences``).

Shapes: B units, H steps of a window, T steps and N environments of a page.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

from tidegate.algorithms.frame_stacks import STARTS
from tidegate.algorithms.replay_units import window_lengths
from tidegate.core.records import Array
from tidegate.trajectory_store.replay.columns import Columns
from tidegate.trajectory_store.replay.page_layout import FLAGS, ImageTensor, PageLayout

NEXT = "next."
LENGTHS = "lengths"
IS_INITIAL = "is_initial"
REWARDS = "rewards"
TERMINATED = "terminated"


class Rows(msgspec.Struct, frozen=True, eq=False):
    """Rows of pages, by slot, environment and row; the three have one shape."""

    slots: NDArray[np.int64]
    envs: NDArray[np.int64]
    rows: NDArray[np.int64]

    def at(self, key: tuple[slice | NDArray[np.int64] | int, ...]) -> "Rows":
        """Some of them."""
        return Rows(self.slots[key], self.envs[key], self.rows[key])


class Windows(msgspec.Struct, frozen=True, eq=False):
    """The steps (B, H) of units, what follows the last one (B,), and their ``lengths`` (B,); past them, the last."""

    steps: Rows
    after: Rows
    lengths: NDArray[np.int64]


class FrameReferences(msgspec.Struct, frozen=True, eq=False):
    """Image observations by the place of their first frame: ``starts`` counts frames of the page in ``slots``."""

    image: ImageTensor
    slots: NDArray[np.int64]
    starts: NDArray[np.int64]


class UnitReader:
    """Reads windows of up to ``horizon`` steps."""

    def __init__(
        self, layout: PageLayout, columns: Columns, next_P: NDArray[np.int64], *, horizon: int
    ) -> None:
        """``next_P``: the slot of each page's next segment, kept up to date by its owner; -1 for none."""
        self._layout = layout
        self._columns = columns
        self._next_P = next_P
        self._horizon = horizon

    def rows_of(self, leaves_B: NDArray[np.int64]) -> Rows:
        """Where units begin."""
        slots_B, within_B = np.divmod(leaves_B, self._layout.units)
        envs_B, rows_B = np.divmod(within_B, self._layout.num_steps)
        return Rows(slots_B, envs_B, rows_B)

    def windows(self, first: Rows) -> Windows:
        """The windows of complete units."""
        num_steps = self._layout.num_steps
        shape = (len(first.slots), self._horizon)
        slots_BH = np.broadcast_to(first.slots[:, None], shape).copy()
        envs_BH = np.broadcast_to(first.envs[:, None], shape)
        rows_BH = first.rows[:, None] + np.arange(self._horizon)
        missing_BH = np.zeros(shape, np.bool_)
        while (beyond_BH := (rows_BH >= num_steps) & ~missing_BH).any():
            following_BH = self._next_P[slots_BH]
            missing_BH |= beyond_BH & (following_BH < 0)
            moves_BH = beyond_BH & ~missing_BH
            slots_BH = np.where(moves_BH, following_BH, slots_BH)
            rows_BH = np.where(moves_BH, rows_BH - num_steps, rows_BH)
        rows_BH = np.where(missing_BH, 0, rows_BH)
        ended_BH = self._flag("terminated", slots_BH, envs_BH, rows_BH)
        ended_BH |= self._flag("truncated", slots_BH, envs_BH, rows_BH)
        lengths_B = window_lengths(ended_BH & ~missing_BH)
        # Past the end everything repeats the last step.
        units_B = np.arange(len(lengths_B))
        taken_BH = np.minimum(np.arange(self._horizon), lengths_B[:, None] - 1)
        steps = Rows(slots_BH, envs_BH, rows_BH).at((units_B[:, None], taken_BH))
        last = steps.at((units_B, -1))
        return Windows(steps, Rows(last.slots, last.envs, last.rows + 1), lengths_B)

    def transitions(self, first: Rows) -> tuple[dict[str, Array], list[FrameReferences]]:
        """Transitions of up to ``horizon`` steps."""
        found = self.windows(first)
        inside_BH = np.arange(self._horizon) < found.lengths[:, None]
        tensors: dict[str, Array] = {LENGTHS: found.lengths.astype(np.int32)}
        for tensor in self._layout.tensors:
            name = tensor.name
            if name == REWARDS:
                tensors[name] = np.where(inside_BH, self._rows(name, found.steps), 0).astype(np.float32)
            elif name == TERMINATED:
                tensors[name] = self._rows(name, found.steps.at((slice(None), -1))) != 0
            elif tensor.kind == "step" and name not in FLAGS:
                tensors[name] = self._rows(name, first)
            elif tensor.kind == "observation" and not name.startswith(STARTS):
                tensors[name] = self._rows(name, first)
                tensors[f"{NEXT}{name}"] = self._rows(name, found.after)
        both = _stacked(first, found.after)
        return tensors, [self._references(image, both) for image in self._layout.images]

    def sequences(self, first: Rows) -> tuple[dict[str, Array], list[FrameReferences]]:
        """Sequences of up to ``horizon`` steps."""
        found = self.windows(first)
        inside_BH = np.arange(self._horizon) < found.lengths[:, None]
        observed = _observed(found)
        tensors: dict[str, Array] = {LENGTHS: found.lengths.astype(np.int32)}
        period = self._layout.num_steps // max(1, self._layout.num_states())
        tensors[IS_INITIAL] = first.rows % period != 0
        for tensor in self._layout.tensors:
            name = tensor.name
            if tensor.kind == "state":
                stored = Rows(first.slots, first.envs, first.rows // period)
                is_initial = tensors[IS_INITIAL].reshape(-1, *(1,) * len(tensor.shape))
                tensors[name] = np.where(is_initial, 0, self._rows(name, stored)).astype(tensor.dtype)
            elif tensor.kind == "observation":
                if not name.startswith(STARTS):
                    tensors[name] = self._rows(name, observed)
            elif name == REWARDS:
                tensors[name] = np.where(inside_BH, self._rows(name, found.steps), 0).astype(np.float32)
            elif name in FLAGS:
                tensors[name] = (self._rows(name, found.steps) != 0) & inside_BH
            else:
                tensors[name] = self._rows(name, found.steps)
        return tensors, [self._references(image, observed) for image in self._layout.images]

    def _references(self, image: ImageTensor, where: Rows) -> FrameReferences:
        starts = self._rows(f"{STARTS}{image.name}", where).astype(np.int64)
        return FrameReferences(image, where.slots, starts)

    def _rows(self, name: str, where: Rows) -> Array:
        return self._columns.rows(name, where.slots, where.envs, where.rows)

    def _flag(
        self, name: str, slots: NDArray[np.int64], envs: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        return self._columns.rows(name, slots, envs, rows) != 0


def _stacked(first: Rows, second: Rows) -> Rows:
    """Both, (B, 2)."""
    return Rows(
        np.stack([first.slots, second.slots], axis=1),
        np.stack([first.envs, second.envs], axis=1),
        np.stack([first.rows, second.rows], axis=1),
    )


def _observed(found: Windows) -> Rows:
    """Where the observations (B, H + 1) of windows are: before each step, then after the last; past it, that one."""
    steps, after = found.steps, found.after
    num_steps = steps.slots.shape[1]
    is_after = np.arange(num_steps + 1, dtype=np.int64) >= found.lengths[:, None]

    def joined(of_steps: NDArray[np.int64], of_after: NDArray[np.int64]) -> NDArray[np.int64]:
        padded = np.concatenate([of_steps, of_after[:, None]], axis=1)
        return np.where(is_after, of_after[:, None], padded)

    return Rows(
        joined(steps.slots, after.slots), joined(steps.envs, after.envs), joined(steps.rows, after.rows)
    )
