"""Batches of past updates, read from a ledger and the payloads beside it."""

from pathlib import Path

import numpy as np
import pytest

from tests.unit.trajectory_store.building import (
    FORK,
    LIMITS,
    NOW_S,
    accept,
    at,
    commit,
    consumed,
    fork,
    leased,
    make_trajectory,
    started_store,
)
from tidegate.core.errors import CorruptionError, NotFoundError
from tidegate.trajectory_store.config import TrajectoryStoreConfig
from tidegate.trajectory_store.kept_updates import open_updates
from tidegate.trajectory_store.segments import segment_path
from tidegate.trajectory_store.store import Store


def train(store: Store, *, updates: int) -> None:
    for step in range(updates):
        accept(store, f"t-{2 * step + 1}", f"t-{2 * step}", step=step)
        commit(store, leased(store, step, batch_size=2), step, lag=step % 2)


def test_batch_is_in_the_learners_order_with_its_lags_and_tensors(store: Store) -> None:
    train(store, updates=3)
    with open_updates(store.ledger_path) as updates:
        assert updates.newest() == at(3)
        assert updates.path_to(at(3)) == [at(0), at(1), at(2)]
        batch = updates.batch(at(1))
        names = [trajectory.task_id for trajectory in batch.trajectories]
        assert (names, batch.lags) == (["t-2", "t-3"], [1, 1])
        np.testing.assert_array_equal(batch.trajectories[0].tensors["tokens"], np.arange(4))
        assert updates.update_of(make_trajectory("t-4").trajectory_id) == at(2)


def test_path_leads_through_the_fork_and_the_abandoned_branch_is_refused(store: Store) -> None:
    train(store, updates=3)
    fork(store, step=1)
    again = store.lease(at(1, FORK), batch_size=2, limits=LIMITS, learner_id="learner-1", now_s=NOW_S)
    assert again is not None
    store.commit(
        again.batch_id, version=at(1, FORK), consumptions=consumed(again.trajectory_ids), now_s=NOW_S
    )
    with open_updates(store.ledger_path) as updates:
        assert updates.newest() == at(2, FORK)
        assert updates.path_to(at(2, FORK)) == [at(0), at(1, FORK)]
        assert len(updates.batch(at(1, FORK)).trajectories) == 2
        with pytest.raises(NotFoundError, match="abandoned"):
            updates.path_to(at(3))


def test_version_that_no_update_made_yet_is_refused_before_its_path_is_listed(store: Store) -> None:
    train(store, updates=2)
    with open_updates(store.ledger_path) as updates:
        assert updates.path_to(at(2)) == [at(0), at(1)]
        with pytest.raises(NotFoundError, match=r"the newest is .*@2"):
            updates.path_to(at(2**61))


def test_run_without_an_update_says_so(store: Store) -> None:
    with open_updates(store.ledger_path) as updates, pytest.raises(NotFoundError, match="no update"):
        updates.newest()


def test_trajectory_that_no_update_used_is_named(store: Store) -> None:
    accept(store, "t-0")
    with open_updates(store.ledger_path) as updates, pytest.raises(NotFoundError, match=r"t-0\.0"):
        updates.update_of(make_trajectory("t-0").trajectory_id)


def test_damaged_payload_is_refused(store: Store) -> None:
    train(store, updates=1)
    path = segment_path(store.ledger_path.parent / "segments", 1)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with open_updates(store.ledger_path) as updates, pytest.raises(CorruptionError):
        updates.batch(at(0))


@pytest.mark.parametrize(("replayable_bytes_max", "num_left"), [(0, 1), (10**9, 5)])
def test_payloads_that_a_checkpoint_made_superfluous_stay_as_far_as_the_setting_goes(
    tmp_path: Path, replayable_bytes_max: int, num_left: int
) -> None:
    store = started_store(
        tmp_path,
        config=TrajectoryStoreConfig(segment_bytes=1, replayable_bytes_max=replayable_bytes_max),
    )
    for step in range(5):
        accept(store, f"t-{step}", step=step)
        commit(store, leased(store, step), step)
    store.mark_checkpointed(at(5))
    kept = 5 - num_left
    with open_updates(store.ledger_path) as updates:
        for step in range(kept):
            with pytest.raises(NotFoundError) as refused:
                updates.batch(at(step))
            assert "replayable_bytes_max" in refused.value.fix
        for step in range(kept, 5):
            assert len(updates.batch(at(step)).trajectories) == 1
    store.close()
