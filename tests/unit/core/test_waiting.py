"""``choose_batch`` on few groups gives the same choice as on all groups."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.batching import Candidate, Choice, Group, choose_batch
from tidegate.core.ids import GroupId, LineageName, PolicyVersion, TrajectoryId
from tidegate.core.records import VersionSpan
from tidegate.core.staleness import Lineage, LineageTree, StalenessLimits
from tidegate.core.waiting import LEFT_OVER_MAX, WholeGroups

ROOT = LineageName("0-a")
FORK = LineageName("1-b")
TREE = LineageTree().add(Lineage(ROOT)).add(Lineage(FORK, parent=ROOT, fork_step=3))


# Room for the largest group.
SEQS = 4


def group(number: int, *, version: PolicyVersion, started_at_s: float, size: int) -> Group:
    return tuple(
        Candidate(
            seq=number * SEQS + index,
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
    newer=st.booleans(),
    head_step=st.integers(5, 12),
    max_lag=st.integers(0, 8),
    max_age_s=st.sampled_from([30.0, 70.0, 1000.0]),
    batch_size=st.sampled_from([6, 8, 9]),
    sizes=st.sampled_from([(1,), (2,), (4,), (2, 3)]),
    turns=st.integers(1, 6),
    comes_back=st.booleans(),
)
def test_choice_and_drops_equal_those_of_all_waiting_groups(
    arrived: list[tuple[int, float]],
    on_fork: bool,
    newer: bool,
    head_step: int,
    max_lag: int,
    max_age_s: float,
    batch_size: int,
    sizes: tuple[int, ...],
    turns: int,
    comes_back: bool,
) -> None:
    pool, everything = WholeGroups(), dict[int, Group]()
    limits = StalenessLimits(max_lag=max_lag, max_age_s=max_age_s)
    for number, (step, started_at_s) in enumerate(arrived):
        lineage = FORK if on_fork and step > 6 else ROOT
        version = PolicyVersion(lineage, step if newer else min(step, head_step))
        added = group(number, version=version, started_at_s=started_at_s, size=sizes[number % len(sizes)])
        pool.add(added)
        everything[added[0].seq] = added
    for turn in range(turns):
        head = PolicyVersion(FORK if on_fork else ROOT, head_step + turn)
        now_s = 100.0 + turn
        expected = choose_batch(
            list(everything.values()), batch_size=batch_size, head=head, tree=TREE, limits=limits, now_s=now_s
        )
        overdue = pool.overdue(head=head, tree=TREE, limits=limits, now_s=now_s)
        choice = pool.choose(batch_size=batch_size, head=head, tree=TREE, limits=limits, now_s=now_s)
        assert choice.batch == expected.batch
        # In another order perhaps: each is dropped for the same reason.
        reasons = {drop.candidate.seq: drop.reason for drop in expected.dropped}
        assert {drop.candidate.seq: drop.reason for drop in choice.dropped} == reasons
        assert {drop.candidate.seq: drop.reason for drop in overdue} == reasons
        gone = {candidate.group_id for candidate in choice.batch}
        gone |= {drop.candidate.group_id for drop in choice.dropped}
        for first, members in list(everything.items()):
            if members[0].group_id in gone:
                assert pool.remove(first) == everything.pop(first)
        if comes_back and choice.batch:
            back = tuple(each for each in choice.batch if each.group_id == choice.batch[0].group_id)
            pool.add(back)
            everything[back[0].seq] = back
        assert pool.num_trajectories == sum(map(len, everything.values()))
        assert len(pool) == len(everything)


def waiting(number: int) -> WholeGroups:
    """Ten of each version, a second apart."""
    pool = WholeGroups()
    for each in range(number):
        pool.add(group(each, version=PolicyVersion(ROOT, each // 10), started_at_s=float(each), size=1))
    return pool


def test_what_is_beyond_the_budget_is_overdue_and_nothing_else() -> None:
    dropped = waiting(40).overdue(
        head=PolicyVersion(ROOT, 4), tree=TREE, limits=StalenessLimits(max_lag=3, max_age_s=75.0), now_s=100.0
    )
    assert {drop.candidate.seq // SEQS for drop in dropped} == set(range(25))


def test_groups_stay_until_they_are_removed() -> None:
    """The caller records a removal first, which may fail."""
    pool, limits = waiting(40), StalenessLimits(max_lag=3, max_age_s=75.0)
    for _ in range(2):
        head = PolicyVersion(ROOT, 4)
        choice = pool.choose(batch_size=4, head=head, tree=TREE, limits=limits, now_s=100.0)
        assert [candidate.seq // SEQS for candidate in choice.batch] == [25, 26, 27, 28]
        assert len(choice.dropped) == 25
    assert len(pool) == 40


def test_choosing_a_batch_reads_little_more_than_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[int] = []

    def choose(groups: Sequence[Group], **rest: Any) -> Choice:
        shown.append(len(groups))
        return choose_batch(groups, **rest)

    monkeypatch.setattr("tidegate.core.waiting.choose_batch", choose)
    limits = StalenessLimits(max_lag=100, max_age_s=1e9)
    pool = waiting(1000)
    choice = pool.choose(batch_size=8, head=PolicyVersion(ROOT, 99), tree=TREE, limits=limits, now_s=1000.0)
    assert len(choice.batch) == 8
    assert shown == [8]


def test_entries_of_removed_groups_are_cleared() -> None:
    pool = waiting(0)
    for number in range(3 * LEFT_OVER_MAX):
        pool.add(group(number, version=PolicyVersion(ROOT, 0), started_at_s=0.0, size=1))
        pool.remove(number * SEQS)
    assert len(pool) == pool.num_trajectories == 0
    assert len(pool._by_start) <= LEFT_OVER_MAX  # pyright: ignore[reportPrivateUsage]
