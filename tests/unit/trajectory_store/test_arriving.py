"""Handling of arriving messages, and of the data folder."""

import errno
import os
import tracemalloc
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import pytest

from tests.unit.trajectory_store.building import (
    LIMITS,
    NOW_S,
    NUM_STEPS,
    RUN,
    accept,
    at,
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
    NotFoundError,
    StaleFolderError,
    UnavailableError,
)
from tidegate.core.ids import LineageName, RunId, TrajectoryId
from tidegate.core.staleness import StalenessLimits
from tidegate.trajectory_store.config import TrajectoryStoreConfig
from tidegate.trajectory_store.intake import ArrivedMessage
from tidegate.trajectory_store.ledger import Ledger
from tidegate.trajectory_store.rows import ROWS_AT_ONCE
from tidegate.trajectory_store.schema import LEDGER_FILE
from tidegate.trajectory_store.store import Store
from tidegate.wire.clients.trajectory_store import Dropped
from tidegate.wire.digest import digest_of
from tidegate.wire.reference import PayloadReference
from tidegate.wire.subjects import HEADER_TRAJECTORY_IDS


def test_trajectory_that_arrives_again_is_counted_and_not_stored(store: Store) -> None:
    accept(store, "t-1")
    accept(store, "t-1", "t-2", "t-2")
    assert store.totals().duplicates == 2
    assert store.totals().available == 2


def test_new_member_of_a_group_is_stored_though_the_others_are_known(store: Store) -> None:
    group = make_group("t-1", 3)
    store.ingest([message_of(*group[:2])], now_s=NOW_S)
    assert lease(store, at(0), batch_size=3) is None
    store.ingest([message_of(*group)], now_s=NOW_S)
    assert store.totals().duplicates == 2
    batch = leased(store, 0, batch_size=3)
    assert sorted(batch.trajectory_ids) == [item.trajectory_id for item in group]
    assert len(batch.frames) == 2


@pytest.mark.parametrize("num_known", [0, 1, ROWS_AT_ONCE, 2 * ROWS_AT_ONCE + 5])
def test_group_of_many_rows_is_stored_once_whatever_part_of_it_came_before(
    store: Store, num_known: int
) -> None:
    size = 2 * ROWS_AT_ONCE + 6
    group = make_group("t-1", size)
    if num_known:
        store.ingest([message_of(*group[-num_known:])], now_s=NOW_S)
    store.ingest([message_of(*group)], now_s=NOW_S)
    assert store.totals().duplicates == num_known
    assert sorted(leased(store, 0, batch_size=size).trajectory_ids) == sorted(
        each.trajectory_id for each in group
    )


def test_late_arrival_of_a_dropped_trajectory_is_a_duplicate(store: Store) -> None:
    assert store.drop_unarrived([Dropped(TrajectoryId("t-1.0"), "failed", "gave up")], now_s=NOW_S) == 1
    accept(store, "t-1")
    assert state_of(store, "t-1.0") == ("dropped", "failed")
    assert store.totals().duplicates == 1


def test_drop_unarrived_of_a_terminal_trajectory_changes_nothing(store: Store) -> None:
    accept(store, "t-1")
    names = [Dropped(TrajectoryId(name), "retired") for name in ("t-1.0", "t-2.0", "t-2.0")]
    assert store.drop_unarrived(names, now_s=NOW_S) == 1
    assert store.drop_unarrived(names, now_s=NOW_S) == 0
    assert state_of(store, "t-1.0") == ("available", "")


def test_refused_message_drops_only_trajectories_without_a_row(store: Store) -> None:
    accept(store, "t-1")
    message = ArrivedMessage(b"garbage", {HEADER_TRAJECTORY_IDS: "t-1.0,t-2.0"}, NOW_S)
    [refusal] = store.ingest([message], now_s=NOW_S).refused
    assert store.refuse(refusal, now_s=NOW_S) == 1
    assert state_of(store, "t-1.0") == ("available", "")
    assert state_of(store, "t-2.0") == ("dropped", "invalid")
    assert store.totals().quarantined == 1


def test_valid_messages_next_to_an_invalid_one_are_stored(store: Store) -> None:
    bad = ArrivedMessage(b"garbage", {}, NOW_S)
    unknown = message_of(make_trajectory("t-3", version=at(0, LineageName("9-dead"))))
    intake = store.ingest([bad, message_of(make_trajectory("t-1")), unknown], now_s=NOW_S)
    assert [arrival.columns.trajectory_id for arrival in intake.accepted] == [["t-1.0"]]
    assert ["9-dead" in refusal.reason for refusal in intake.refused] == [False, True]


def test_portion_of_messages_costs_the_images_of_one(store: Store) -> None:
    frames = np.zeros((NUM_STEPS + 1, 512, 512), np.uint8)
    messages: list[ArrivedMessage] = []
    for number in range(8):
        segment = make_trajectory(f"t-{number}")
        tensors = {**segment.tensors, "observations": frames}
        messages.append(message_of(msgspec.structs.replace(segment, tensors=tensors)))
    tracemalloc.start()
    try:
        store.ingest(messages, now_s=NOW_S)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert store.totals().available == 8
    assert most < 3 * frames.nbytes


def test_disk_that_is_full_leaves_the_ledger_as_it_was(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    with pytest.raises(OSError, match="No space"):
        accept(store, "t-1")
    monkeypatch.undo()
    assert store.totals().rows() == 0
    accept(store, "t-1")
    assert leased(store, 0).trajectory_ids == ["t-1.0"]


def test_ledger_on_a_full_disk_refuses_and_accepts_the_same_work_later(store: Store) -> None:
    (pages,) = store.ledger.connection.execute("PRAGMA page_count").fetchone()
    store.ledger.connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(UnavailableError, match="full"):
        accept(store, *(f"t-{index}" for index in range(200)))
    assert store.totals().rows() == 0
    store.ledger.connection.execute("PRAGMA max_page_count = 100000")
    accept(store, *(f"t-{index}" for index in range(200)))
    assert store.totals().available == 200


def test_upload_whose_message_waits_for_a_full_store_does_not_expire(tmp_path: Path) -> None:
    store = started_store(
        tmp_path, config=TrajectoryStoreConfig(max_resident_trajectories=1, upload_ttl_s=100.0)
    )
    accept(store, "t-1")
    frame = b"a large frame"
    reference = PayloadReference("t-2", len(frame), digest_of(frame))
    upload = store.uploads.begin(reference)
    assert upload is not None
    upload.write(frame)
    upload.finish()
    for period in range(1, 5):
        store.tidy(now_s=NOW_S + 90.0 * period)
    assert store.uploads.read(reference) == frame
    store.expire(LIMITS, now_s=NOW_S + 500.0)
    for period in range(5, 8):
        store.tidy(now_s=NOW_S + 90.0 * period)
    with pytest.raises(NotFoundError):
        store.uploads.read(reference)
    store.close()


def test_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    started_store(tmp_path).close()
    with pytest.raises(StaleFolderError, match="belongs to run 'test-run'"):
        Store(tmp_path, run_id=RunId("other"), config=TrajectoryStoreConfig(), now_s=NOW_S)
    open_store(tmp_path).close()


def test_folder_in_use_is_refused(tmp_path: Path) -> None:
    store = started_store(tmp_path)
    with pytest.raises(StaleFolderError, match="in use"):
        open_store(tmp_path)
    store.close()


def test_durability_mode_decides_what_is_flushed(tmp_path: Path) -> None:
    modes: list[tuple[Literal["process", "power_loss"], int]] = [("process", 1), ("power_loss", 2)]
    for durability, synchronous in modes:
        ledger = Ledger.open(tmp_path / f"{durability}-{LEDGER_FILE}", run_id=RUN, durability=durability)
        assert ledger.connection.execute("PRAGMA synchronous").fetchone() == (synchronous,)
        assert ledger.connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        ledger.close()


def test_power_loss_mode_flushes_a_payload_before_the_ledger_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = started_store(tmp_path, config=TrajectoryStoreConfig(durability="power_loss"))
    rows_at_flush: list[int] = []

    def flush(_: int) -> None:
        rows_at_flush.append(store.totals().rows())

    monkeypatch.setattr(os, "fsync", flush)
    accept(store, "t-1")
    assert rows_at_flush == [0]
    store.close()


def test_limits_of_a_request_are_those_it_names(store: Store) -> None:
    accept(store, "t-1", step=0)
    strict = StalenessLimits(max_lag=0, max_age_s=60.0)
    assert lease(store, at(1), limits=strict) is None
    assert store.totals().dropped == {"stale": 1}
