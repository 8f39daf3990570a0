"""Restores, and the payloads that are kept for them."""

from pathlib import Path

import pytest

from tests.unit.trajectory_store.building import (
    FORK,
    LIMITS,
    MAIN,
    NOW_S,
    accept,
    at,
    commit,
    consumed,
    counted,
    fork,
    lease,
    leased,
    make_trajectory,
    message_of,
    open_store,
    started_store,
    state_of,
)
from tidegate.core.errors import (
    ConflictError,
    RecordError,
    UnknownVersionError,
)
from tidegate.core.ids import LineageName, PolicyVersion, TrajectoryId
from tidegate.core.staleness import Fresh, Lineage
from tidegate.trajectory_store import ledger
from tidegate.trajectory_store.config import TrajectoryStoreConfig
from tidegate.trajectory_store.store import Store
from tidegate.wire.clients.trajectory_store import ConsumedBatch, Consumption


def test_lease_needs_an_open_lineage(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(UnknownVersionError, match="never opened"):
        lease(store, at(0))
    store.close()


def test_fork_keeps_updates_below_its_step_and_revives_the_others(store: Store) -> None:
    for step, task in enumerate(("t-1", "t-2", "t-3")):
        accept(store, task, step=step)
        commit(store, leased(store, step), step)
    assert fork(store, step=1) == 2
    assert state_of(store, "t-1.0") == ("trained", "")
    assert state_of(store, "t-2.0") == ("available", "")
    assert state_of(store, "t-3.0") == ("available", "")
    assert store.totals().revived == 2


def test_lineage_whose_opening_fails_at_its_end_was_not_opened(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the store would take commits of leases that its file does not have any more."""
    accept(store, "t-1", "t-2")
    commit(store, leased(store, 0), 0)
    batch = leased(store, 1)

    def fail(_db: object) -> None:
        raise MemoryError

    with monkeypatch.context() as failing:
        failing.setattr(ledger, "load_memory", fail)
        with pytest.raises(MemoryError):
            fork(store, step=0)
    assert store.totals() == counted(store.ledger_path)
    commit(store, batch, 1)
    assert fork(store, step=0) == 2
    assert store.totals() == counted(store.ledger_path)


def test_revived_trajectory_is_trained_once_in_the_surviving_lineage(store: Store) -> None:
    accept(store, "t-1")
    commit(store, leased(store, 0), 0)
    fork(store, step=0)
    batch = store.lease(at(0, FORK), batch_size=1, limits=LIMITS, learner_id="learner-1", now_s=NOW_S)
    assert batch is not None
    store.commit(
        batch.batch_id, version=at(0, FORK), consumptions=consumed(batch.trajectory_ids), now_s=NOW_S
    )
    totals = store.totals()
    assert (totals.trained, totals.trained_twice) == (1, 0)
    assert store.trajectory("t-1.0").trained_at == at(0, FORK)


def test_restore_to_a_newer_checkpoint_after_one_to_an_older_one_trains_nothing_twice(store: Store) -> None:
    accept(store, "t-1", "t-2")
    commit(store, leased(store, 0), 0)
    assert fork(store, step=0) == 1
    batch = store.lease(at(0, FORK), batch_size=2, limits=LIMITS, learner_id="l", now_s=NOW_S)
    assert batch is not None
    store.commit(
        batch.batch_id, version=at(0, FORK), consumptions=consumed(batch.trajectory_ids), now_s=NOW_S
    )
    second = Lineage(name=LineageName("2-cccc"), parent=MAIN, fork_step=1)
    assert store.open_lineage(second, learner_id="learner-2", consumed=(), now_s=NOW_S) == 1
    assert store.trajectory("t-1.0").trained_at == at(0)
    assert state_of(store, "t-2.0") == ("available", "")
    assert (store.totals().trained, store.totals().trained_twice) == (1, 0)


def test_two_uses_in_one_surviving_lineage_are_counted_against_the_promise(store: Store) -> None:
    accept(store, "t-1")
    commit(store, leased(store, 0), 0)
    store.ledger.connection.execute("INSERT INTO uses VALUES (1, ?, 5, 0, 0, 0.0, 1)", (MAIN,))
    assert store.totals().trained_twice == 1
    fork(store, step=3)
    assert store.totals().trained_twice == 0


def test_update_that_a_checkpoint_holds_counts_though_its_commit_never_came(store: Store) -> None:
    accept(store, "t-1", "t-2")
    batch = leased(store, 0)
    held = ConsumedBatch(batch.batch_id, at(0), consumed(batch.trajectory_ids, lag=0))
    fork(store, step=1, held=[held])
    fork(store, step=1, held=[held])
    assert state_of(store, "t-1.0") == ("trained", "")
    assert store.trajectory("t-1.0").trained_at == at(0)
    assert (store.totals().trained, store.totals().available, store.totals().leased) == (1, 1, 0)
    store.commit(batch.batch_id, version=at(0), consumptions=held.consumptions, now_s=NOW_S)


def test_update_of_a_checkpoint_on_rows_the_ledger_lost_keeps_them_from_being_trained_again(
    store: Store,
) -> None:
    verdict = Fresh(lag=2, span=0, age_s=1.0)
    held = ConsumedBatch("0-aaaa@0#1", at(0), [Consumption(TrajectoryId("t-1.0"), verdict)])
    fork(store, step=1, held=[held])
    accept(store, "t-1")
    assert state_of(store, "t-1.0") == ("trained", "")
    assert store.totals().duplicates == 1


@pytest.mark.parametrize(
    "versions",
    [
        pytest.param([at(0), at(1)], id="two updates of one trajectory"),
        pytest.param([at(0), at(0)], id="one trajectory in two batches"),
        pytest.param([at(5)], id="an update that the fork lost"),
        pytest.param([at(0, FORK)], id="an update of the lineage that is opened"),
        pytest.param([at(0, LineageName("9-dead"))], id="an update of an unknown lineage"),
    ],
)
def test_checkpoint_with_updates_that_its_branch_cannot_have_is_refused_and_changes_nothing(
    store: Store, versions: list[PolicyVersion]
) -> None:
    accept(store, "t-1")
    held = [
        ConsumedBatch(f"forged-{number}", version, consumed([TrajectoryId("t-1.0")]))
        for number, version in enumerate(versions)
    ]
    with pytest.raises(RecordError):
        fork(store, step=5, held=held)
    assert (store.totals().trained, store.totals().available, store.totals().trained_twice) == (0, 1, 0)
    assert list(store.tree.lineages) == [MAIN]


def test_checkpoint_with_units_of_replay_is_refused_by_a_store_without_it(store: Store) -> None:
    accept(store, "t-1")
    held = [ConsumedBatch("forged", at(0), [], units={TrajectoryId("t-1.0"): [0]})]
    with pytest.raises(RecordError, match="without replay"):
        fork(store, step=5, held=held)
    assert list(store.tree.lineages) == [MAIN]


def test_checkpoint_that_names_a_trajectory_of_another_update_is_refused(store: Store) -> None:
    accept(store, "t-1")
    commit(store, leased(store, 0), 0)
    forged = ConsumedBatch("forged", at(1), consumed([TrajectoryId("t-1.0")]))
    with pytest.raises(ConflictError, match=r"t-1\.0 was trained at 0-aaaa@0"):
        fork(store, step=5, held=[forged])
    assert (store.totals().trained, store.totals().trained_twice) == (1, 0)
    # A branch without that update may use it.
    first = Lineage(name=LineageName("2-cccc"), parent=MAIN, fork_step=0)
    store.open_lineage(first, learner_id="learner-2", consumed=(), now_s=NOW_S)
    assert state_of(store, "t-1.0") == ("available", "")


def test_learner_of_a_closed_lineage_is_refused(store: Store) -> None:
    accept(store, "t-1")
    batch = leased(store, 0)
    fork(store, step=0)
    with pytest.raises(ConflictError):
        commit(store, batch, 0)
    with pytest.raises(ConflictError, match="closed"):
        lease(store, at(0))
    with pytest.raises(ConflictError, match="closed"):
        store.open_lineage(Lineage(name=MAIN), learner_id="learner-0", consumed=(), now_s=NOW_S)


def test_lineage_that_names_an_unknown_parent_is_refused_and_changes_nothing(store: Store) -> None:
    accept(store, "t-1")
    leased(store, 0)
    lineage = Lineage(name=FORK, parent=LineageName("9-dead"), fork_step=1)
    with pytest.raises(UnknownVersionError, match="9-dead"):
        store.open_lineage(lineage, learner_id="learner-1", consumed=(), now_s=NOW_S)
    assert (store.totals().leased, store.ledger.head) == (1, at(0))


def test_learner_that_lost_its_first_checkpoint_starts_a_new_root_and_finds_everything_again(
    store: Store,
) -> None:
    accept(store, "t-1")
    commit(store, leased(store, 0), 0)
    assert store.open_lineage(Lineage(name=FORK), learner_id="l", consumed=(), now_s=NOW_S) == 1


def test_learner_that_lost_its_checkpoints_does_not_begin_the_run_again(store: Store) -> None:
    accept(store, "t-1")
    commit(store, leased(store, 0), 0)
    store.mark_checkpointed(at(1))
    with pytest.raises(ConflictError, match="its folder was lost"):
        store.open_lineage(Lineage(name=FORK), learner_id="l", consumed=(), now_s=NOW_S)
    assert (store.totals().trained, store.ledger.head) == (1, at(1))


def small_segments(tmp_path: Path, *, retain_bytes_max: int = 10**9) -> Store:
    config = TrajectoryStoreConfig(segment_bytes=1, retain_bytes_max=retain_bytes_max)
    return started_store(tmp_path, config=config)


def num_segments(tmp_path: Path) -> int:
    return len(list((tmp_path / "segments").iterdir()))


def test_payload_goes_once_its_update_is_in_a_checkpoint(tmp_path: Path) -> None:
    store = small_segments(tmp_path)
    for step in range(4):
        accept(store, f"t-{step}", step=step)
        commit(store, leased(store, step), step)
    assert num_segments(tmp_path) == 4
    store.mark_checkpointed(at(2))
    assert num_segments(tmp_path) == 2
    assert fork(store, step=2) == 2
    store.close()


def test_payload_that_waits_stays_whatever_is_checkpointed(tmp_path: Path) -> None:
    store = small_segments(tmp_path)
    for task in ("t-1", "t-2", "t-3"):
        accept(store, task)
    commit(store, leased(store, 0), 0)
    held = leased(store, 1)
    store.mark_checkpointed(at(1))
    assert num_segments(tmp_path) == 2
    commit(store, held, 1)
    store.close()


def test_restore_from_before_the_newest_checkpoint_supersedes_what_has_no_payload_left(
    tmp_path: Path,
) -> None:
    store = small_segments(tmp_path)
    for step in range(3):
        accept(store, f"t-{step}", step=step)
        commit(store, leased(store, step), step)
    store.mark_checkpointed(at(2))
    assert fork(store, step=0) == 1
    assert state_of(store, "t-0.0") == ("dropped", "superseded")
    assert state_of(store, "t-2.0") == ("available", "")
    store.close()


def test_payloads_kept_for_a_restore_are_bounded(tmp_path: Path) -> None:
    size = len(message_of(make_trajectory("t-0")).data)
    store = small_segments(tmp_path, retain_bytes_max=3 * size)
    for step in range(6):
        accept(store, f"t-{step}", step=step)
        commit(store, leased(store, step), step)
    accept(store, "t-6", step=6)
    store.tidy(now_s=NOW_S)
    assert num_segments(tmp_path) == 3
    assert leased(store, 6).trajectory_ids == ["t-6.0"]
    store.close()


def test_store_is_full_at_either_residency_limit(tmp_path: Path) -> None:
    store = started_store(tmp_path / "a", config=TrajectoryStoreConfig(max_resident_trajectories=2))
    accept(store, "t-1")
    assert store.room(64) == 64
    accept(store, "t-2")
    assert store.room(64) == 0
    batch = leased(store, 0)
    assert store.room(64) == 0
    commit(store, batch, 0)
    assert store.room(64) == 64
    store.close()
    store = started_store(tmp_path / "b", config=TrajectoryStoreConfig(max_resident_bytes=1))
    accept(store, "t-1")
    assert store.room(64) == 0
    commit(store, leased(store, 0), 0)
    assert store.room(64) == 64
    store.close()


PARENT = Lineage(name=LineageName("0-parent"))
FORKED = Lineage(name=LineageName("1-fork"), parent=PARENT.name, fork_step=40)


def open_forked(store: Store, *, ancestors: tuple[Lineage, ...]) -> int:
    return store.open_lineage(FORKED, learner_id="learner", consumed=(), ancestors=ancestors, now_s=NOW_S)


def test_empty_store_learns_the_lineages_that_a_fork_descends_from(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    open_forked(store, ancestors=(PARENT,))
    assert list(store.ledger.tree.lineages.values()) == [PARENT, FORKED]
    store.close()
    again = open_store(tmp_path)
    assert list(again.ledger.tree.lineages.values()) == [PARENT, FORKED]
    assert again.ledger.head == at(40, FORKED.name)
    assert open_forked(again, ancestors=(PARENT,)) == 0
    again.close()


def test_store_with_lineages_of_its_own_learns_no_others(store: Store) -> None:
    with pytest.raises(UnknownVersionError, match="which no learner opened"):
        open_forked(store, ancestors=(PARENT,))
    assert list(store.ledger.tree.lineages) == [MAIN]


def test_lineage_survives_a_power_cut_right_after_it_was_opened(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    statements: list[str] = []
    store.ledger.connection.set_trace_callback(statements.append)
    store.open_lineage(Lineage(name=MAIN), learner_id="learner-0", consumed=[], now_s=NOW_S)
    accept(store, "t-1")
    store.ledger.connection.set_trace_callback(None)
    flushes = [each for each in statements if "synchronous" in each or each in ("BEGIN IMMEDIATE", "COMMIT")]
    normal = "PRAGMA synchronous = 1"
    lineage = ["PRAGMA synchronous", "PRAGMA synchronous = FULL", "BEGIN IMMEDIATE", "COMMIT", normal]
    assert flushes == [*lineage, "BEGIN IMMEDIATE", "COMMIT"]
    store.close()
