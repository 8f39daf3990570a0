"""Restores, checkpoints and audits of a store that replays."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.unit.trajectory_store.building import state_of
from tests.unit.trajectory_store.replay.building import (
    BATCH,
    FORK,
    MAIN,
    at,
    commit,
    fork,
    held_by_checkpoint,
    insert,
    open_replay,
    replay_config,
    replay_of,
    replay_totals,
    sampled,
    started_replay,
    update,
    uses_of,
)
from tidegate.core.audit import LearnerTotals, replay_problems
from tidegate.core.errors import ConflictError
from tidegate.core.ids import LineageName
from tidegate.trajectory_store.replay.uses import encode_units
from tidegate.trajectory_store.store import Store


def test_updates_of_a_dead_branch_are_subtracted_and_unused_rows_are_resident_again(tmp_path: Path) -> None:
    store = started_replay(tmp_path)
    insert(store, 0)
    kept = update(store, at(0))
    insert(store, 1, 2)
    for step in (1, 2, 3):
        update(store, at(step))
    assert store.totals().trained == 3
    revived = fork(store, step=1)
    assert revived == 2
    assert [state_of(store, f"t-{index}.0")[0] for index in range(3)] == ["trained", "available", "available"]
    counted: Counter[int] = Counter(kept.ids.tolist())
    assert uses_of(store) == counted
    totals = replay_totals(store)
    assert (totals.sampled, totals.recounted) == (BATCH, BATCH)
    assert replay_of(store).limiter.sampled == BATCH
    batch = sampled(store, at(1, FORK), batch_size=24)
    assert {row.trajectory_id for row in batch.rows if row.is_unused} == {"t-1.0", "t-2.0"}
    commit(store, batch, at(1, FORK))
    assert store.totals().trained_twice == 0
    store.close()


def test_row_that_was_evicted_when_its_branch_died_is_superseded(tmp_path: Path) -> None:
    store = started_replay(tmp_path)
    insert(store, 0)
    update(store, at(0))
    insert(store, 1, 2, 3, 4)
    assert fork(store, step=0) == 0
    assert state_of(store, "t-0.0") == ("dropped", "superseded")
    store.close()


def test_leases_end_with_their_lineage_and_what_is_gone_meanwhile_is_unsampled(tmp_path: Path) -> None:
    store = started_replay(tmp_path)
    insert(store, 0)
    batch = sampled(store, at(0))
    insert(store, 1, 2, 3, 4)
    fork(store, step=0)
    assert state_of(store, "t-0.0") == ("dropped", "unsampled")
    with pytest.raises(ConflictError):
        commit(store, batch, at(0))
    assert replay_of(store).limiter.sampled == 0
    store.close()


def test_update_that_only_a_checkpoint_knows_is_counted_at_the_restore(tmp_path: Path) -> None:
    store = started_replay(tmp_path)
    insert(store, 0)
    first = update(store, at(0))
    insert(store, 1)
    second = sampled(store, at(1), batch_size=30)
    held = held_by_checkpoint(second, at(1))
    fork(store, step=2, held=[held])
    assert store.trajectory("t-0.0").trained_at == at(0)
    assert store.trajectory("t-1.0").trained_at == at(1)
    assert uses_of(store) == Counter([*first.ids.tolist(), *second.ids.tolist()])
    totals = replay_totals(store)
    assert (totals.sampled, totals.recounted, totals.lost_updates) == (BATCH + 30, BATCH + 30, 0)
    assert store.totals().trained_twice == 0
    # A restore that names it again changes nothing.
    fork(store, step=2, name=LineageName("2-cccc"), parent=FORK, held=[held])
    assert replay_totals(store).sampled == BATCH + 30
    store.close()


def test_abandoned_branch_that_comes_back_counts_again_after_its_blobs_were_folded(tmp_path: Path) -> None:
    store = started_replay(tmp_path)
    insert(store, 0, 1)
    counted: Counter[int] = Counter()
    for step in range(4):
        counted.update(update(store, at(step)).ids.tolist())
    fork(store, step=2)
    update(store, at(2, FORK))
    store.mark_checkpointed(at(3, FORK))
    # A checkpoint of the first branch at step 4 was written by a learner that had lost: the next one starts from it.
    fork(store, step=4, name=LineageName("2-cccc"), parent=MAIN)
    assert uses_of(store) == counted
    totals = replay_totals(store)
    assert (totals.sampled, totals.recounted) == (4 * BATCH, 4 * BATCH)
    store.close()


def test_checkpoint_of_an_abandoned_branch_folds_nothing_that_the_surviving_one_lost(tmp_path: Path) -> None:
    store = started_replay(tmp_path)
    insert(store, 0, 1)
    kept = [update(store, at(step)) for step in range(4)][:2]
    fork(store, step=2)
    counted: Counter[int] = Counter(unit for batch in kept for unit in batch.ids.tolist())
    store.mark_checkpointed(at(4))
    assert uses_of(store) == counted
    assert replay_totals(store).recounted == 2 * BATCH
    store.close()


def test_update_whose_lease_another_lineage_ended_is_counted_when_its_checkpoint_comes_back(
    tmp_path: Path,
) -> None:
    store = started_replay(tmp_path)
    insert(store, 0, 1)
    update(store, at(0))
    lost = sampled(store, at(1))
    fork(store, step=1)
    assert replay_totals(store).sampled == BATCH
    # The learner of the first branch had trained it and written a checkpoint before it knew that it had lost.
    fork(store, step=2, name=LineageName("2-cccc"), parent=MAIN, held=[held_by_checkpoint(lost, at(1))])
    totals = replay_totals(store)
    assert (totals.sampled, totals.recounted, totals.lost_updates) == (2 * BATCH, 2 * BATCH, 0)
    assert sum(uses_of(store).values()) == 2 * BATCH
    store.close()


def test_overuse_is_found_even_when_the_trajectory_is_evicted(tmp_path: Path) -> None:
    store = started_replay(tmp_path, replay_config(uses_max=2))
    insert(store, 0)
    unit = update(store, at(0), batch_size=1).ids
    held = sampled(store, at(1), batch_size=int(replay_of(store).buffer.drawable))
    plant_update(store, 0, unit)
    insert(store, 1, 2, 3, 4)
    store.mark_checkpointed(at(1))
    assert replay_totals(store).overused == 0
    # The batch that was held when its trajectory was evicted is the third use.
    commit(store, held, at(1))
    assert replay_totals(store).overused == 1
    store.mark_checkpointed(at(9))
    assert num_blobs(store) == 0
    assert replay_totals(store).overused == 1
    store.close()


def plant_update(store: Store, step: int, ids: NDArray[np.int64]) -> None:
    """An update that no learner made."""
    store.ledger.connection.execute(
        "INSERT INTO batches (batch_id, state, lineage, step, learner_id, leased_at_s, num_samples, units)"
        " VALUES (?, 'committed', ?, ?, '', 0, ?, ?)",
        (f"planted-{step}", MAIN, step, len(ids), encode_units(ids)),
    )


def test_planted_extra_use_and_lost_blob_are_found(tmp_path: Path) -> None:
    store = started_replay(tmp_path)
    insert(store, 0, 1)
    for step in range(3):
        update(store, at(step))
    learner = LearnerTotals(at(3), 3 * BATCH)
    assert replay_problems(replay_totals(store, at(3)), learner) == []
    plant_update(store, 2, sampled(store, at(3)).ids[:1])
    (problem,) = replay_problems(replay_totals(store, at(3)), learner)
    assert problem == "the learner drew 12 units before 0-aaaa@3 and the ledger has 13"
    store.ledger.connection.execute("UPDATE batches SET units = NULL WHERE step = 1")
    problems = replay_problems(replay_totals(store, at(3)), None)
    assert problems == [
        "1 updates are committed without the units that they used",
        "updates used 13 units and 9 uses are counted by unit",
    ]
    store.ledger.connection.execute("DELETE FROM batches WHERE batch_id LIKE 'planted%' OR step = 1")
    (problem,) = replay_problems(replay_totals(store, at(3)), learner)
    assert problem == "the learner drew 12 units before 0-aaaa@3 and the ledger has 8"
    store.close()


def test_priority_that_is_not_finite_is_refused_and_counted_for_ever(tmp_path: Path) -> None:
    config = replay_config(selector="prioritised")
    store = started_replay(tmp_path, config)
    insert(store, 0)
    batch = sampled(store, at(0))
    report = commit(store, batch, at(0), priorities=[float("nan"), 1.0, float("inf"), -1.0]).priorities
    assert (report.num_refused, report.num_set) == (3, 1)
    store.close()
    store = open_replay(tmp_path, config)
    assert replay_totals(store).priorities_refused == 3
    store.close()


def test_checkpoint_folds_blobs_into_counts_that_say_the_same(tmp_path: Path) -> None:
    store = started_replay(tmp_path)
    insert(store, 0, 1, 2, 3)
    for step in range(6):
        update(store, at(step))
    uses, before = uses_of(store), replay_totals(store)
    assert num_blobs(store) == 6
    store.mark_checkpointed(at(4))
    assert num_blobs(store) == 2
    assert replay_totals(store) == before
    store.close()
    store = open_replay(tmp_path)
    assert uses_of(store) == uses
    # Evicted trajectories keep the sum of their uses alone.
    insert(store, 4, 5, 6, 7)
    update(store, at(6))
    store.mark_checkpointed(at(7))
    (num_counts,) = store.ledger.connection.execute(
        "SELECT count(*) FROM folded_uses WHERE counts IS NOT NULL AND seq <= 4"
    ).fetchone()
    assert num_counts == 0
    totals = replay_totals(store)
    assert (totals.sampled, totals.recounted, num_blobs(store)) == (7 * BATCH, 7 * BATCH, 0)
    store.close()


def num_blobs(store: Store) -> int:
    (count,) = store.ledger.connection.execute(
        "SELECT count(*) FROM batches WHERE units IS NOT NULL"
    ).fetchone()
    return count
