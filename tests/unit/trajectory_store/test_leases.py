"""Leases end by themselves: a learner that went away gives its trajectories back, a living one never loses them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.trajectory_store.building import (
    LIMITS,
    NOW_S,
    accept,
    at,
    commit,
    leased,
    open_store,
    state_of,
)
from tests.unit.trajectory_store.replay.building import insert, replay_of, sampled, started_replay
from tidegate.core.errors import ConflictError
from tidegate.runtime.clock import Clock
from tidegate.trajectory_store import servicer
from tidegate.trajectory_store.config import TrajectoryStoreConfig
from tidegate.trajectory_store.lease_deadlines import LeaseDeadlines
from tidegate.trajectory_store.replay.sampled_batches import SampledCommit
from tidegate.trajectory_store.servicer import TrajectoryStoreServicer
from tidegate.trajectory_store.state import BatchLease
from tidegate.trajectory_store.store import Batch, Store
from tidegate.v1.trajectory_store_service_pb2 import LeaseBatchRequest
from tidegate.wire.convert import version_to_proto

TIMEOUT_S = TrajectoryStoreConfig().lease_timeout_s
PERIOD_S = TrajectoryStoreConfig().expiry_period_s


def pass_time(store: Store, *, from_s: float, seconds: float) -> list[BatchLease]:
    """The store looks once a period."""
    ended: list[BatchLease] = []
    for look in range(int(seconds / PERIOD_S) + 1):
        ended += store.expire_leases(monotonic_s=from_s + look * PERIOD_S, now_s=NOW_S)
    return ended


def leased_by_a_stranger(store: Store) -> Batch:
    batch = store.lease(at(0), batch_size=2, limits=LIMITS, learner_id="stranger", now_s=NOW_S)
    assert batch is not None
    return batch


def test_batch_of_a_learner_that_went_away_is_available_again(store: Store) -> None:
    accept(store, "t-1", "t-2")
    stolen = leased_by_a_stranger(store)
    assert pass_time(store, from_s=0.0, seconds=TIMEOUT_S) == []
    (ended,) = pass_time(store, from_s=TIMEOUT_S + PERIOD_S, seconds=0.0)
    assert ended.learner_id == "stranger"
    assert (store.totals().available, store.totals().leased) == (2, 0)
    assert store.ledger.tally.leases_expired == 1
    assert sorted(leased(store, 0, batch_size=2).trajectory_ids) == sorted(stolen.trajectory_ids)


def test_lease_that_is_renewed_outlives_any_update(store: Store) -> None:
    accept(store, "t-1")
    batch = leased(store, 0)
    for minute in range(10):
        assert pass_time(store, from_s=60.0 * minute, seconds=TIMEOUT_S - PERIOD_S) == []
        assert store.renew([batch.batch_id], learner_id="learner-0") == []
    commit(store, batch, 0)
    assert state_of(store, "t-1.0") == ("trained", "")


async def test_lease_lives_while_its_learner_reads_the_batch_over_a_slow_network(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only with the last chunk does the learner know what it holds."""
    monkeypatch.setattr(servicer, "FIRST_CHUNK_BYTES", 64)
    monkeypatch.setattr(servicer, "CHUNK_BYTES", 64)
    accept(store, "t-1")
    request = LeaseBatchRequest(
        version=version_to_proto(at(0)), batch_size=1, max_lag=4, max_age_s=60.0, learner_id="learner-0"
    )
    clock = cast("Clock", SimpleNamespace(monotonic_s=lambda: 0.0, now_s=lambda: NOW_S))
    serving = TrajectoryStoreServicer(store, clock, budget=lambda: LIMITS)
    num_chunks = 0
    async for _ in serving.LeaseBatch(request, cast("Any", None)):
        now_s, num_chunks = 60.0 * num_chunks, num_chunks + 1
        assert pass_time(store, from_s=now_s, seconds=TIMEOUT_S - PERIOD_S) == []
    assert num_chunks > 2
    assert store.totals().leased == 1


def test_lease_is_renewed_by_its_learner_only(store: Store) -> None:
    accept(store, "t-1")
    batch = leased(store, 0)
    assert store.renew([batch.batch_id, "unheard-of"], learner_id="stranger") == [
        batch.batch_id,
        "unheard-of",
    ]


def test_commit_after_the_lease_expired_is_refused_whole(store: Store) -> None:
    accept(store, "t-1", "t-2")
    late = leased(store, 0, batch_size=2)
    pass_time(store, from_s=0.0, seconds=TIMEOUT_S + 2 * PERIOD_S)
    with pytest.raises(ConflictError, match="lease_timeout_s"):
        commit(store, late, 0)
    assert (store.totals().available, store.totals().trained) == (2, 0)
    again = leased(store, 0, batch_size=2)
    commit(store, again, 0)
    with pytest.raises(ConflictError):
        commit(store, late, 0)
    assert (store.totals().trained, store.totals().trained_twice) == (2, 0)


def test_committed_batch_is_still_held(store: Store) -> None:
    accept(store, "t-1")
    batch = leased(store, 0)
    commit(store, batch, 0)
    assert store.renew([batch.batch_id], learner_id="learner-0") == []


def test_leases_have_their_whole_time_again_after_a_restart_of_the_store(
    store: Store, tmp_path: Path
) -> None:
    accept(store, "t-1")
    batch = leased(store, 0)
    pass_time(store, from_s=0.0, seconds=TIMEOUT_S)
    store.close()
    reopened = open_store(tmp_path)
    try:
        assert pass_time(reopened, from_s=10_000.0, seconds=TIMEOUT_S) == []
        assert len(pass_time(reopened, from_s=10_000.0 + TIMEOUT_S, seconds=2 * PERIOD_S)) == 1
        assert reopened.ledger.tally.leases_expired == 1
        with pytest.raises(ConflictError):
            commit(reopened, batch, 0)
    finally:
        reopened.close()


def test_time_in_which_the_store_stood_still_does_not_count() -> None:
    deadlines = LeaseDeadlines(timeout_s=10.0, period_s=1.0)
    assert deadlines.overdue(["a"], now_s=0.0) == []
    # Suspended for an hour: no learner could have renewed anything.
    assert deadlines.overdue(["a"], now_s=3600.0) == []
    assert [deadlines.overdue(["a"], now_s=3600.0 + second) for second in range(1, 9)][-1] == ["a"]


def test_ended_leases_are_forgotten() -> None:
    deadlines = LeaseDeadlines(timeout_s=1.0, period_s=1.0)
    deadlines.overdue(["a"], now_s=0.0)
    deadlines.overdue([], now_s=5.0)
    assert deadlines.overdue(["a"], now_s=6.0) == []


def test_units_of_a_learner_that_went_away_may_be_drawn_again(tmp_path: Path) -> None:
    store = started_replay(tmp_path)
    try:
        insert(store, 0, 1)
        stolen = sampled(store, at(0))
        assert store.totals().leased > 0
        assert len(pass_time(store, from_s=0.0, seconds=TIMEOUT_S + 2 * PERIOD_S)) == 1
        assert (store.totals().leased, store.totals().available) == (0, 2)
        assert replay_of(store).limiter.sampled == 0
        with pytest.raises(ConflictError, match="lease_timeout_s"):
            replay_of(store).commit(
                stolen.batch_id,
                version=at(0),
                sampled=SampledCommit(stolen.ids, 0),
                priorities=None,
                consumptions=(),
                now_s=NOW_S,
            )
        assert sampled(store, at(0)).batch_id != stolen.batch_id
    finally:
        store.close()
