"""The pool shows ``choose_batch`` little and gets the same answer as if it had shown it everything."""

from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.batching import Candidate, Group, choose_batch
from tidegate.core.ids import GroupId, LineageName, PolicyVersion, TrajectoryId
from tidegate.core.records import VersionSpan
from tidegate.core.staleness import Lineage, LineageTree, StalenessLimits
from tidegate.sim.fleet.pool import Pool

ROOT = LineageName("0-a")
FORK = LineageName("1-b")
TREE = LineageTree().add(Lineage(ROOT)).add(Lineage(FORK, parent=ROOT, fork_step=3))


def group(number: int, *, version: PolicyVersion, started_at_s: float, size: int) -> Group:
    return tuple(
        Candidate(
            seq=number * size + index,
            trajectory_id=TrajectoryId(f"t{number}.{index}"),
            group_id=GroupId(f"t{number}"),
            group_size=size,
            spans=(VersionSpan(version, 0, 1),),
            started_at_s=started_at_s,
            frame_id=0,
        )
        for index in range(size)
    )


arrivals = st.lists(st.tuples(st.integers(0, 9), st.floats(0, 100)), max_size=90)


@given(
    arrived=arrivals,
    on_fork=st.booleans(),
    head_step=st.integers(5, 12),
    max_lag=st.integers(0, 8),
    max_age_s=st.sampled_from([30.0, 70.0, 1000.0]),
    batches=st.integers(1, 6),
)
def test_pool_chooses_and_drops_what_the_whole_would(
    arrived: list[tuple[int, float]],
    on_fork: bool,
    head_step: int,
    max_lag: int,
    max_age_s: float,
    batches: int,
) -> None:
    pool, everything = Pool(), dict[int, Group]()
    limits = StalenessLimits(max_lag=max_lag, max_age_s=max_age_s)
    for number, (step, started_at_s) in enumerate(arrived):
        lineage = FORK if on_fork and step > 6 else ROOT
        # Nothing is newer than what the learner has.
        added = group(
            number, version=PolicyVersion(lineage, min(step, head_step)), started_at_s=started_at_s, size=2
        )
        pool.add(added)
        everything[added[0].seq] = added
    for turn in range(batches):
        head = PolicyVersion(FORK if on_fork else ROOT, head_step + turn)
        now_s = 100.0 + turn
        expected = choose_batch(
            list(everything.values()), batch_size=8, head=head, tree=TREE, limits=limits, now_s=now_s
        )
        choice = pool.choose(batch_size=8, head=head, tree=TREE, limits=limits, now_s=now_s)
        assert choice.batch == expected.batch
        # In another order perhaps: each is dropped for the same reason.
        assert {drop.candidate.seq: drop.reason for drop in choice.dropped} == {
            drop.candidate.seq: drop.reason for drop in expected.dropped
        }
        for candidate in (*choice.batch, *(drop.candidate for drop in choice.dropped)):
            everything.pop(candidate.seq, None)
        assert pool.num_trajectories == sum(map(len, everything.values()))


def test_pool_takes_out_what_is_beyond_the_budget_and_nothing_else() -> None:
    pool = Pool()
    for number in range(40):
        version = PolicyVersion(ROOT, number // 10)
        pool.add(group(number, version=version, started_at_s=float(number), size=1))
    dropped = pool.expire(
        head=PolicyVersion(ROOT, 4),
        tree=TREE,
        limits=StalenessLimits(max_lag=3, max_age_s=75.0),
        now_s=100.0,
    )
    assert {drop.candidate.seq for drop in dropped} == set(range(25))
    assert pool.num_trajectories == 15
