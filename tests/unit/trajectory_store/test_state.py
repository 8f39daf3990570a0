import hypothesis.strategies as st
import pytest
from hypothesis import given

from tests.unit.trajectory_store.building import at
from tidegate.core.batching import Candidate
from tidegate.core.ids import GroupId, TrajectoryId
from tidegate.core.records import VersionSpan
from tidegate.core.staleness import Lineage, LineageTree, StalenessLimits
from tidegate.core.waiting import WholeGroups
from tidegate.trajectory_store.state import LiveFrames, Location, Pool, Tally


def candidate(seq: int, *, group: str = "", size: int = 1, frame: int = 1) -> Candidate:
    return Candidate(
        seq=seq,
        trajectory_id=TrajectoryId(f"t-{seq}.0"),
        group_id=GroupId(group or f"g-{seq}"),
        group_size=size,
        spans=(VersionSpan(at(0), 0, 1),),
        started_at_s=0.0,
        frame_id=frame,
    )


def seqs(groups: list[tuple[Candidate, ...]]) -> list[list[int]]:
    return [[member.seq for member in members] for members in groups]


def offered(pool: Pool) -> list[tuple[Candidate, ...]]:
    """The groups of a batch of all that a batch can be made of."""
    left = pool.choose(
        batch_size=max(1, pool.num_whole),
        head=at(0),
        tree=LineageTree().add(Lineage(at(0).lineage)),
        limits=StalenessLimits(max_lag=0, max_age_s=1.0),
        now_s=0.0,
    ).batch
    groups: list[tuple[Candidate, ...]] = []
    while left:
        size = left[0].group_size
        groups.append(left[:size])
        left = left[size:]
    return groups


def test_group_is_offered_once_all_of_its_members_wait() -> None:
    pool = Pool()
    pool.add([candidate(1, group="g", size=2)])
    assert seqs(offered(pool)) == []
    assert seqs(pool.groups()) == [[1]]
    pool.add([candidate(2, group="g", size=2)])
    assert seqs(offered(pool)) == [[1, 2]]
    assert (len(pool), pool.num_whole) == (2, 2)


def test_members_of_a_group_are_found_without_a_pass_over_all_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is restored without its payloads asks for each of its trajectories."""
    pool = Pool()
    pool.add([candidate(seq, group=f"g-{seq // 2}", size=2) for seq in range(2, 8)])
    monkeypatch.delattr(WholeGroups, "groups")
    assert [member.seq for member in pool.siblings(candidate(5, group="g-2", size=2))] == [4, 5]


def test_group_that_loses_a_member_is_no_longer_offered() -> None:
    pool = Pool()
    members = [candidate(seq, group="g", size=3) for seq in (1, 2, 3)]
    pool.add(members)
    pool.remove([members[1]])
    assert seqs(offered(pool)) == []
    assert [member.seq for member in pool.siblings(members[0])] == [1, 3]
    pool.add([members[1]])
    assert seqs(offered(pool)) == [[1, 2, 3]]


def test_second_group_under_the_same_id_waits_for_its_own_members() -> None:
    pool = Pool()
    pool.add([candidate(seq, group="g", size=2) for seq in (1, 2, 3)])
    assert seqs(offered(pool)) == [[1, 2]]
    pool.add([candidate(4, group="g", size=2)])
    assert seqs(offered(pool)) == [[1, 2], [3, 4]]


def test_members_that_arrive_together_make_the_groups_that_they_would_make_one_by_one() -> None:
    members = [candidate(seq, group="g", size=3) for seq in range(1, 8)]
    other = [candidate(seq, group="h", size=2) for seq in (8, 9)]
    together, apart = Pool(), Pool()
    together.add([*other, *members[:3], *members[3:]])
    for each in (*other, *members):
        apart.add([each])
    assert seqs(together.groups()) == seqs(apart.groups()) == [[8, 9], [1, 2, 3], [4, 5, 6], [7]]
    assert seqs(offered(together)) == seqs(offered(apart))
    backwards = Pool()
    backwards.add(members[2::-1])
    assert seqs(offered(backwards)) == [[1, 2, 3]]


@given(
    events=st.lists(st.tuples(st.sampled_from(["add", "remove"]), st.integers(0, 11)), max_size=60),
    size=st.integers(1, 3),
)
def test_pool_agrees_with_counting_the_waiting_members(events: list[tuple[str, int]], size: int) -> None:
    everyone = {seq: candidate(seq, group=f"g-{seq // size}", size=size) for seq in range(12)}
    pool, there = Pool(), set[int]()
    for event, seq in events:
        if event == "add" and seq not in there:
            pool.add([everyone[seq]])
            there.add(seq)
        elif event == "remove" and seq in there:
            pool.remove([everyone[seq]])
            there.discard(seq)
        whole = [
            seq for seq in there if all(other in there for other in everyone if other // size == seq // size)
        ]
        assert sorted(member.seq for member in pool) == sorted(there)
        assert sorted(seq for members in seqs(offered(pool)) for seq in members) == sorted(whole)
        assert (len(pool), pool.num_whole) == (len(there), len(whole))


def test_frame_is_finished_with_the_last_trajectory_that_waits_in_it() -> None:
    frames = LiveFrames()
    location = Location(segment=1, offset=0, size=100)
    frames.add(7, location, num_live=2)
    assert (frames.num_bytes, frames.segments(), frames.location(7)) == (100, {1}, location)
    assert frames.finish([candidate(1, frame=7)]) == []
    assert frames.finish([candidate(2, frame=7)]) == [location]
    assert (frames.num_bytes, frames.segments()) == (0, set())


def test_totals_show_no_reason_and_no_lag_that_counts_nothing() -> None:
    tally = Tally()
    tally.dropped["stale"] += 1
    tally.dropped["stale"] -= 1
    tally.dropped["failed"] += 2
    tally.trained_by_lag[3] += 4
    tally.trained_by_lag[1] += 0
    totals = tally.totals(trained_twice=0)
    assert totals.dropped == {"failed": 2}
    assert totals.trained_by_lag == {3: 4}
    assert totals.trained == 4
