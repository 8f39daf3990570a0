"""Old rows that are folded into counters: the audit, the refusal of duplicates and the chain stay as they were."""

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import num_examples
from tests.unit.trajectory_store.building import (
    LIMITS,
    MAIN,
    NOW_S,
    accept,
    at,
    commit,
    consumed,
    counted,
    fork,
    leased,
    make_group,
    message_of,
    open_store,
    started_store,
)
from tidegate.core.errors import ConflictError, NotFoundError
from tidegate.core.ids import LineageName, PolicyVersion, TrajectoryId, task_id
from tidegate.core.staleness import Lineage
from tidegate.trajectory_store import folding, hash_chain
from tidegate.trajectory_store.config import TrajectoryStoreConfig
from tidegate.trajectory_store.folded_ids import read_folded
from tidegate.trajectory_store.kept_updates import open_updates
from tidegate.trajectory_store.reading import moment, totals
from tidegate.trajectory_store.schema import LEDGER_FILE
from tidegate.trajectory_store.store import Store
from tidegate.trajectory_store.verifying import verify
from tidegate.wire.clients.trajectory_store import ConsumedBatch, Dropped

KEEPS_ALL = TrajectoryStoreConfig(segment_bytes=64, frame_cache_bytes=0)
FOLDS = msgspec.structs.replace(KEEPS_ALL, rows_kept_max=2)


def read_outcomes(store: Store) -> None:
    before, (_, cursor) = 0, store.outcomes(0, limit=1000)
    while cursor != before:
        before, (_, cursor) = cursor, store.outcomes(cursor, limit=1000)


def train(store: Store, step: int, *tasks: str, lag: int = 0) -> None:
    accept(store, *tasks, step=step)
    commit(store, leased(store, step, batch_size=len(tasks)), step, lag=lag)


def settle(store: Store, version: PolicyVersion) -> int:
    """A checkpoint covers everything before ``version``, and the outcomes were read; returns how many are folded."""
    store.mark_checkpointed(version)
    read_outcomes(store)
    store.tidy(now_s=NOW_S)
    return store.ledger.num_folded


def audit_of(store: Store) -> tuple[object, list[TrajectoryId]]:
    found, *lists = moment(store.ledger_path)
    return found, sorted(name for some in lists if isinstance(some, list) for name in some)


@pytest.fixture
def folded(tmp_path: Path) -> Path:
    """Of a run of 12 trained trajectories, six of whose rows at least are folded."""
    store = started_store(tmp_path, config=FOLDS)
    store.drop_unarrived([Dropped(TrajectoryId("foreign.0"), "failed", "no actor")], now_s=NOW_S)
    for step in range(6):
        train(store, step, task_id(2 * step), task_id(2 * step + 1), lag=step % 3)
    assert settle(store, at(6)) >= 6
    store.close()
    return tmp_path / LEDGER_FILE


def test_duplicate_of_a_folded_row_is_refused_and_counted_in_this_process_and_the_next(folded: Path) -> None:
    for number in range(1, 3):
        store = open_store(folded.parent, config=FOLDS)
        accept(store, task_id(0))
        assert (store.totals().duplicates, store.totals().available) == (number, 0)
        assert store.drop_unarrived([Dropped(TrajectoryId("foreign.0"), "failed", "")], now_s=NOW_S) == 0
        assert store.totals() == counted(folded)
        store.close()


def test_folded_row_beside_a_new_one_in_a_frame_loses_only_the_folded_one(tmp_path: Path) -> None:
    store = started_store(tmp_path, config=FOLDS)
    first, second = make_group(task_id(0), 2)
    store.ingest([message_of(first)], now_s=NOW_S)
    store.expire(LIMITS, now_s=NOW_S + 100.0)
    for step in range(3):
        train(store, step, task_id(10 + step), task_id(20 + step))
    assert settle(store, at(3)) > 0
    store.ingest([message_of(first, second)], now_s=NOW_S)
    assert (store.totals().duplicates, store.totals().available) == (1, 1)
    store.close()


def test_audit_counts_folded_rows_and_verify_says_how_many(folded: Path) -> None:
    found = totals(folded)
    assert (found.trained, found.trained_by_lag, found.max_lag_trained) == (12, {0: 4, 1: 4, 2: 4}, 2)
    assert found.dropped == {"failed": 1}
    result = verify(folded)
    assert result.findings == []
    assert result.num_folded + result.num_rows == 13
    with closing(sqlite3.connect(folded)) as db:
        assert db.execute("SELECT min(number) FROM chain").fetchone()[0] > 1, "old entries are gone as well"


def test_folded_trajectory_is_named_as_folded(folded: Path) -> None:
    store = open_store(folded.parent, config=FOLDS)
    with pytest.raises(NotFoundError, match="folded"):
        store.trajectory(f"{task_id(0)}.0")
    store.close()


def test_rows_whose_outcomes_were_pruned_unread_stay_until_the_queue_has_their_states(tmp_path: Path) -> None:
    store = started_store(tmp_path, config=msgspec.structs.replace(FOLDS, outcomes_max=4))
    for step in range(6):
        train(store, step, task_id(2 * step), task_id(2 * step + 1))
    store.mark_checkpointed(at(6))
    store.tidy(now_s=NOW_S)
    assert store.ledger.num_folded == 0
    told = {outcome.trajectory_id: outcome.state for outcome in store.outcomes(0, limit=1000)[0]}
    assert list(told.values()) == ["trained"] * 12
    assert settle(store, at(6)) > 0
    store.close()


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("UPDATE folded_tasks SET last = last + 1", "the tasks of folded rows"),
        ("DELETE FROM folded_tasks", "the tasks of folded rows"),
        ("UPDATE folded_ids SET trajectory_id = 'other.0'", "the ids of folded rows"),
        ("DELETE FROM folded_ids", "the ids of folded rows"),
        ("UPDATE folded SET content = x'91'", "the folded rows"),
        ("DELETE FROM folded", "counts of the folded rows"),
        ("DELETE FROM lineages", f"lineage {MAIN}"),
    ],
)
def test_changed_remains_of_folded_rows_are_named(folded: Path, statement: str, what: str) -> None:
    with closing(sqlite3.connect(folded)) as db, db:
        db.execute(statement)
    assert what in [finding.what for finding in verify(folded).findings]


@pytest.mark.parametrize(
    "change",
    [
        {"counts": ()},
        {"max_lag": 0},
        {"trained_twice": 1},
        {"entry_digest": bytes(32)},
        {"through_seq": 2},
        {"through_entry": 1},
        {"step": 1},
        {"num_ids": 7},
        {"tasks_digest": b""},
        {"lineages": ()},
    ],
)
def test_changed_counter_or_digest_of_folded_rows_is_named(folded: Path, change: dict[str, object]) -> None:
    with closing(sqlite3.connect(folded)) as db, db:
        forged = msgspec.structs.replace(read_folded(db), **change)
        db.execute("UPDATE folded SET content = ?", (msgspec.msgpack.encode(forged),))
    (name,) = change
    assert f"{name} of the folded rows" in [finding.what for finding in verify(folded).findings]


def test_row_that_comes_back_after_it_was_folded_is_named(folded: Path) -> None:
    with closing(sqlite3.connect(folded)) as db, db:
        db.execute("UPDATE trajectories SET seq = 1 WHERE seq = (SELECT max(seq) FROM trajectories)")
    assert ("invented", "row 1 was folded") in [(each.kind, each.why) for each in verify(folded).findings]


def test_entry_that_folded_rows_and_was_changed_is_named(folded: Path) -> None:
    with closing(sqlite3.connect(folded)) as db, db:
        number, _ = hash_chain.head_of(db)
        db.execute("UPDATE chain SET content = x'90' WHERE number = ?", (number,))
    assert f"entry {number} of the chain" in [finding.what for finding in verify(folded).findings]


# -- what must stay ----------------------------------------------------------------------------------------------------


def test_row_that_waits_keeps_those_after_it(tmp_path: Path) -> None:
    store = started_store(tmp_path, config=FOLDS)
    store.ingest([message_of(make_group(task_id(0), 2)[0])], now_s=NOW_S)
    for step in range(4):
        train(store, step, task_id(10 + step))
    assert settle(store, at(4)) == 0
    store.close()


def test_rows_of_updates_that_no_kept_checkpoint_covers_stay(tmp_path: Path) -> None:
    store = started_store(tmp_path, config=FOLDS)
    for step in range(6):
        train(store, step, task_id(step))
    assert settle(store, at(2)) == 2
    assert fork(store, step=2) > 0
    assert settle(store, at(2)) == 2
    store.close()


def test_rows_whose_outcomes_were_not_read_stay(tmp_path: Path) -> None:
    store = started_store(tmp_path, config=FOLDS)
    for step in range(6):
        train(store, step, task_id(step))
    store.mark_checkpointed(at(6))
    store.tidy(now_s=NOW_S)
    assert store.ledger.num_folded == 0
    assert settle(store, at(6)) > 0
    store.close()


def test_rows_whose_payloads_are_kept_for_replay_stay(tmp_path: Path) -> None:
    config = msgspec.structs.replace(FOLDS, replayable_bytes_max=2**30)
    store = started_store(tmp_path, config=config)
    for step in range(6):
        train(store, step, task_id(step))
    assert settle(store, at(6)) == 0
    store.close()


def test_rows_stay_while_the_learner_of_an_expired_lease_may_be_restored(tmp_path: Path) -> None:
    store = started_store(tmp_path, config=FOLDS)
    for step in range(6):
        train(store, step, task_id(step))
    accept(store, task_id(6), step=6)
    store.release(leased(store, 6).batch_id, dropped=(), now_s=NOW_S, expired=True)
    assert settle(store, at(6)) == 0
    fork(store, step=6)
    store.drop_unarrived([Dropped(TrajectoryId(f"{task_id(7)}.0"), "failed", "")], now_s=NOW_S)
    assert settle(store, at(6)) > 0
    store.close()


def test_rows_are_folded_again_once_the_learner_of_expired_leases_trains_on(tmp_path: Path) -> None:
    store = started_store(tmp_path, config=FOLDS)
    for step in range(6):
        train(store, step, task_id(step))
    accept(store, task_id(6), task_id(7), step=6)
    in_training, ahead = leased(store, 6), leased(store, 7)
    for lost in (ahead, in_training):
        store.release(lost.batch_id, dropped=(), now_s=NOW_S, expired=True)
    commit(store, leased(store, 6), 6)
    assert settle(store, at(7)) == 0, "the one for version 7 may still have been trained"
    commit(store, leased(store, 7), 7)
    assert settle(store, at(8)) > 0
    store.close()


def test_restore_behind_what_was_folded_is_refused_and_changes_nothing(folded: Path) -> None:
    store = open_store(folded.parent, config=FOLDS)
    before = store.totals()
    with pytest.raises(ConflictError, match=f"before {MAIN}@6"):
        fork(store, step=5)
    assert store.totals() == before
    assert fork(store, step=6) == 0
    assert verify(folded).intact
    store.close()


def test_checkpoint_that_names_a_folded_trajectory_trains_it_no_second_time(folded: Path) -> None:
    store = open_store(folded.parent, config=FOLDS)
    held = ConsumedBatch(f"{MAIN}@0#1", at(0), consumed([TrajectoryId(f"{task_id(0)}.0")]))
    before = totals(folded)
    fork(store, step=6, held=[held])
    assert totals(folded) == before
    assert verify(folded).intact
    store.close()


def test_update_with_a_folded_row_is_not_recomputed_from_the_rest(folded: Path) -> None:
    with open_updates(folded) as updates, pytest.raises(NotFoundError, match="folded"):
        updates.batch(at(1))
    with open_updates(folded) as updates, pytest.raises(NotFoundError, match="folded"):
        updates.update_of(TrajectoryId(f"{task_id(0)}.0"))


def test_kill_in_the_middle_of_a_fold_leaves_the_ledger_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = started_store(tmp_path / "run", config=FOLDS)
    for step in range(6):
        train(store, step, task_id(step))
    store.mark_checkpointed(at(6))
    read_outcomes(store)
    before = audit_of(store)

    def killed(*_: object) -> None:
        shutil.copytree(tmp_path / "run", tmp_path / "image")
        raise KeyboardInterrupt

    monkeypatch.setattr(folding, "_remove_batches", killed)
    with pytest.raises(KeyboardInterrupt):
        store.tidy(now_s=NOW_S)
    assert (audit_of(store), store.ledger.num_folded) == (before, 0), "rolled back"
    store.close()
    again = open_store(tmp_path / "image", config=FOLDS)
    assert (audit_of(again), again.ledger.num_folded) == (before, 0), "what a kill -9 leaves"
    assert verify(again.ledger_path).intact
    again.close()


# -- the same history with and without folding -------------------------------------------------------------------------


class Pair:
    """One history in two stores, of which the second folds whatever it may."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folders = (folder / "all", folder / "folds")
        self.stores = [
            started_store(where, config=config)
            for where, config in zip(self.folders, (KEEPS_ALL, FOLDS), strict=True)
        ]
        self.chance = chance
        self.version = at(0)
        self.marked = at(0)
        self.next_task = 0
        self.num_lineages = 1

    def both(self, act: Callable[[Store], object]) -> object:
        first, second = [act(store) for store in self.stores]
        assert first == second
        return first

    def arrive(self) -> None:
        old = [self.chance.randrange(self.next_task) for _ in range(2) if self.next_task]
        new = [self.next_task + index for index in range(self.chance.randrange(1, 4))]
        self.next_task = new[-1] + 1 + self.chance.randrange(2)
        messages = [
            message_of(*make_group(task_id(task), 1 + task % 2, version=self.version))
            for task in (*old, *new)
        ]
        self.both(lambda store: store.ingest(messages, now_s=NOW_S).num_duplicates)

    def give_up(self) -> None:
        name = self.chance.choice([f"{task_id(self.next_task)}.0", f"foreign-{self.next_task}.0"])
        self.next_task += 1
        self.both(
            lambda store: store.drop_unarrived([Dropped(TrajectoryId(name), "failed", "")], now_s=NOW_S)
        )

    def train(self) -> None:
        size, keeps, lag = self.chance.choice([1, 2, 3]), self.chance.random() < 0.8, self.chance.randrange(3)

        def step(store: Store) -> object:
            batch = store.lease(self.version, batch_size=size, limits=LIMITS, learner_id="l", now_s=NOW_S)
            if batch is None:
                return None
            if keeps:
                found = consumed(batch.trajectory_ids, lag=lag)
                store.commit(batch.batch_id, version=self.version, consumptions=found, now_s=NOW_S)
            else:
                lost = [Dropped(batch.trajectory_ids[0], "stale", "")]
                store.release(batch.batch_id, dropped=lost, now_s=NOW_S)
            return (batch.batch_id, batch.trajectory_ids, keeps)

        if self.both(step) is not None and keeps:
            self.version = PolicyVersion(self.version.lineage, self.version.step + 1)

    def checkpoint(self) -> None:
        self.marked = self.version
        self.both(lambda store: store.mark_checkpointed(self.version))

    def restore(self) -> None:
        if self.version.lineage == self.marked.lineage:
            step = self.chance.randint(self.marked.step, self.version.step)
            lineage = Lineage(LineageName(f"{self.num_lineages}-dddd"), self.version.lineage, step)
            self.num_lineages += 1
            self.both(lambda store: store.open_lineage(lineage, learner_id="l", consumed=(), now_s=NOW_S))
            self.version = PolicyVersion(lineage.name, step)
            if step == self.marked.step:
                self.checkpoint()

    def keep_house(self) -> None:
        for store in self.stores:
            read_outcomes(store)
            store.tidy(now_s=NOW_S)

    def reopen(self) -> None:
        for place, (where, config) in enumerate(zip(self.folders, (KEEPS_ALL, FOLDS), strict=True)):
            self.stores[place].close()
            self.stores[place] = open_store(where, config=config)

    def check(self) -> None:
        self.both(lambda store: store.totals())
        self.both(audit_of)
        for store in self.stores:
            assert counted(store.ledger_path) == store.totals()
            assert verify(store.ledger_path).findings == []


@pytest.mark.slow
@settings(max_examples=num_examples(25), deadline=None)
@given(seed=st.integers(0, 2**32), length=st.integers(10, 40))
def test_same_history_with_folding_has_the_same_totals_refusals_and_verdict(
    seed: int, length: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("pair")
    chance = random.Random(seed)
    pair = Pair(folder, chance)
    acts = [pair.arrive] * 3 + [pair.train] * 4 + [pair.checkpoint, pair.keep_house] * 2
    acts += [pair.restore, pair.give_up, pair.reopen]
    for _ in range(length):
        chance.choice(acts)()
    pair.checkpoint()
    pair.keep_house()
    pair.check()
    for store in pair.stores:
        store.close()
    shutil.rmtree(folder)


@pytest.mark.slow
def test_file_stays_flat_over_many_folds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "BATCHES_KEPT", 5)
    config = msgspec.structs.replace(FOLDS, rows_kept_max=200, outcomes_max=1000)
    store = started_store(tmp_path, config=config)
    sizes: list[int] = []
    for turn in range(12):
        for step in range(turn * 5, turn * 5 + 5):
            names = [task_id(100 * step + index) for index in range(100)]
            train(store, step, *names)
        settle(store, at(turn * 5 + 5))
        (pages,) = store.ledger.connection.execute("PRAGMA page_count").fetchone()
        sizes.append(pages * 4096)
    assert store.ledger.num_folded > 5_000
    # 3,000 trajectories more, and at most two pages: without folding they are 300 pages and more.
    assert max(sizes[6:]) <= max(sizes[:6]) + 2 * 4096, sizes
    assert store.totals().trained == 6_000
    assert len(msgspec.msgpack.encode(read_folded(store.ledger.connection))) < 300
    assert verify(store.ledger_path).intact
    store.close()
