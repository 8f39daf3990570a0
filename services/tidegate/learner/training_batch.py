"""What the learner's loop does with a batch, be it of whole trajectories or of sampled units."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tidegate.core.ids import PolicyVersion, TrajectoryId
from tidegate.core.records import Trajectory
from tidegate.learner.committing import TrainedBatch
from tidegate.learner.state import JudgedTrajectory, TrainingProgress


class TrainingBatch(Protocol):
    """A leased batch inside the staleness budget of the version that it will update.

    A sample is what the trainer counts: a trajectory, or a unit of replay.
    """

    @property
    def batch_id(self) -> str:
        """Its name at the store."""
        ...

    @property
    def judged(self) -> tuple[JudgedTrajectory, ...]:
        """Each trajectory that it takes samples from, with its staleness at consumption."""
        ...

    @property
    def trajectories(self) -> Sequence[Trajectory]:
        """The records of whole trajectories; none of sampled units, whose records stay with the store."""
        ...

    @property
    def work(self) -> Any:
        """What the trainer prepares."""
        ...

    @property
    def lags(self) -> list[int]:
        """The lag of each sample, in order."""
        ...

    @property
    def num_consumed(self) -> int:
        """Trajectories that no gradient had used before."""
        ...

    def progress_after(self, progress: TrainingProgress) -> TrainingProgress:
        """The progress after an update with it."""
        ...

    def trained(self, version: PolicyVersion, priorities: NDArray[np.float32] | None) -> TrainedBatch:
        """What is committed once it updated ``version``."""
        ...

    def parts(self) -> Sequence[tuple[TrajectoryId, Any]]:
        """The work of each trajectory alone."""
        ...
