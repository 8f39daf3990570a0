"""Streams of steps as actors record them, cut into segments, and what may be drawn of them, step by step."""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from tidegate.algorithms.frame_stacks import FrameRecorder
from tidegate.core.ids import LineageName, PolicyVersion, TrajectoryId
from tidegate.core.records import Array, VersionSpan
from tidegate.core.spaces import BoxSpace
from tidegate.trajectory_store.replay.buffer import Resident, Segment

LINEAGE = LineageName("0-aaaa")
STACK = 3
IMAGE = BoxSpace(shape=(STACK, 4, 6), dtype="uint8", low=(0.0,), high=(255.0,))


class StreamRow(msgspec.Struct, frozen=True):
    """A row of one environment: what a segment records at it."""

    position: int
    valid: bool
    terminated: bool
    truncated: bool
    reward: float


class Stream:
    """An endless environment of numbered rows: the observation at row k of environment n is ``k + n / 10``."""

    def __init__(self, seed: int, *, num_envs: int, end_chance: float = 0.15) -> None:
        self._rng = np.random.default_rng(seed)
        self._end_chance = end_chance
        self.num_envs = num_envs
        self.rows: list[list[StreamRow]] = [[] for _ in range(num_envs)]

    def extend(self, num_steps: int) -> None:
        """Record more rows of each environment."""
        for rows in self.rows:
            for _ in range(num_steps):
                ended_before = bool(rows) and (rows[-1].terminated or rows[-1].truncated)
                ends = not ended_before and self._rng.random() < self._end_chance
                terminated = ends and self._rng.random() < 0.5
                reward = float(self._rng.integers(-9, 10))
                rows.append(
                    StreamRow(len(rows), not ended_before, terminated, ends and not terminated, reward)
                )

    def segment(self, start: int, num_steps: int, *, with_images: bool = False) -> dict[str, Array]:
        """The rows from ``start`` on as a segment's tensors."""
        for _ in range(max(0, start + num_steps - len(self.rows[0]))):
            self.extend(1)
        columns = [rows[start : start + num_steps] for rows in self.rows]

        def steps(name: str, dtype: Any) -> Array:
            return np.array([[getattr(row, name) for row in rows] for rows in columns], dtype).T.copy()

        positions = np.arange(start, start + num_steps + 1)[:, None] + np.arange(self.num_envs) / 10
        tensors: dict[str, Array] = {
            "observations": positions[..., None].astype(np.float32),
            "actions": steps("position", np.int32),
            "behavior_logprobs": np.full((num_steps, self.num_envs), -0.5, np.float32),
            "rewards": steps("reward", np.float32),
            "terminated": steps("terminated", np.bool_),
            "truncated": steps("truncated", np.bool_),
            "valid": steps("valid", np.bool_),
        }
        if with_images:
            recorder = FrameRecorder(IMAGE, num_steps=num_steps, num_envs=self.num_envs)
            for position in range(start, start + num_steps + 1):
                recorder.append(np.stack([self.image(env, position) for env in range(self.num_envs)]))
            tensors |= recorder.tensors("pixels")
        return tensors

    def image(self, env: int, position: int) -> Array:
        """The stacked frames at a row: of earlier rows of its episode, its first one repeated before them."""
        first = position
        while first > 0 and not self._begins(env, first):
            first -= 1
        shown = [max(first, position - back) for back in reversed(range(STACK))]
        return np.stack([np.full(IMAGE.shape[1:], (7 * row + 31 * env) % 251, np.uint8) for row in shown])

    def _begins(self, env: int, position: int) -> bool:
        return position < len(self.rows[env]) and position > 0 and not self.rows[env][position - 1].valid

    def window(self, env: int, position: int, *, horizon: int, known: int) -> list[StreamRow] | None:
        """The steps of the unit at a row, when only ``known`` rows exist; None when it is not complete."""
        taken: list[StreamRow] = []
        for row in self.rows[env][position:known]:
            if not row.valid:
                return None
            taken.append(row)
            if row.terminated or row.truncated or len(taken) == horizon:
                return taken
        return None


def segment_of(
    seq: int,
    tensors: dict[str, Array],
    *,
    stream: str = "",
    position: int = 0,
    step: int = 0,
    started_at_s: float = 0.0,
) -> Segment:
    """A segment to insert, named after its ``seq``, of version ``step``."""
    span = VersionSpan(PolicyVersion(LINEAGE, step), 0, len(tensors["valid"]))
    resident = Resident(seq, TrajectoryId(f"t-{seq}.0"), (span,), started_at_s)
    return Segment(resident, stream, position, tensors)


def units_of(num_steps: int, num_envs: int) -> Iterator[tuple[int, int, int]]:
    """Every unit of a page: its place, environment and row."""
    for env in range(num_envs):
        for row in range(num_steps):
            yield env * num_steps + row, env, row
