"""Units are judged by the trajectories they are of, as whole trajectories are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.errors import UnknownVersionError
from tidegate.core.ids import LineageName, PolicyVersion, TrajectoryId
from tidegate.core.records import VersionSpan
from tidegate.core.staleness import Fresh, Lineage, LineageTree, StalenessLimits, judge
from tidegate.learner.replay_batches import ReplayBatch, ReplaySupply
from tidegate.learner.state import OutdatedBatch, TrainingProgress
from tidegate.wire.clients.trajectory_store import TrajectoryStoreClient
from tidegate.wire.samples import ReplaySample, SampledRow

ROOT, FORK = LineageName("0-aaaa"), LineageName("1-bbbb")
TREE = LineageTree().add(Lineage(name=ROOT)).add(Lineage(name=FORK, parent=ROOT, fork_step=10))
HEAD = PolicyVersion(FORK, 30)
NOW_S = 1000.0

versions = st.one_of(
    st.builds(PolicyVersion, st.just(ROOT), st.integers(0, 25)),
    st.builds(PolicyVersion, st.just(FORK), st.integers(10, 30)),
)
rows = st.lists(
    st.tuples(st.lists(versions, min_size=1, max_size=3), st.floats(900.0, 1000.0)), min_size=1, max_size=6
)


def sample_of(made: list[tuple[list[PolicyVersion], float]]) -> ReplaySample:
    return ReplaySample(
        batch_id="batch",
        ids=np.arange(2 * len(made)),
        probabilities=np.full(2 * len(made), 0.1),
        row_of=np.repeat(np.arange(len(made)), 2),
        rows=[
            SampledRow(
                TrajectoryId(f"t-{index}.0"),
                tuple(
                    [(version.lineage, version.step, place, place + 1) for place, version in enumerate(spans)]
                ),
                started_at_s,
                NOW_S - started_at_s,
                index % 2 == 0,
            )
            for index, (spans, started_at_s) in enumerate(made)
        ],
        tensors={"rewards": np.arange(2 * len(made), dtype=np.float32)},
        num_open=20,
        inserted_steps=400,
        episodes=(),
    )


def supply(limits: StalenessLimits) -> ReplaySupply:
    store = TrajectoryStoreClient.__new__(TrajectoryStoreClient)  # never called
    return ReplaySupply(store, batch_size=4, budget=lambda: limits, units_per_trajectory=8)


@given(rows, st.integers(0, 60), st.floats(1.0, 200.0))
def test_verdicts_are_those_of_the_one_staleness_check(
    made: list[tuple[list[PolicyVersion], float]], max_lag: int, max_age_s: float
) -> None:
    limits = StalenessLimits(max_lag=max_lag, max_age_s=max_age_s)
    sample = sample_of(made)
    verdicts = [
        judge(
            tuple(VersionSpan(version, place, place + 1) for place, version in enumerate(spans)),
            started_at_s=started_at_s,
            head=HEAD,
            tree=TREE,
            limits=limits,
            now_s=NOW_S,
        )
        for spans, started_at_s in made
    ]
    found = supply(limits).judge(sample, version=HEAD, tree=TREE, now_s=NOW_S, held_s=0.0)
    stale = {
        row.trajectory_id
        for row, verdict in zip(sample.rows, verdicts, strict=True)
        if not isinstance(verdict, Fresh)
    }
    if isinstance(found, OutdatedBatch):
        assert {item.trajectory_id for item in found.outdated} == stale
        return
    assert not stale
    assert [item.verdict for item in found.judged] == verdicts
    assert found.lags == [item.verdict.lag for item in found.judged for _ in range(2)]


def batch() -> ReplayBatch:
    made = [([PolicyVersion(ROOT, 4)], 990.0), ([PolicyVersion(FORK, 30)], 995.0)]
    found = supply(StalenessLimits(1000, 1e6)).judge(
        sample_of(made), version=HEAD, tree=TREE, now_s=NOW_S, held_s=0.0
    )
    assert isinstance(found, ReplayBatch)
    return found


def test_commit_names_every_unit_and_only_the_first_uses() -> None:
    trained = batch().trained(HEAD, np.ones(4, np.float32))
    assert [item.trajectory_id for item in trained.consumptions] == ["t-0.0"]
    consumed = trained.consumed()
    assert consumed.units == {"t-0.0": [0, 1], "t-1.0": [2, 3]}
    assert consumed.max_lag == 26
    assert trained.units is not None
    assert trained.units.sampled.max_lag == 26


def test_progress_counts_units_first_uses_and_the_steps_that_actors_recorded() -> None:
    progress = batch().progress_after(TrainingProgress(HEAD, sampled_units=6, consumed_steps=500))
    assert (progress.sampled_units, progress.consumed_trajectories, progress.version.step) == (10, 1, 31)
    # A restart of the store may know of fewer.
    assert progress.consumed_steps == 500


def test_parts_are_the_units_of_each_trajectory() -> None:
    parts = batch().parts()
    assert [(name, part.tensors["rewards"].tolist()) for name, part in parts] == [
        ("t-0.0", [0.0, 1.0]),
        ("t-1.0", [2.0, 3.0]),
    ]


def test_version_that_no_learner_opened_is_an_error() -> None:
    sample = sample_of([([PolicyVersion(LineageName("9-zzzz"), 1)], 990.0)])
    with pytest.raises(UnknownVersionError):
        supply(StalenessLimits(1000, 1e6)).judge(sample, version=HEAD, tree=TREE, now_s=NOW_S, held_s=0.0)


def test_clock_of_the_learner_that_is_behind_makes_nothing_younger() -> None:
    sample = sample_of([([HEAD], NOW_S - 3.0)])
    behind = supply(StalenessLimits(1000, 5.0))
    kept = behind.judge(sample, version=HEAD, tree=TREE, now_s=NOW_S - 3600.0, held_s=1.5)
    assert isinstance(kept, ReplayBatch)
    late = behind.judge(sample, version=HEAD, tree=TREE, now_s=NOW_S - 3600.0, held_s=2.5)
    assert isinstance(late, OutdatedBatch)
    assert [item.reason for item in late.outdated] == ["expired"]
