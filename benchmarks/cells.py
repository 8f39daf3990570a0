"""A run of the staleness bench as it is asked for and answered: what its workers read and write, without torch."""

import msgspec

from tidegate.algorithms.grpo_settings import GrpoSettings


class Cell(msgspec.Struct, frozen=True):
    """One run: ``settings`` of the learner, ``lag`` and ``updates`` in versions; looked at every ``look_every``."""

    name: str
    settings: GrpoSettings
    lag: int
    seed: int
    updates: int
    look_every: int


class CellResult(msgspec.Struct, frozen=True):
    """``solved``: share of held-out problems solved when sampling, by version, the last one at the end."""

    name: str
    lag: int
    seed: int
    solved: list[tuple[int, float]]
    ess_mean: float
    clipped_mean: float
    mismatch_kl_mean: float
    wall_s: float
    cpu_s: float

    @property
    def final(self) -> float:
        """Share solved at the end."""
        return self.solved[-1][1]
