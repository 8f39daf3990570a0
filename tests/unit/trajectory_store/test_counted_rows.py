"""Rows that are counted once: the same totals as a full count, and starts that do not grow with the run."""

import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import num_examples
from tests.unit.trajectory_store.building import NOW_S, at, fork, open_store, started_store
from tests.unit.trajectory_store.test_folding import KEEPS_ALL, Pair, train
from tidegate.core.ids import task_id
from tidegate.trajectory_store import counted_rows
from tidegate.trajectory_store.counted_rows import read_counted
from tidegate.trajectory_store.counts import count_rows
from tidegate.trajectory_store.memory import load_memory
from tidegate.trajectory_store.store import Store

STEPS_AT_ONCE = 100


def assert_counted_right(store: Store) -> None:
    db = store.ledger.connection
    found, recounted = load_memory(db), count_rows(db)
    assert found.tally.totals(trained_twice=0) == recounted.totals(trained_twice=0)
    through = read_counted(db).through
    open_rows = "SELECT count(*) FROM trajectories WHERE seq <= ? AND state IN ('available', 'leased')"
    assert db.execute(open_rows, (through,)).fetchone() == (0,)


@settings(max_examples=num_examples(50), deadline=None)
@given(seed=st.integers(0, 2**32), length=st.integers(10, 40), at_once=st.sampled_from([2, 1000]))
def test_counts_are_those_of_all_rows_whatever_is_restored_folded_or_started_again(
    seed: int, length: int, at_once: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("counted")
    pair = Pair(folder, random.Random(seed))
    acts = [pair.arrive, pair.train, pair.train, pair.keep_house, pair.restore, pair.reopen, pair.give_up]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counted_rows, "ROWS_MIN", 1)
        patch.setattr(counted_rows, "ROWS_MAX", at_once)
        for _ in range(length):
            pair.chance.choice([*acts, pair.checkpoint])()
            for store in pair.stores:
                assert_counted_right(store)
        pair.check()
    for store in pair.stores:
        store.close()
    shutil.rmtree(folder)


def store_of_four_counted_rows(folder: Path) -> Store:
    """Trained one an update, each with another lag."""
    store = started_store(folder, config=KEEPS_ALL)
    for step in range(4):
        train(store, step, task_id(step), lag=step)
    store.tidy(now_s=NOW_S)
    assert read_counted(store.ledger.connection).through == 4
    return store


def test_rows_that_a_restore_gives_back_are_counted_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counted_rows, "ROWS_MIN", 1)
    store = store_of_four_counted_rows(tmp_path)
    fork(store, step=2)
    left = read_counted(store.ledger.connection)
    assert (left.through, [count.num_rows for count in left.counts]) == (2, [1, 1])
    assert (store.totals().trained, store.totals().available) == (2, 2)
    assert_counted_right(store)
    store.close()


def knows_nothing(*_: object) -> None:
    """An earlier version of the program."""


def test_what_an_earlier_version_of_the_program_may_have_changed_is_counted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counted_rows, "ROWS_MIN", 1)
    store_of_four_counted_rows(tmp_path).close()
    with pytest.MonkeyPatch.context() as earlier:
        for name in ("shrink", "confirm"):
            earlier.setattr(counted_rows, name, knows_nothing)
        store = open_store(tmp_path, config=KEEPS_ALL)
        fork(store, step=2)
        store.close()
    store = open_store(tmp_path, config=KEEPS_ALL)
    assert (store.totals().trained, store.totals().available) == (2, 2)
    assert_counted_right(store)
    store.close()


def steps_of(db: sqlite3.Connection, act: Callable[[], object]) -> int:
    """Hundreds of steps of SQLite's machine."""
    count = 0

    def progress() -> int:
        nonlocal count
        count += 1
        return 0

    db.set_progress_handler(progress, STEPS_AT_ONCE)
    try:
        act()
    finally:
        db.set_progress_handler(None, 0)
    return count


def steps_after(folder: Path, *, updates: int) -> tuple[int, int]:
    """The work of a start, and of a learner that opens a lineage, after so many updates of 50 trajectories."""
    store = started_store(folder, config=KEEPS_ALL)
    for step in range(updates):
        train(store, step, *(task_id(50 * step + index) for index in range(50)))
        store.mark_checkpointed(at(step))
        store.tidy(now_s=NOW_S)
    db = store.ledger.connection
    started = steps_of(db, lambda: load_memory(db))
    opened = steps_of(db, lambda: fork(store, step=updates - 1))
    store.close()
    return started, opened


@pytest.mark.slow
def test_neither_a_start_nor_a_restored_learner_takes_longer_the_longer_a_run_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counted_rows, "ROWS_MIN", 100)
    young, old = (steps_after(tmp_path / str(updates), updates=updates) for updates in (10, 100))
    assert old[0] <= 1.5 * young[0], (young, old)
    assert old[1] <= 1.5 * young[1], (young, old)
