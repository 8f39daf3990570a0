"""Leases, commits, releases and drops."""

import errno
import os
from pathlib import Path

import msgspec
import pytest

from tests.unit.trajectory_store.building import (
    LIMITS,
    NOW_S,
    accept,
    at,
    commit,
    consumed,
    lease,
    leased,
    make_group,
    make_trajectory,
    message_of,
    open_store,
    started_store,
    state_of,
)
from tidegate.core.errors import (
    ConflictError,
    NotFoundError,
    RecordError,
    UnavailableError,
)
from tidegate.core.ids import LineageName, TrajectoryId
from tidegate.trajectory_store.config import TrajectoryStoreConfig
from tidegate.trajectory_store.store import Store
from tidegate.wire.clients.trajectory_store import Dropped


def test_batch_streams_each_frame_once_and_names_its_trajectories(store: Store) -> None:
    store.ingest([message_of(make_trajectory("t-1"), make_trajectory("t-2"))], now_s=NOW_S)
    first = leased(store, 0)
    assert (len(first.frames), first.trajectory_ids) == (1, ["t-1.0"])
    assert leased(store, 1).trajectory_ids == ["t-2.0"]


def test_two_learners_that_ask_at_one_version_get_different_batches(store: Store) -> None:
    accept(store, "t-1", "t-2")
    batches = [
        store.lease(at(0), batch_size=1, limits=LIMITS, learner_id=learner, now_s=NOW_S)
        for learner in ("rank-0", "rank-1", "rank-0")
    ]
    assert [batch.trajectory_ids if batch else None for batch in batches] == [["t-1.0"], ["t-2.0"], ["t-1.0"]]


def test_batch_that_expired_while_its_answer_was_lost_is_not_leased_again(store: Store) -> None:
    accept(store, "t-1")
    leased(store, 0)
    assert lease(store, at(0), now_s=NOW_S + LIMITS.max_age_s + 1) is None
    assert state_of(store, "t-1.0") == ("dropped", "expired")


def test_trajectory_beyond_the_budget_is_never_leased(store: Store) -> None:
    accept(store, "t-1", step=0)
    accept(store, "t-2", step=1)
    batch = leased(store, LIMITS.max_lag + 1)
    assert batch.trajectory_ids == ["t-2.0"]
    assert state_of(store, "t-1.0") == ("dropped", "stale")


def test_expiry_uses_the_newest_known_version(store: Store) -> None:
    accept(store, "t-1", "t-2")
    assert store.expire(LIMITS, now_s=NOW_S) == 0
    store.ledger.note_head(at(99, LineageName("unheard-of")))
    assert store.expire(LIMITS, now_s=NOW_S) == 0
    store.ledger.note_head(at(LIMITS.max_lag + 1))
    assert store.expire(LIMITS, now_s=NOW_S) == 2
    assert store.totals().dropped == {"stale": 2}


def test_commit_again_changes_nothing(store: Store) -> None:
    accept(store, "t-1")
    batch = leased(store, 0)
    commit(store, batch, 0)
    before = store.totals()
    commit(store, batch, 0)
    assert store.totals() == before
    with pytest.raises(ConflictError, match="committed at 0-aaaa@0"):
        commit(store, batch, 1)


def test_commit_records_the_larger_of_the_two_counts_of_lag(store: Store) -> None:
    accept(store, "t-1", "t-2", step=0)
    commit(store, leased(store, 3), 3, lag=0)
    commit(store, leased(store, 4), 4, lag=4)
    totals = store.totals()
    assert totals.trained_by_lag == {3: 1, 4: 1}
    assert totals.max_lag_trained == 4


def test_commit_that_does_not_name_its_batch_is_refused(store: Store) -> None:
    accept(store, "t-1", "t-2")
    batch = leased(store, 0, batch_size=2)
    for names in (batch.trajectory_ids[:1], [*batch.trajectory_ids, TrajectoryId("t-9.0")]):
        with pytest.raises(RecordError, match="trained whole"):
            store.commit(batch.batch_id, version=at(0), consumptions=consumed(names), now_s=NOW_S)
    assert store.totals().leased == 2


def test_commit_of_an_unleased_batch_is_refused(store: Store) -> None:
    with pytest.raises(ConflictError, match="never leased"):
        store.commit("0-aaaa@0#99", version=at(0), consumptions=(), now_s=NOW_S)


def test_released_batch_is_available_again_and_cannot_be_committed(store: Store) -> None:
    accept(store, "t-1")
    batch = leased(store, 0)
    store.release(batch.batch_id, dropped=(), now_s=NOW_S)
    store.release(batch.batch_id, dropped=(), now_s=NOW_S)
    with pytest.raises(ConflictError, match="released"):
        commit(store, batch, 0)
    again = leased(store, 0)
    assert again.batch_id != batch.batch_id
    commit(store, again, 0)
    with pytest.raises(ConflictError, match="was committed"):
        store.release(again.batch_id, dropped=(), now_s=NOW_S)
    with pytest.raises(NotFoundError):
        store.release("0-aaaa@0#99", dropped=(), now_s=NOW_S)


def test_release_that_drops_a_member_drops_its_group(store: Store) -> None:
    store.ingest([message_of(*make_group("t-1", 2)), message_of(*make_group("t-2", 2))], now_s=NOW_S)
    batch = leased(store, 0, batch_size=4)
    store.release(batch.batch_id, dropped=[Dropped(TrajectoryId("t-1.1"), "stale", "too far")], now_s=NOW_S)
    assert state_of(store, "t-1.0") == ("dropped", "stale")
    assert store.trajectory("t-1.0").detail == "its group lost t-1.1: too far"
    assert leased(store, 0, batch_size=2).trajectory_ids == ["t-2.0", "t-2.1"]


def test_release_may_drop_only_what_the_batch_holds_and_for_a_known_reason(store: Store) -> None:
    accept(store, "t-1", "t-2")
    batch = leased(store, 0)
    with pytest.raises(RecordError, match="not in it"):
        store.release(batch.batch_id, dropped=[Dropped(TrajectoryId("t-2.0"), "stale")], now_s=NOW_S)
    bored = Dropped(TrajectoryId("t-1.0"), "bored")  # pyright: ignore[reportArgumentType]  # that is the point
    with pytest.raises(RecordError, match="bored"):
        store.release(batch.batch_id, dropped=[bored], now_s=NOW_S)
    assert store.totals().leased == 1


def test_lost_payload_is_dropped_with_its_group_and_the_batch_uses_others(tmp_path: Path) -> None:
    store = started_store(tmp_path, config=TrajectoryStoreConfig(frame_cache_bytes=0, segment_bytes=1))
    for task in ("t-1", "t-2"):
        store.ingest([message_of(*make_group(task, 2))], now_s=NOW_S)
    (tmp_path / "segments" / "00000001.frames").write_bytes(b"")
    assert leased(store, 0, batch_size=2).trajectory_ids == ["t-2.0", "t-2.1"]
    assert store.totals().dropped == {"failed": 2}
    store.close()


def test_payload_that_cannot_be_read_at_the_moment_is_leased_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = started_store(tmp_path, config=TrajectoryStoreConfig(frame_cache_bytes=0))
    accept(store, "t-1")

    def refuse(path: Path, _flags: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files", str(path))

    with monkeypatch.context() as without_descriptors:
        without_descriptors.setattr(os, "open", refuse)
        with pytest.raises(UnavailableError, match="Too many open files"):
            lease(store, at(0))
    assert leased(store, 0).trajectory_ids == ["t-1.0"]
    store.close()


def test_payloads_lost_in_a_power_cut_are_dropped_at_the_start(tmp_path: Path) -> None:
    config = TrajectoryStoreConfig(segment_bytes=1)
    store = started_store(tmp_path, config=config)
    accept(store, "t-1")
    accept(store, "t-2")
    store.close()
    (tmp_path / "segments" / "00000001.frames").unlink()
    store = open_store(tmp_path, config=config)
    assert state_of(store, "t-1.0") == ("dropped", "failed")
    assert leased(store, 0).trajectory_ids == ["t-2.0"]
    store.close()


def test_lease_survives_the_store_and_can_be_committed_at_the_next_one(tmp_path: Path) -> None:
    store = started_store(tmp_path)
    accept(store, "t-1", step=5)
    batch = leased(store, 7)
    store.close()
    store = open_store(tmp_path)
    assert store.ledger.head == at(7)
    commit(store, batch, 7)
    assert store.ledger.head == at(8)
    assert store.totals().trained == 1
    store.close()


@pytest.mark.parametrize("ahead_s", [0.0, 0.5, 3600.0])
def test_clock_of_an_actor_that_is_ahead_makes_nothing_younger(store: Store, ahead_s: float) -> None:
    # It took a second and arrived when it ended.
    ahead = make_trajectory("t-1", started_at_s=NOW_S - 1.0 + ahead_s)
    store.ingest([message_of(ahead, received_at_s=NOW_S)], now_s=NOW_S)
    old_s = NOW_S + LIMITS.max_age_s
    assert lease(store, at(0), now_s=old_s - 0.5) is None
    batch = lease(store, at(0), now_s=NOW_S + 2.0)
    assert batch is None, "it was dropped, as the age says"


def test_clock_that_was_set_back_during_a_rollout_makes_nothing_younger(store: Store) -> None:
    record = make_trajectory("t-1", started_at_s=NOW_S - 1.0)
    begun_ahead = msgspec.structs.replace(record, started_at_s=NOW_S + 3600.0)
    store.ingest([message_of(begun_ahead, received_at_s=NOW_S)], now_s=NOW_S)
    assert lease(store, at(0), now_s=NOW_S + LIMITS.max_age_s + 1.0) is None


def test_batch_is_sent_with_the_age_of_each_trajectory_also_when_it_is_sent_again(store: Store) -> None:
    store.ingest([message_of(make_trajectory("t-1", started_at_s=NOW_S - 1.0))], now_s=NOW_S)
    for now_s in (NOW_S + 2.0, NOW_S + 5.0):
        batch = lease(store, at(0), now_s=now_s)
        assert batch is not None
        assert batch.ages_s == [now_s - NOW_S + 1.0]
