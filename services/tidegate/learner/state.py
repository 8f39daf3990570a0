"""The learner's state as values: progress, the staleness check before the loss, and the reported windows.

A batch that is trained on top of version ``(L, s)`` makes version ``(L, s + 1)``; its lag is measured against, and its
commit carries, ``(L, s)``. A checkpoint written after it holds version ``(L, s + 1)``, and a restore forks there.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec

from tidegate.core.ids import LineageName, PolicyVersion, TrajectoryId
from tidegate.core.records import DropReason, EpisodeEnd, Trajectory, VersionSpan
from tidegate.core.staleness import (
    Expired,
    Fresh,
    Lineage,
    LineageTree,
    Stale,
    StalenessLimits,
    Verdict,
    judge,
)

EPISODES_MAX = 100
LAGS_MAX = 1024


class EpisodeWindow(msgspec.Struct, frozen=True):
    """Returns of the last ``EPISODES_MAX`` episodes that ended in consumed trajectories, oldest first."""

    returns: tuple[float, ...] = ()
    total: int = 0

    def add(self, episodes: Sequence[EpisodeEnd]) -> "EpisodeWindow":
        """The window with these episodes appended and the oldest removed."""
        if not episodes:
            return self
        returns = (*self.returns, *(episode.episode_return for episode in episodes))
        return EpisodeWindow(returns=returns[-EPISODES_MAX:], total=self.total + len(episodes))

    def mean(self) -> float | None:
        """Mean return; None before the first episode ended."""
        return sum(self.returns) / len(self.returns) if self.returns else None


class TrainingProgress(msgspec.Struct, frozen=True):
    """Progress of training; stored in checkpoints. Counts are over the ancestry of ``version``.

    ``consumed_trajectories``: used for the first time. ``consumed_steps``: with replay those that actors had recorded
    when the newest batch was drawn. ``sampled_units``: with replay, one for each use of a unit: the learner's side of
    the audit's entry (``core.audit.LearnerTotals``).
    """

    version: PolicyVersion
    consumed_trajectories: int = 0
    consumed_steps: int = 0
    episodes: EpisodeWindow = EpisodeWindow()
    sampled_units: int = 0

    def after(self, trajectories: Sequence[Trajectory]) -> "TrainingProgress":
        """The progress after an update with these."""
        return TrainingProgress(
            version=next_version(self.version),
            consumed_trajectories=self.consumed_trajectories + len(trajectories),
            consumed_steps=self.consumed_steps + sum(trajectory.num_steps for trajectory in trajectories),
            episodes=self.episodes.add([end for trajectory in trajectories for end in trajectory.episodes]),
            sampled_units=self.sampled_units,
        )

    def after_units(
        self, *, num_units: int, num_first_uses: int, inserted_steps: int, episodes: Sequence[EpisodeEnd]
    ) -> "TrainingProgress":
        """The progress after an update with units of replay, some of trajectories that nothing had used before.

        ``episodes``: that ended in segments which arrived since the last batch.
        """
        return TrainingProgress(
            version=next_version(self.version),
            consumed_trajectories=self.consumed_trajectories + num_first_uses,
            consumed_steps=max(self.consumed_steps, inserted_steps),
            episodes=self.episodes.add(episodes),
            sampled_units=self.sampled_units + num_units,
        )


def next_version(version: PolicyVersion) -> PolicyVersion:
    """The version that an update of ``version`` makes."""
    return PolicyVersion(lineage=version.lineage, step=version.step + 1)


def lineage_to_open(
    checkpoint: PolicyVersion | None, *, token: str, abandoned: PolicyVersion | None = None
) -> Lineage:
    """The lineage of a learner that starts: a root, or a fork of the checkpoint that it was restored from.

    Names count the restores since the root. ``token`` is random, so that two learners restored from one
    checkpoint never share a name. ``abandoned``: the head that a rollback leaves; the count goes on from it, because
    versions are ordered in time by this number (``runtime.evaluations.version_order``).
    """
    if checkpoint is None:
        return Lineage(name=LineageName(f"0-{token}"))
    before = checkpoint if abandoned is None else abandoned
    count, _, _ = before.lineage.partition("-")
    return Lineage(
        name=LineageName(f"{int(count) + 1}-{token}"), parent=checkpoint.lineage, fork_step=checkpoint.step
    )


class JudgedTrajectory(msgspec.Struct, frozen=True):
    """One trajectory inside the budget, checked just before the loss."""

    trajectory_id: TrajectoryId
    verdict: Fresh


class OutdatedTrajectory(msgspec.Struct, frozen=True):
    """One trajectory that left the budget between the lease and the loss."""

    trajectory_id: TrajectoryId
    reason: DropReason
    detail: str


class TrainableBatch(msgspec.Struct, frozen=True):
    """The whole batch is inside the budget; ``judged`` in batch order."""

    judged: tuple[JudgedTrajectory, ...]


class OutdatedBatch(msgspec.Struct, frozen=True):
    """A batch with trajectories outside the budget."""

    outdated: tuple[OutdatedTrajectory, ...]


Recheck: TypeAlias = TrainableBatch | OutdatedBatch


def recheck(
    trajectories: Sequence[Trajectory],
    ages_s: Sequence[float],
    *,
    version: PolicyVersion,
    tree: LineageTree,
    limits: StalenessLimits,
) -> Recheck:
    """The second check of I1: every trajectory of a batch against the version it is about to update.

    ``ages_s``: of each, the larger of two measures: by the learner's clock, and by the store's clock when it was leased
    plus the duration since. A clock of the learner that is behind makes nothing younger.

    Raises:
        UnknownVersionError: a span names a lineage that the run never opened.
    """
    # The samples of a group start together under the same versions and share one verdict.
    known: dict[tuple[tuple[VersionSpan, ...], float], Verdict] = {}
    judged: list[JudgedTrajectory] = []
    outdated: list[OutdatedTrajectory] = []
    for trajectory, age_s in zip(trajectories, ages_s, strict=True):
        key = (trajectory.spans, age_s)
        verdict = known.get(key)
        if verdict is None:
            verdict = judge(
                trajectory.spans, started_at_s=-age_s, head=version, tree=tree, limits=limits, now_s=0.0
            )
            known[key] = verdict
        if isinstance(verdict, Fresh):
            judged.append(JudgedTrajectory(trajectory.trajectory_id, verdict))
        else:
            outdated.append(outdated_by(verdict, trajectory.trajectory_id))
    return OutdatedBatch(tuple(outdated)) if outdated else TrainableBatch(tuple(judged))


def outdated_by(verdict: Stale | Expired, trajectory_id: TrajectoryId) -> OutdatedTrajectory:
    """Why a trajectory is released instead of trained."""
    reason: DropReason = "expired" if isinstance(verdict, Expired) else "stale"
    return OutdatedTrajectory(trajectory_id, reason, str(verdict))


class LagWindow:
    """Lags of the last ``LAGS_MAX`` consumed trajectories."""

    def __init__(self) -> None:
        self._lags: list[int] = []
        self._next = 0
        self._counts: Counter[int] = Counter()

    def add(self, lags: Iterable[int]) -> None:
        """Add the lags of a batch."""
        for lag in lags:
            self._counts[lag] += 1
            if len(self._lags) < LAGS_MAX:
                self._lags.append(lag)
                continue
            self._counts[self._lags[self._next]] -= 1
            self._lags[self._next] = lag
            self._next = (self._next + 1) % LAGS_MAX

    def mean(self) -> float:
        """Mean lag; 0 when empty."""
        total = sum(lag * count for lag, count in self._counts.items())
        return total / len(self._lags) if self._lags else 0.0

    def quantile(self, share: float) -> int:
        """The smallest lag that at least ``share`` of the window does not exceed; 0 when empty."""
        wanted = math.ceil(share * len(self._lags))
        seen = 0
        for lag in sorted(self._counts):
            seen += self._counts[lag]
            if seen >= wanted:
                return lag
        return 0
