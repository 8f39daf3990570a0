import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kubernetes_memory import MemoryApi
from tidegate.admission.kubernetes.access import Access
from tidegate.admission.kubernetes.lease import Election, ObservedLease, may_take
from tidegate.admission.kubernetes.objects import LeaseSpec
from tidegate.core.errors import NotFoundError
from tidegate.runtime.kubernetes_api import Api

WALL_S = 1_700_000_000.0


LEASE = "/apis/coordination.k8s.io/v1/namespaces/rl/leases/t-admission-leader"
LABELS = {"app.kubernetes.io/instance": "t"}


def access(identity: str) -> Access:
    return Access("rl", identity, "t", ("t-actor",), "t-admission-leader", "")


def cluster() -> MemoryApi:
    """With the Lease as the chart makes it: labels, and no holder."""
    api = MemoryApi()
    api.objects[LEASE] = {
        "metadata": {
            "name": "t-admission-leader",
            "namespace": "rl",
            "resourceVersion": "0",
            "labels": LABELS,
        }
    }
    return api


def test_a_lease_is_taken_when_it_is_free_ours_or_was_silent_for_its_time() -> None:
    held = ObservedLease(LeaseSpec(holder_identity="a", lease_duration_seconds=20), at_s=100.0)
    assert may_take(held, identity="a", now_s=101.0)
    assert not may_take(held, identity="b", now_s=119.0)
    assert may_take(held, identity="b", now_s=121.0)
    assert may_take(ObservedLease(LeaseSpec(), at_s=100.0), identity="b", now_s=100.0)


@given(
    moves=st.lists(
        st.tuples(st.sampled_from(["a", "b", "c"]), st.floats(0.0, 15.0), st.booleans()), max_size=60
    )
)
async def test_never_do_two_lead_at_once(moves: list[tuple[str, float, bool]]) -> None:
    store = cluster()
    elections = {name: Election(Api(store), access(name), lease_s=20) for name in "abc"}
    now_s = 0.0
    for name, gap_s, releases in moves:
        now_s += gap_s
        if releases:
            if elections[name].leads(now_s=now_s):
                await elections[name].release(wall_s=WALL_S + now_s)
        else:
            await elections[name].renew(now_s=now_s, wall_s=WALL_S + now_s)
        assert sum(election.leads(now_s=now_s) for election in elections.values()) <= 1


async def test_a_leader_that_fell_silent_is_followed_and_one_that_ended_at_once() -> None:
    store = cluster()
    first, second = (Election(Api(store), access(name), lease_s=20) for name in "ab")
    assert await first.renew(now_s=0.0, wall_s=WALL_S)
    assert not await second.renew(now_s=1.0, wall_s=WALL_S)
    assert not await second.renew(now_s=20.0, wall_s=WALL_S)
    assert await second.renew(now_s=22.0, wall_s=WALL_S)
    assert not first.leads(now_s=22.0)
    assert not await first.renew(now_s=23.0, wall_s=WALL_S)
    await second.release(wall_s=WALL_S)
    assert await first.renew(now_s=24.0, wall_s=WALL_S)


async def test_the_lease_stays_an_object_of_the_release_and_no_other_is_made() -> None:
    store = cluster()
    election = Election(Api(store), access("a"), lease_s=20)
    assert await election.renew(now_s=0.0, wall_s=WALL_S)
    assert store.objects[LEASE]["metadata"]["labels"] == LABELS
    assert store.objects[LEASE]["spec"]["holderIdentity"] == "a"
    del store.objects[LEASE]
    with pytest.raises(NotFoundError):
        await election.renew(now_s=1.0, wall_s=WALL_S)
    assert store.objects == {}


async def test_a_leader_that_cannot_renew_stops_acting_before_another_may_start() -> None:
    election = Election(Api(cluster()), access("a"), lease_s=20)
    await election.renew(now_s=0.0, wall_s=WALL_S)
    assert election.leads(now_s=12.0)
    assert not election.leads(now_s=12.1)
