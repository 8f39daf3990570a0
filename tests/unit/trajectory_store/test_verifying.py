"""A ledger that was changed after it was written, found row by row."""

import asyncio
import errno
import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import msgspec
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
    fork,
    leased,
    make_trajectory,
    message_of,
    started_store,
)
from tidegate.core.verification import Verification
from tidegate.runtime.clock import SystemClock
from tidegate.trajectory_store import hash_chain, servicer
from tidegate.trajectory_store.hash_chain import GENESIS, TrainedNote
from tidegate.trajectory_store.schema import LEDGER_FILE
from tidegate.trajectory_store.segments import segment_path
from tidegate.trajectory_store.store import Store
from tidegate.trajectory_store.verifying import read_head, verify
from tidegate.v1 import trajectory_store_service_pb2 as pb
from tidegate.wire.clients.trajectory_store import Dropped


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """Of a run with six trained rows in two updates, one dropped, one that never arrived and one that waits."""
    store = started_store(tmp_path)
    accept(store, *(f"t-{index}" for index in range(8)))
    for step in range(2):
        commit(store, leased(store, step, batch_size=3), step, lag=2)
    batch = leased(store, 2)
    dropped = [Dropped(batch.trajectory_ids[0], "stale", "too old")]
    store.release(batch.batch_id, dropped=dropped, now_s=NOW_S)
    store.drop_unarrived([Dropped(make_trajectory("t-9").trajectory_id, "failed", "no actor")], now_s=NOW_S)
    store.close()
    return tmp_path / LEDGER_FILE


def change(path: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(statement, values)


def found(result: Verification) -> list[tuple[str, str]]:
    return [(finding.kind, finding.what) for finding in result.findings]


def test_ledger_as_it_was_written_is_intact(ledger: Path) -> None:
    result = verify(ledger)
    assert (result.findings, result.num_rows, result.num_payloads) == ([], 9, 8)
    assert result.num_entries == 6, "a lineage, the arrivals, two commits, two drops"
    assert result.head == read_head(ledger) != GENESIS.hex()


def test_empty_ledger_is_intact(tmp_path: Path) -> None:
    started_store(tmp_path).close()
    assert verify(tmp_path / LEDGER_FILE).intact


def test_segment_that_the_live_store_removes_at_this_moment_is_no_longer_verified(
    ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment, opens = segment_path(ledger.parent / "segments", 1), os.open

    def remove_and_open(path: Path, flags: int) -> int:
        segment.unlink()
        return opens(path, flags)

    monkeypatch.setattr(os, "open", remove_and_open)
    result = verify(ledger)
    assert (result.findings, result.num_rows, result.num_payloads) == ([], 9, 0)


async def test_next_verification_waits_for_the_one_whose_caller_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, num_active, most_active, may_end = started_store(tmp_path), 0, 0, threading.Event()

    def slow(path: Path, *, head: str) -> Verification:
        nonlocal num_active, most_active
        num_active += 1
        most_active = max(most_active, num_active)
        may_end.wait()
        num_active -= 1
        return verify(path, head=head)

    monkeypatch.setattr(servicer, "verify", slow)
    served = servicer.TrajectoryStoreServicer(store, SystemClock(), budget=lambda: LIMITS)
    calls = [
        asyncio.create_task(served.VerifyLedger(pb.VerifyLedgerRequest(), cast("Any", None))) for _ in "ab"
    ]
    try:
        async with asyncio.timeout(60.0):
            while not num_active:
                await asyncio.sleep(0.01)
        calls[0].cancel()
        await asyncio.wait(calls, timeout=0.2)
    finally:
        may_end.set()
    assert (await calls[1]).num_entries == 1
    assert most_active == 1
    store.close()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("lag", 0),
        ("reward", 1.0),
        ("trained_step", 7),
        ("trained_lineage", "other"),
        ("age_s", 0.5),
        ("spans", b"\x90"),
        ("started_at_s", 1.0),
        ("group_id", "other"),
        ("num_steps", 5),
        ("state", "dropped"),
        ("reason", "stale"),
        ("frame_id", 2),
        ("mean_return", 9.0),
        ("terminal_at_s", 1.0),
        ("num_revivals", 1),
    ],
)
def test_changed_column_of_a_row_is_found(ledger: Path, column: str, value: object) -> None:
    name = make_trajectory("t-0").trajectory_id
    change(ledger, f"UPDATE trajectories SET {column} = ? WHERE trajectory_id = ?", value, name)
    assert ("changed", name) in found(verify(ledger))


def test_every_row_is_named_on_its_own(ledger: Path) -> None:
    for task in ("t-1", "t-4", "t-6"):
        change(
            ledger,
            "UPDATE trajectories SET length_tokens = 99 WHERE trajectory_id = ?",
            make_trajectory(task).trajectory_id,
        )
    names = [make_trajectory(task).trajectory_id for task in ("t-1", "t-4", "t-6")]
    assert found(verify(ledger)) == [("changed", name) for name in names]


def test_lost_row_is_found(ledger: Path) -> None:
    change(ledger, "DELETE FROM trajectories WHERE seq = 2")
    change(ledger, "DELETE FROM uses WHERE seq = 2")
    name = make_trajectory("t-1").trajectory_id
    assert found(verify(ledger)) == [("lost", name), ("lost", f"use of row 2 by update {MAIN}@0")]


def test_last_row_that_is_lost_is_found(ledger: Path) -> None:
    change(ledger, "DELETE FROM trajectories WHERE seq = (SELECT max(seq) FROM trajectories)")
    assert found(verify(ledger)) == [("lost", make_trajectory("t-9").trajectory_id)]


def test_invented_row_is_found(ledger: Path) -> None:
    change(
        ledger,
        "INSERT INTO trajectories SELECT 99, 'invented', group_id, group_size, curriculum_bin, state, reason, detail,"
        " reward, num_steps, length_tokens, num_episodes, mean_return, spans, started_at_s, finished_at_s,"
        " accepted_at_s, leased_at_s, terminal_at_s, frame_id, frame_index, batch_id, trained_lineage, trained_step,"
        " lag, span, age_s, num_revivals FROM trajectories WHERE seq = 1",
    )
    assert found(verify(ledger)) == [("invented", "invented")]


def test_waiting_row_that_is_made_trained_is_found(ledger: Path) -> None:
    name = make_trajectory("t-7").trajectory_id
    change(
        ledger,
        "UPDATE trajectories SET state = 'trained', trained_lineage = ?, trained_step = 1 WHERE trajectory_id = ?",
        MAIN,
        name,
    )
    assert found(verify(ledger)) == [("changed", name)]


def test_trained_row_that_is_made_available_again_is_found(ledger: Path) -> None:
    name = make_trajectory("t-0").trajectory_id
    change(ledger, "UPDATE trajectories SET state = 'available' WHERE trajectory_id = ?", name)
    assert found(verify(ledger)) == [("changed", name)]


def test_lost_and_invented_uses_are_found(ledger: Path) -> None:
    change(ledger, "UPDATE uses SET step = 7 WHERE seq = 1")
    assert found(verify(ledger)) == [
        ("lost", f"use of row 1 by update {MAIN}@0"),
        ("invented", f"use of row 1 by update {MAIN}@7"),
    ]


def test_lost_lineage_is_found(ledger: Path) -> None:
    change(ledger, "DELETE FROM lineages")
    assert found(verify(ledger)) == [("lost", f"lineage {MAIN}")]


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("DELETE FROM chain WHERE number = 3", ("lost", "1 entries before entry 4 of the chain")),
        ("UPDATE chain SET digest = zeroblob(32) WHERE number = 3", ("changed", "entry 3 of the chain")),
        ("UPDATE chain SET content = x'91' WHERE number = 3", ("changed", "entry 3 of the chain")),
        ("UPDATE chain SET content = x'90' WHERE number = 3", ("changed", "entry 3 of the chain")),
    ],
)
def test_changed_chain_is_found(ledger: Path, statement: str, expected: tuple[str, str]) -> None:
    change(ledger, statement)
    assert expected in found(verify(ledger))


def test_entry_whose_text_is_none_any_more_is_found(ledger: Path) -> None:
    with closing(sqlite3.connect(ledger)) as db:
        contents = dict(db.execute("SELECT number, content FROM chain").fetchall())
    number, content = next((at, each) for at, each in contents.items() if b"too old" in each)
    change(
        ledger,
        "UPDATE chain SET content = ? WHERE number = ?",
        content.replace(b"too old", b"\xffoo old"),
        number,
    )
    assert ("changed", f"entry {number} of the chain") in found(verify(ledger))


def test_chain_that_was_cut_shows_by_its_rows(ledger: Path) -> None:
    change(ledger, "DELETE FROM chain WHERE number > 3")
    names = [make_trajectory(f"t-{index}").trajectory_id for index in (3, 4, 5, 6)]
    assert {("changed", name) for name in names} < set(found(verify(ledger)))
    assert ("invented", make_trajectory("t-9").trajectory_id) in found(verify(ledger))


def test_chain_that_was_written_again_lacks_the_head_that_was_noted_elsewhere(ledger: Path) -> None:
    head = verify(ledger).head
    assert verify(ledger, head=head).intact
    assert verify(ledger, head=head[:12].upper()).intact
    with closing(sqlite3.connect(ledger, isolation_level=None)) as db:
        db.execute("UPDATE trajectories SET lag = 0 WHERE trained_step = 0")
        db.execute("UPDATE uses SET lag = 0 WHERE step = 0")
        rewrite_chain(db)
    assert verify(ledger).intact, "nothing inside of the file shows it"
    assert found(verify(ledger, head=head)) == [("changed", "the chain")]


def rewrite_chain(db: sqlite3.Connection) -> None:
    """What an attacker who may write the file can do: the same entries, but for the lag of three rows."""
    entries = [entry.notes() for entry in hash_chain.entries(db)]
    db.execute("DELETE FROM chain")
    hash_chain.begin(db)
    for notes in entries:
        for note in notes:
            forged = isinstance(note, TrainedNote) and note.step == 0
            hash_chain.note(db, msgspec.structs.replace(note, lags=[0, 0, 0]) if forged else note)
        hash_chain.seal(db)


def test_provenance_that_was_changed_is_found(ledger: Path) -> None:
    change(ledger, "UPDATE frames SET head = x'00' WHERE frame_id = 1")
    name = make_trajectory("t-0").trajectory_id
    assert found(verify(ledger)) == [("changed", f"frame 1 of {name}")]


def flip_a_byte(data: bytearray) -> None:
    data[-1] ^= 1


def cut_short(data: bytearray) -> None:
    del data[-10:]


@pytest.mark.parametrize("damage", [flip_a_byte, cut_short])
def test_payload_that_was_changed_is_found(ledger: Path, damage: Callable[[bytearray], None]) -> None:
    path = segment_path(ledger.parent / "segments", 1)
    data = bytearray(path.read_bytes())
    damage(data)
    path.write_bytes(data)
    name = make_trajectory("t-7").trajectory_id
    assert found(verify(ledger)) == [("changed", f"payload of frame 8 of {name}")]


def test_payload_that_the_disk_cannot_read_is_found(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = os.pread

    def fail(descriptor: int, size: int, offset: int) -> bytes:
        if offset == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", fail)
    (finding,) = verify(ledger).findings
    assert (finding.kind, finding.what) == ("changed", "payload of frame 1 of t-0.0")
    assert "cannot be read (Input/output error)" in finding.why


def test_payload_put_in_place_of_another_is_found(ledger: Path) -> None:
    path = segment_path(ledger.parent / "segments", 1)
    data = path.read_bytes()
    size = len(message_of(make_trajectory("t-0")).data)
    assert data[:size] != data[size : 2 * size]
    path.write_bytes(data[size : 2 * size] + data[size:])
    name = make_trajectory("t-0").trajectory_id
    assert found(verify(ledger)) == [("changed", f"payload of frame 1 of {name}")]


def test_restored_run_is_intact_and_its_revived_rows_are_covered_again(store: Store) -> None:
    accept(store, "t-0", "t-1")
    for step in range(2):
        commit(store, leased(store, step), step)
    assert fork(store, step=1) == 1
    assert verify(store.ledger_path).intact, "a revived row waits, and is not final"
    again = store.lease(at(1, FORK), batch_size=1, limits=LIMITS, learner_id="learner-1", now_s=NOW_S)
    assert again is not None
    store.commit(
        again.batch_id, version=at(1, FORK), consumptions=consumed(again.trajectory_ids), now_s=NOW_S
    )
    result = verify(store.ledger_path)
    assert (result.findings, result.num_rows) == ([], 2)
