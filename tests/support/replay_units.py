"""Units of replay as the learner gets them, for tests of trainers: segments in, batches out, without a service.

The buffer, the frame and its decoding are those of the trajectory store.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.support.replay import LINEAGE, segment_of
from tidegate.core.records import Array
from tidegate.core.staleness import Lineage, LineageTree, StalenessLimits
from tidegate.learner.optim.replay_port import ReplayUnits
from tidegate.trajectory_store.replay.buffer import BufferSettings, ReplayBuffer
from tidegate.trajectory_store.replay.selectors import Selector, SelectorSettings
from tidegate.trajectory_store.replay.sending import sample_frame
from tidegate.wire.samples import decode_sample

LIMITS = StalenessLimits(max_lag=1 << 40, max_age_s=1e12)


class UnitSource:
    """A replay buffer of ``num_slots`` segments, one stream of environments, and a draw from its ``seed``.

    ``sequence_period`` 0 gives transitions of ``horizon`` steps, more gives sequences of ``horizon`` steps that begin
    at every so many.
    """

    def __init__(
        self,
        folder: Path,
        *,
        num_steps: int,
        num_envs: int,
        horizon: int = 1,
        sequence_period: int = 0,
        num_slots: int = 64,
        selector: Selector = "uniform",
        priority_exponent: float = 0.6,
        seed: int = 0,
    ) -> None:
        self._settings = BufferSettings(
            num_slots=num_slots,
            num_steps=num_steps,
            num_envs=num_envs,
            horizon=horizon,
            period=sequence_period,
            uses_max=0,
            selector=SelectorSettings(selector, priority_exponent),
            block_file_bytes=1 << 20,
        )
        self._buffer = ReplayBuffer(folder, self._settings)
        self._rng = np.random.default_rng(seed)
        self._num_inserted = 0

    def insert(self, tensors: Mapping[str, Array], *, step: int = 0) -> None:
        """The next segment of the environments, recorded at version ``step``."""
        self._buffer.check(tensors, name="a segment")
        self._buffer.evict(self._buffer.must_evict(1))
        self._num_inserted += 1
        segment = segment_of(
            self._num_inserted, dict(tensors), stream="stream-0", position=self._num_inserted, step=step
        )
        self._buffer.insert(segment, arrival=self._num_inserted * self._settings.units)
        self._buffer.follow(LINEAGE, LineageTree().add(Lineage(name=LINEAGE)))

    @property
    def num_open(self) -> int:
        """Units that could be drawn."""
        return self._buffer.num_open

    def draw(self, count: int, *, step: int = 0) -> ReplayUnits:
        """A batch for an update of version ``step``."""
        drawn = self._buffer.draw(count, step=step, limits=LIMITS, rng=self._rng, now_s=0.0)
        assert drawn is not None, f"fewer than {count} units can be drawn"
        frame = sample_frame(
            self._buffer,
            drawn,
            batch_id="batch",
            unused=(),
            inserted_steps=0,
            episodes=(),
            is_sequence=self._settings.period > 0,
            now_s=0.0,
        )
        sample = decode_sample(frame)
        lags_R = np.array([step - row.version_spans()[0].version.step for row in sample.rows])
        return ReplayUnits(
            ids_B=sample.ids,
            probabilities_B=sample.probabilities,
            num_open=sample.num_open,
            lags_B=lags_R[sample.row_of],
            tensors=sample.tensors,
        )

    def set_priorities(self, units: ReplayUnits, priorities_B: NDArray[np.float32]) -> None:
        """What a trainer returned for a batch."""
        self._buffer.set_priorities(units.ids_B, priorities_B)

    def close(self) -> None:
        """Close the buffer's files."""
        self._buffer.close()
