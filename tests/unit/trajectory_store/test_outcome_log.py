from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.unit.trajectory_store.building import (
    LIMITS,
    NOW_S,
    at,
    consumed,
    lease,
    make_group,
    make_trajectory,
    message_of,
    started_store,
)
from tidegate.runtime.clock import SystemClock
from tidegate.trajectory_store.config import TrajectoryStoreConfig
from tidegate.trajectory_store.outcome_log import ENTRY_ROWS_MAX
from tidegate.trajectory_store.servicer import TrajectoryStoreServicer
from tidegate.trajectory_store.store import Store
from tidegate.v1 import trajectory_store_service_pb2 as pb


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = started_store(tmp_path, config=TrajectoryStoreConfig(outcomes_max=10))
    yield store
    store.close()


def accept(store: Store, first: int, last: int) -> None:
    for index in range(first, last + 1):
        store.ingest([message_of(make_trajectory(f"t-{index}", reward=0.5))], now_s=NOW_S)


def train(store: Store, step: int) -> None:
    batch = lease(store, at(step))
    assert batch is not None
    store.commit(batch.batch_id, version=at(step), consumptions=consumed(batch.trajectory_ids), now_s=NOW_S)


def read_from(store: Store, cursor: int, *, limit: int) -> tuple[dict[str, str], int, list[int]]:
    """Everything a reader receives from ``cursor`` on: the last state of each id, where it ends, its cursors."""
    states: dict[str, str] = {}
    cursors: list[int] = []
    while True:
        outcomes, next_cursor = store.outcomes(cursor, limit=limit)
        states.update((outcome.trajectory_id, outcome.state) for outcome in outcomes)
        if next_cursor == cursor:
            return states, cursor, cursors
        cursor = next_cursor
        cursors.append(cursor)


def test_outcomes_come_in_ledger_order_with_what_the_queue_needs(store: Store) -> None:
    accept(store, 1, 2)
    train(store, 0)
    outcomes, cursor = store.outcomes(0, limit=10)
    assert [(outcome.trajectory_id, outcome.state, outcome.trained_at) for outcome in outcomes] == [
        ("t-1.0", "accepted", None),
        ("t-2.0", "accepted", None),
        ("t-1.0", "trained", at(0)),
    ]
    assert (outcomes[0].curriculum_bin, outcomes[0].reward, outcomes[0].length_tokens) == ("easy", 0.5, 4)
    assert store.outcomes(cursor, limit=10) == ([], cursor)


def test_pages_join_without_a_gap(store: Store) -> None:
    accept(store, 1, 7)
    states, cursor, cursors = read_from(store, 0, limit=3)
    assert list(states) == [f"t-{index}.0" for index in range(1, 8)]
    assert (cursor, cursors) == (7, [3, 6, 7])


@pytest.mark.parametrize("limit", [1, 5, 100, 4096])
def test_rows_of_one_message_share_entries_and_are_each_reported_once(store: Store, limit: int) -> None:
    groups = [make_group(f"t-{index}", 50) for index in range(3)]
    store.ingest([message_of(*group) for group in groups], now_s=NOW_S)
    names = [item.trajectory_id for group in groups for item in group]
    heard: list[str] = []
    cursor = 0
    while True:
        outcomes, following = store.outcomes(cursor, limit=limit)
        heard += [outcome.trajectory_id for outcome in outcomes]
        if following == cursor:
            break
        assert len(outcomes) < limit + ENTRY_ROWS_MAX
        cursor = following
    assert heard == names
    assert cursor == -(-len(names) // ENTRY_ROWS_MAX)


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_reader_behind_what_was_pruned_is_given_every_present_state_then_the_log(
    store: Store, limit: int
) -> None:
    accept(store, 1, 20)
    train(store, 0)
    store.tidy(now_s=NOW_S)
    first_page, negative = store.outcomes(3, limit=limit)
    assert first_page[0].trajectory_id == "t-1.0"
    assert negative < 0 or limit > 21
    train(store, 1)
    states, cursor, cursors = read_from(store, negative, limit=limit)
    states = {outcome.trajectory_id: outcome.state for outcome in first_page} | states
    assert states == {f"t-{index}.0": "trained" if index <= 2 else "accepted" for index in range(1, 21)}
    assert cursor == 22
    assert all(cursor > 0 for cursor in cursors[-1:])


async def test_reader_that_is_far_behind_is_answered_call_by_call(store: Store) -> None:
    accept(store, 1, 20)
    store.tidy(now_s=NOW_S)
    servicer = TrajectoryStoreServicer(store, SystemClock(), budget=lambda: LIMITS)
    cursor, heard = 3, list[str]()
    for _ in range(5):
        request = pb.WatchOutcomesRequest(cursor=cursor, limit=5, max_wait_s=0.0)
        answer = await servicer.WatchOutcomes(request, cast("Any", None))
        heard += [outcome.trajectory_id for outcome in answer.outcomes]
        cursor = answer.next_cursor
    assert heard == [f"t-{index}.0" for index in range(1, 21)]
    assert cursor == 20, "the end of the log, behind a last page that is empty"


def test_resync_that_takes_so_long_that_its_own_start_is_pruned_starts_over(store: Store) -> None:
    accept(store, 1, 20)
    store.tidy(now_s=NOW_S)
    _, negative = store.outcomes(1, limit=5)
    accept(store, 21, 45)
    store.tidy(now_s=NOW_S)
    states, cursor, _ = read_from(store, negative, limit=5)
    assert states.keys() == {f"t-{index}.0" for index in range(1, 46)}
    assert cursor == 45


def test_reader_that_knows_more_than_the_log_is_given_every_present_state(store: Store) -> None:
    accept(store, 1, 2)
    states, cursor, _ = read_from(store, 99, limit=10)
    assert states == {"t-1.0": "accepted", "t-2.0": "accepted"}
    assert cursor == 2


def test_log_stays_within_its_bound(store: Store) -> None:
    accept(store, 1, 40)
    store.tidy(now_s=NOW_S)
    [(kept,)] = store.ledger.connection.execute("SELECT count(*) FROM outcomes").fetchall()
    assert kept == 10


def test_reader_of_an_empty_log_waits_at_its_beginning(store: Store) -> None:
    assert store.outcomes(0, limit=10) == ([], 0)
    assert read_from(store, 7, limit=10) == ({}, 0, [0])
