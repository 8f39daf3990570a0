import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tests.unit.learner.trajectories import ROOT, segment, version
from tidegate.core.errors import UnknownVersionError
from tidegate.core.ids import LineageName
from tidegate.core.records import EpisodeEnd, Trajectory
from tidegate.core.staleness import Fresh, Lineage, LineageTree, StalenessLimits
from tidegate.learner.state import (
    EPISODES_MAX,
    LAGS_MAX,
    EpisodeWindow,
    JudgedTrajectory,
    LagWindow,
    OutdatedBatch,
    TrainableBatch,
    TrainingProgress,
    lineage_to_open,
    recheck,
)
from tidegate.runtime.evaluations import version_order

TREE = LineageTree().add(Lineage(name=ROOT))
LIMITS = StalenessLimits(max_lag=2, max_age_s=10.0)


def test_a_batch_makes_the_next_version_and_counts_what_it_held() -> None:
    progress = TrainingProgress(version=version(7), consumed_trajectories=10, consumed_steps=100)
    after = progress.after([segment("a", at=version(7), returns=(3.0, 5.0)), segment("b", at=version(6))])
    assert after.version == version(8)
    assert (after.consumed_trajectories, after.consumed_steps) == (12, 100 + 2 * 32)
    assert (after.episodes.returns, after.episodes.total) == ((3.0, 5.0), 2)


def test_first_learner_opens_a_root() -> None:
    assert lineage_to_open(None, token="ab12") == Lineage(name=LineageName("0-ab12"))


def test_restored_learner_forks_at_the_version_of_its_checkpoint() -> None:
    lineage = lineage_to_open(version(50, LineageName("3-ab12")), token="cd34")
    assert lineage == Lineage(name=LineageName("4-cd34"), parent=LineageName("3-ab12"), fork_step=50)


def test_lineage_of_a_rollback_is_numbered_after_the_one_that_it_leaves() -> None:
    head, target = version(90, LineageName("3-ab12")), version(50, LineageName("0-ab12"))
    opened = lineage_to_open(target, token="cd34", abandoned=head)
    assert opened == Lineage(name=LineageName("4-cd34"), parent=target.lineage, fork_step=50)
    after = version(50, opened.name)
    assert version_order(str(after)) > version_order(str(head)), "an evaluation of it is the newer one"


def ages_at(now_s: float, batch: list[Trajectory]) -> list[float]:
    return [now_s - trajectory.started_at_s for trajectory in batch]


def test_batch_inside_the_budget_is_measured_against_the_version_it_updates() -> None:
    batch = [segment("a", at=version(5), started_at_s=1.0), segment("b", at=version(3), started_at_s=4.0)]
    verdict = recheck(batch, ages_at(9.0, batch), version=version(5), tree=TREE, limits=LIMITS)
    assert verdict == TrainableBatch(
        (
            JudgedTrajectory(batch[0].trajectory_id, Fresh(lag=0, span=0, age_s=8.0)),
            JudgedTrajectory(batch[1].trajectory_id, Fresh(lag=2, span=0, age_s=5.0)),
        )
    )


def test_one_trajectory_beyond_the_budget_spoils_the_batch_and_is_named() -> None:
    batch = [
        segment("fresh", at=version(5), started_at_s=1.0),
        segment("stale", at=version(2), started_at_s=1.0),
        segment("old", at=version(5), started_at_s=-2.0),
    ]
    verdict = recheck(batch, ages_at(9.0, batch), version=version(5), tree=TREE, limits=LIMITS)
    assert isinstance(verdict, OutdatedBatch)
    assert [(item.trajectory_id, item.reason) for item in verdict.outdated] == [
        ("stale.0", "stale"),
        ("old.0", "expired"),
    ]
    assert "3 versions behind" in verdict.outdated[0].detail


def test_version_of_an_unknown_lineage_is_an_error() -> None:
    with pytest.raises(UnknownVersionError):
        recheck(
            [segment("a", at=version(1, LineageName("9-ffff")))],
            [0.0],
            version=version(1),
            tree=TREE,
            limits=LIMITS,
        )


@hypothesis.given(st.lists(st.lists(st.floats(-500, 500), max_size=150), max_size=6))
def test_episode_window_is_the_mean_of_the_last_hundred(batches: list[list[float]]) -> None:
    window = EpisodeWindow()
    for returns in batches:
        window = window.add([EpisodeEnd(episode_return=value, length=1, position=0) for value in returns])
    everything = [value for returns in batches for value in returns]
    assert window.total == len(everything)
    assert list(window.returns) == everything[-EPISODES_MAX:]
    mean = window.mean()
    if everything:
        assert mean == pytest.approx(np.mean(everything[-EPISODES_MAX:]))
    else:
        assert mean is None


@hypothesis.given(st.lists(st.lists(st.integers(0, 40), max_size=700), max_size=5), st.floats(0.01, 1.0))
def test_lag_window_is_numpy_over_the_last_lags(batches: list[list[int]], share: float) -> None:
    window = LagWindow()
    for lags in batches:
        window.add(lags)
    last = [lag for lags in batches for lag in lags][-LAGS_MAX:]
    assert window.mean() == pytest.approx(np.mean(last) if last else 0.0)
    slow = int(np.quantile(last, share, method="inverted_cdf")) if last else 0
    assert window.quantile(share) == slow
