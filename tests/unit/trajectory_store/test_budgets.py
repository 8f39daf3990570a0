"""The audit judges each gradient by the staleness budget in force when its batch was judged (I1, issue 18)."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.unit.trajectory_store.building import (
    FORK,
    MAIN,
    NOW_S,
    accept,
    at,
    commit,
    consumed,
    fork,
    lease,
    open_store,
    started_store,
)
from tidegate.core.audit import BudgetTotals, JournalTotals, reconcile
from tidegate.core.ids import PolicyVersion
from tidegate.core.staleness import StalenessLimits
from tidegate.trajectory_store.config import TrajectoryStoreConfig
from tidegate.trajectory_store.reading import totals
from tidegate.trajectory_store.schema import LEDGER_FILE
from tidegate.trajectory_store.state import Batch
from tidegate.trajectory_store.store import Store
from tidegate.trajectory_store.verifying import verify
from tidegate.wire.clients.trajectory_store import ConsumedBatch

FOLDS = TrajectoryStoreConfig(segment_bytes=64, frame_cache_bytes=0, rows_kept_max=2)


def within(max_lag: int) -> StalenessLimits:
    return StalenessLimits(max_lag=max_lag, max_age_s=60.0)


def lease_one(store: Store, version: PolicyVersion, *, max_lag: int, task: str = "") -> Batch:
    accept(store, task or f"t-{version}", step=0)
    batch = lease(store, version, limits=within(max_lag))
    assert batch is not None
    return batch


def train(store: Store, step: int, *, max_lag: int, lag: int = 0) -> None:
    """One update whose batch is judged by ``max_lag``; its commit says ``lag``."""
    accept(store, f"t-{step}", step=step)
    batch = lease(store, at(step), limits=within(max_lag))
    assert batch is not None
    commit(store, batch, step, lag=lag)


def audited(path: Path) -> tuple[bool, BudgetTotals]:
    """Whether the accounting balances, for a journal that admitted what the ledger has."""
    found = totals(path)
    journal = JournalTotals(admitted=found.rows(), open=0)
    return reconcile(journal, found, unknown=0, awaiting=0).balanced, found.budgets


@pytest.mark.parametrize(
    "budgets",
    [[2, 4], [4, 2], [2, 4, 2], [4, 0, 4], [3, 3, 3], [8, 4, 2, 1, 0, 1]],
    ids=str,
)
def test_run_that_keeps_to_each_budget_balances_after_every_change(
    tmp_path: Path, budgets: list[int]
) -> None:
    store = started_store(tmp_path)
    for step, max_lag in enumerate(budgets):
        train(store, step, max_lag=max_lag, lag=max_lag)
        balanced, found = audited(store.ledger_path)
        assert balanced, found
        assert found == BudgetTotals(widest=max(budgets[: step + 1]))
    store.close()
    assert audited(tmp_path / LEDGER_FILE)[0]
    assert verify(tmp_path / LEDGER_FILE).intact


@pytest.mark.parametrize(
    ("budgets", "planted"),
    [([2, 4, 2], {0: 3}), ([2, 4, 2], {2: 3}), ([4, 2], {1: 4}), ([4, 0, 0, 4], {1: 1, 2: 1})],
)
def test_gradient_above_its_own_budget_and_below_the_widest_is_found(
    tmp_path: Path, budgets: list[int], planted: dict[int, int]
) -> None:
    store = started_store(tmp_path)
    for step, max_lag in enumerate(budgets):
        train(store, step, max_lag=max_lag, lag=planted.get(step, max_lag))
    balanced, found = audited(store.ledger_path)
    first = min(planted)
    assert (balanced, found.over) == (False, len(planted))
    assert (
        found.worst
        == f"a lag of {planted[first]} under max_lag {budgets[first]}, in the update of {at(first)}"
    )


def test_batch_leased_before_the_budget_was_lowered_is_judged_by_the_one_it_was_leased_under(
    tmp_path: Path,
) -> None:
    store = started_store(tmp_path)
    train(store, 0, max_lag=4)
    accept(store, "before", "after", step=1)
    before = lease(store, at(1), limits=within(4))
    after = lease(store, at(2), limits=within(2))
    assert before is not None
    assert after is not None
    store.close()
    store = open_store(tmp_path)  # the lease outlives a restart of the store, and so does its budget
    commit(store, before, 1, lag=4)
    commit(store, after, 2, lag=2)
    assert audited(store.ledger_path) == (True, BudgetTotals(widest=4))
    train(store, 3, max_lag=2, lag=3)
    assert audited(store.ledger_path)[1].over == 1


def test_update_that_only_a_checkpoint_proves_is_judged_by_the_budget_of_its_lease(tmp_path: Path) -> None:
    """Raised between two updates; the learner died after the second one's checkpoint and before its commit."""
    store = started_store(tmp_path)
    train(store, 0, max_lag=2, lag=2)
    batch = lease_one(store, at(1), max_lag=4)
    held = ConsumedBatch(batch.batch_id, at(1), consumed(batch.trajectory_ids, lag=4))
    fork(store, step=2, held=[held])
    assert audited(store.ledger_path) == (True, BudgetTotals(widest=4))
    assert verify(store.ledger_path).intact


def test_lineages_have_their_own_budgets_and_a_lost_branch_keeps_its_own(tmp_path: Path) -> None:
    store = started_store(tmp_path)
    train(store, 0, max_lag=2, lag=2)
    train(store, 1, max_lag=4, lag=4)
    assert fork(store, step=1) == 1
    revived = store.lease(at(1, FORK), batch_size=1, limits=within(1), learner_id="l", now_s=NOW_S)
    assert revived is not None
    store.commit(
        revived.batch_id,
        version=at(1, FORK),
        consumptions=consumed(revived.trajectory_ids, lag=1),
        now_s=NOW_S,
    )
    assert audited(store.ledger_path) == (True, BudgetTotals(widest=4))
    assert rows_of(store.ledger_path) == [(MAIN, 0, 2), (MAIN, 1, 4), (FORK, 1, 1)]


def test_repeated_checkpoint_of_committed_updates_changes_no_budget(tmp_path: Path) -> None:
    store = started_store(tmp_path)
    batch = lease_one(store, at(0), max_lag=2)
    commit(store, batch, 0, lag=2)
    train(store, 1, max_lag=4, lag=4)
    fork(store, step=2, held=[ConsumedBatch(batch.batch_id, at(0), consumed(batch.trajectory_ids, lag=2))])
    assert rows_of(store.ledger_path) == [(MAIN, 0, 2), (MAIN, 1, 4)]


@pytest.mark.parametrize("planted", [0, 1])
def test_folded_rows_were_judged_before_they_went(tmp_path: Path, planted: int) -> None:
    store = started_store(tmp_path, config=FOLDS)
    for step in range(8):
        train(store, step, max_lag=4 if step == 5 else 2, lag=2 + planted * (step == 1))
    store.mark_checkpointed(at(8))
    cursor = -1
    while cursor != (found := store.outcomes(max(cursor, 0), limit=1000)[1]):
        cursor = found
    store.tidy(now_s=NOW_S)
    assert store.ledger.num_folded >= 4
    balanced, found_budgets = audited(store.ledger_path)
    assert (balanced, found_budgets.over) == (planted == 0, planted)
    assert verify(store.ledger_path).intact


def rows_of(path: Path) -> list[tuple[str, int, int | None]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(
            "SELECT lineage, from_step, max_lag FROM budgets ORDER BY lineage, from_step"
        ).fetchall()


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        for statement in statements:
            db.execute(statement)


@pytest.mark.parametrize(
    ("tamper", "kind"),
    [
        ("UPDATE budgets SET max_lag = 9 WHERE from_step = 1", "changed"),
        ("UPDATE budgets SET max_lag = NULL WHERE from_step = 1", "changed"),
        ("DELETE FROM budgets WHERE from_step = 1", "lost"),
        ("INSERT INTO budgets VALUES ('0-aaaa', 2, 9)", "invented"),
        ("DROP TABLE budgets", "lost"),
    ],
)
def test_history_that_was_changed_after_it_was_written_is_found(
    tmp_path: Path, tamper: str, kind: str
) -> None:
    store = started_store(tmp_path)
    for step, max_lag in enumerate((4, 2, 2)):
        train(store, step, max_lag=max_lag, lag=max_lag)
    store.close()
    change(tmp_path / LEDGER_FILE, tamper)
    assert kind in {finding.kind for finding in verify(tmp_path / LEDGER_FILE).findings}


def as_an_older_program_left_it(path: Path) -> None:
    change(path, "DROP TABLE budgets", "ALTER TABLE batches DROP COLUMN budget")


@pytest.mark.parametrize("reopens", [False, True])
def test_updates_of_an_older_program_are_judged_by_none_and_said(tmp_path: Path, *, reopens: bool) -> None:
    store = started_store(tmp_path)
    train(store, 0, max_lag=4, lag=4)
    store.close()
    as_an_older_program_left_it(tmp_path / LEDGER_FILE)
    if reopens:
        open_store(tmp_path).close()
    assert audited(tmp_path / LEDGER_FILE) == (True, BudgetTotals(unnoted=1))


def test_run_that_an_older_program_began_is_judged_from_its_next_update_on(tmp_path: Path) -> None:
    store = started_store(tmp_path)
    train(store, 0, max_lag=4, lag=4)
    accept(store, "held", step=1)
    held = lease(store, at(1), limits=within(4))
    assert held is not None
    store.close()
    as_an_older_program_left_it(tmp_path / LEDGER_FILE)
    store = open_store(tmp_path)
    commit(store, held, 1, lag=4)  # leased by the older program
    train(store, 2, max_lag=2, lag=2)
    assert audited(store.ledger_path) == (True, BudgetTotals(unnoted=2, widest=2))
    train(store, 3, max_lag=2, lag=3)
    assert audited(store.ledger_path)[1].over == 1
