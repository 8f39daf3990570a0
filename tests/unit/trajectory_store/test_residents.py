from tidegate.core.batching import Candidate
from tidegate.core.ids import GroupId, LineageName, PolicyVersion, TrajectoryId
from tidegate.core.records import VersionSpan
from tidegate.core.staleness import Lineage, LineageTree
from tidegate.trajectory_store.residents import residents

LINEAGE = LineageName("0-a")
TREE = LineageTree().add(Lineage(name=LINEAGE))


def candidate(seq: int, *, step: int, started_at_s: float) -> Candidate:
    version = PolicyVersion(lineage=LINEAGE, step=step)
    return Candidate(
        seq=seq,
        trajectory_id=TrajectoryId(f"t-{seq}.0"),
        group_id=GroupId(f"g-{seq}"),
        group_size=1,
        spans=(VersionSpan(version, 0, 8),),
        started_at_s=started_at_s,
        frame_id=seq,
    )


def test_waiting_trajectories_are_counted_by_lag_in_every_bucket() -> None:
    waiting = [
        candidate(number, step=step, started_at_s=100.0 - number)
        for number, step in enumerate((20, 19, 17, 16, 11))
    ]
    found = residents(waiting, head=PolicyVersion(lineage=LINEAGE, step=20), tree=TREE, now_s=100.0)
    assert found.by_lag == {"0": 1, "1": 1, "2": 0, "3-4": 2, "5-8": 0, "over 8": 1}
    assert found.oldest_age_s == 4.0


def test_an_empty_store_has_nothing_old() -> None:
    found = residents([], head=PolicyVersion(lineage=LINEAGE, step=1), tree=TREE, now_s=100.0)
    assert set(found.by_lag.values()) == {0}
    assert found.oldest_age_s == 0.0
