from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.batching import Candidate, Choice, Group, choose_batch, judge_groups
from tidegate.core.ids import GroupId, LineageName, PolicyVersion, TrajectoryId
from tidegate.core.records import VersionSpan
from tidegate.core.staleness import Expired, Fresh, Lineage, LineageTree, StalenessLimits, judge

MAIN = LineageName("0-aaaa")
TREE = LineageTree().add(Lineage(name=MAIN))
NOW_S = 1000.0


def version(step: int) -> PolicyVersion:
    return PolicyVersion(lineage=MAIN, step=step)


def candidate(
    seq: int, *, step: int = 10, group: str = "", size: int = 1, started_at_s: float = NOW_S
) -> Candidate:
    return Candidate(
        seq=seq,
        trajectory_id=TrajectoryId(f"t-{seq}.0"),
        group_id=GroupId(group or f"g-{seq}"),
        group_size=size,
        spans=(VersionSpan(version=version(step), start=0, stop=4),),
        started_at_s=started_at_s,
        frame_id=seq,
    )


def group(first_seq: int, size: int, *, step: int = 10) -> Group:
    return tuple(candidate(first_seq + i, step=step, group=f"g-{first_seq}", size=size) for i in range(size))


def choose(groups: list[Group], *, batch_size: int, max_lag: int = 4, max_age_s: float = 60.0) -> Choice:
    return choose_batch(
        groups,
        batch_size=batch_size,
        head=version(10),
        tree=TREE,
        limits=StalenessLimits(max_lag=max_lag, max_age_s=max_age_s),
        now_s=NOW_S,
    )


def chosen(groups: list[Group], *, batch_size: int, max_lag: int = 4, max_age_s: float = 60.0) -> list[int]:
    choice = choose(groups, batch_size=batch_size, max_lag=max_lag, max_age_s=max_age_s)
    return [member.seq for member in choice.batch]


def test_batch_takes_the_oldest_version_first_then_the_order_of_arrival() -> None:
    waiting: list[Group] = [
        (candidate(1, step=10),),
        (candidate(2, step=8),),
        (candidate(3, step=9),),
        (candidate(4, step=8),),
    ]
    assert chosen(waiting, batch_size=3) == [2, 4, 3]


def test_batch_stays_empty_until_it_is_full() -> None:
    waiting: list[Group] = [(candidate(1),), (candidate(2),)]
    assert chosen(waiting, batch_size=3) == []
    assert chosen([*waiting, (candidate(3),)], batch_size=3) == [1, 2, 3]


def test_batch_holds_whole_groups_only() -> None:
    waiting = [group(1, 4), group(5, 4, step=9)]
    assert chosen(waiting, batch_size=4) == [5, 6, 7, 8]


def test_batch_is_full_when_no_further_group_of_its_sizes_fits() -> None:
    assert chosen([group(1, 4), group(5, 4)], batch_size=10) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_smaller_group_fills_the_capacity_a_larger_one_leaves() -> None:
    assert chosen([group(1, 3), group(4, 3), (candidate(7),)], batch_size=4) == [1, 2, 3, 7]


def test_group_larger_than_a_batch_is_dropped_as_invalid_and_the_others_are_trained() -> None:
    choice = choose([group(1, 3), (candidate(4),), (candidate(5),)], batch_size=2)
    assert [member.seq for member in choice.batch] == [4, 5]
    assert [(drop.candidate.seq, drop.reason) for drop in choice.dropped] == [
        (1, "invalid"),
        (2, "invalid"),
        (3, "invalid"),
    ]
    assert "num_samples" in choice.dropped[0].detail


def test_trajectory_beyond_the_lag_budget_is_dropped_as_stale() -> None:
    choice = choose_batch(
        [(candidate(1, step=5),), (candidate(2, step=6),)],
        batch_size=1,
        head=version(10),
        tree=TREE,
        limits=StalenessLimits(max_lag=4, max_age_s=60.0),
        now_s=NOW_S,
    )
    assert [member.seq for member in choice.batch] == [2]
    assert [(drop.candidate.seq, drop.reason) for drop in choice.dropped] == [(1, "stale")]
    assert "5 versions behind" in choice.dropped[0].detail


def test_at_max_lag_zero_only_the_version_being_updated_is_trained() -> None:
    assert chosen([(candidate(1, step=9),), (candidate(2, step=10),)], batch_size=1, max_lag=0) == [2]


def test_trajectory_beyond_the_age_budget_is_dropped_though_others_of_its_version_are_not() -> None:
    judged = judge_groups(
        [(candidate(1, started_at_s=NOW_S - 61),), (candidate(2, started_at_s=NOW_S - 59),)],
        head=version(10),
        tree=TREE,
        limits=StalenessLimits(max_lag=4, max_age_s=60.0),
        now_s=NOW_S,
    )
    assert [fresh.members[0].seq for fresh in judged.fresh] == [2]
    assert [(drop.candidate.seq, drop.reason) for drop in judged.dropped] == [(1, "expired")]


def test_group_with_one_stale_member_is_dropped_whole_with_the_reason_on_each() -> None:
    mixed = (candidate(1, step=10, group="g", size=2), candidate(2, step=5, group="g", size=2))
    judged = judge_groups(
        [mixed], head=version(10), tree=TREE, limits=StalenessLimits(max_lag=4, max_age_s=60.0), now_s=NOW_S
    )
    assert not judged.fresh
    assert [(drop.candidate.seq, drop.reason) for drop in judged.dropped] == [(1, "stale"), (2, "stale")]
    assert "its group lost t-2.0" in judged.dropped[0].detail
    assert judged.dropped[1].detail.startswith("5 versions behind")


SPANS = st.lists(st.integers(4, 12), min_size=1, max_size=3).map(
    lambda steps: tuple(
        VersionSpan(version=version(step), start=i, stop=i + 1) for i, step in enumerate(steps)
    )
)


@st.composite
def waiting_groups(draw: st.DrawFn) -> list[Group]:
    groups: list[Group] = []
    seq = 0
    for index in range(draw(st.integers(0, 12))):
        size = draw(st.integers(1, 4))
        members: list[Candidate] = []
        for _ in range(size):
            seq += 1
            members.append(
                Candidate(
                    seq=seq,
                    trajectory_id=TrajectoryId(f"t-{seq}.0"),
                    group_id=GroupId(f"g-{index}"),
                    group_size=size,
                    spans=draw(SPANS),
                    started_at_s=NOW_S - draw(st.floats(0, 120)),
                    frame_id=seq,
                )
            )
        groups.append(tuple(members))
    return draw(st.permutations(groups))


@given(groups=waiting_groups(), batch_size=st.integers(4, 12), max_lag=st.integers(0, 6))
def test_choice_agrees_with_judging_every_member_alone(
    groups: list[Group], batch_size: int, max_lag: int
) -> None:
    head, limits = version(12), StalenessLimits(max_lag=max_lag, max_age_s=60.0)
    choice = choose_batch(groups, batch_size=batch_size, head=head, tree=TREE, limits=limits, now_s=NOW_S)

    def verdict(member: Candidate) -> object:
        return judge(
            member.spans, started_at_s=member.started_at_s, head=head, tree=TREE, limits=limits, now_s=NOW_S
        )

    fresh = {members for members in groups if all(isinstance(verdict(member), Fresh) for member in members)}
    assert {drop.candidate for drop in choice.dropped} == {
        member for members in groups if members not in fresh for member in members
    }
    for drop in choice.dropped:
        if isinstance(verdict(drop.candidate), Expired) and drop.candidate.group_size == 1:
            assert drop.reason == "expired"
    batched = {members for members in fresh if set(members) & set(choice.batch)}
    assert {member for members in batched for member in members} == set(choice.batch)
    assert len(choice.batch) <= batch_size
    if choice.batch:
        assert all(len(members) > batch_size - len(choice.batch) for members in batched)


@given(num_groups=st.integers(0, 6), size=st.integers(1, 4), batch_size=st.integers(4, 9))
def test_groups_of_one_size_make_a_batch_as_soon_as_enough_of_them_wait(
    num_groups: int, size: int, batch_size: int
) -> None:
    waiting = [group(1 + index * size, size) for index in range(num_groups)]
    groups_a_batch = batch_size // size
    expected = groups_a_batch * size if num_groups >= groups_a_batch else 0
    assert len(chosen(waiting, batch_size=batch_size)) == expected
