"""Answers from the file alone, while the store runs and after it stopped."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.disks import file_size_limited
from tests.unit.trajectory_store.building import (
    FORK,
    MAIN,
    NOW_S,
    at,
    consumed,
    counted,
    lease,
    make_trajectory,
    message_of,
    open_store,
    started_store,
)
from tidegate.core.errors import CorruptionError, NotFoundError, StaleFolderError, UnavailableError
from tidegate.core.ids import TrajectoryId
from tidegate.core.records import VersionSpan
from tidegate.core.staleness import Lineage
from tidegate.trajectory_store import reading
from tidegate.trajectory_store.reading import LEDGER_FILE, ids, rows, totals, trajectory
from tidegate.trajectory_store.store import Store
from tidegate.wire.clients.trajectory_store import Dropped


def lived(folder: Path) -> Store:
    """One trajectory trained, one dropped, one dropped without ever arriving."""
    store = started_store(folder)
    mixed = (VersionSpan(at(1), 0, 2), VersionSpan(at(3), 2, 4))
    store.ingest([message_of(make_trajectory("t-1", spans=mixed, reward=1.0))], now_s=NOW_S + 2)
    batch = lease(store, at(4), now_s=NOW_S + 3)
    assert batch is not None
    store.commit(
        batch.batch_id,
        version=at(4),
        consumptions=consumed(batch.trajectory_ids, lag=3),
        now_s=NOW_S + 4,
    )
    store.ingest([message_of(make_trajectory("t-2", version=at(0)))], now_s=NOW_S)
    assert lease(store, at(9)) is None
    store.drop_unarrived([Dropped(TrajectoryId("t-3.0"), "failed", "gave up")], now_s=NOW_S)
    return store


def test_file_of_a_running_store_agrees_with_its_memory(tmp_path: Path) -> None:
    store = lived(tmp_path)
    assert counted(tmp_path / LEDGER_FILE) == store.totals()
    assert list(ids(tmp_path / LEDGER_FILE)) == ["t-1.0", "t-2.0", "t-3.0"]
    store.close()


def test_file_of_a_stopped_store_gives_the_same_answers(tmp_path: Path) -> None:
    store = lived(tmp_path)
    running = store.totals()
    store.close()
    assert counted(tmp_path / LEDGER_FILE) == running


def test_row_is_found_without_reading_the_ids_of_folded_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each traced drop asks for its row, and a long run has many folded ids."""
    lived(tmp_path).close()
    monkeypatch.delattr(reading, "load_ids")
    assert trajectory(tmp_path / LEDGER_FILE, "t-1.0").state == "trained"


@pytest.mark.parametrize("is_old", [False, True])
def test_newest_step_of_a_closed_lineage_is_found_by_an_index(tmp_path: Path, *, is_old: bool) -> None:
    """Each arrival of such a lineage asks for it; a million trajectories are tens of thousands of batches."""
    store = lived(tmp_path)
    if is_old:
        store.ledger.connection.execute("DROP INDEX batches_by_update")
        store.close()
        store = open_store(tmp_path)
    asked: list[str] = []
    store.ledger.connection.set_trace_callback(asked.append)
    store.open_lineage(Lineage(FORK, MAIN, 5), learner_id="learner-1", consumed=(), now_s=NOW_S)
    asked.clear()
    assert store.ledger.newest_step(MAIN) == 5
    store.ledger.connection.set_trace_callback(None)
    [query] = asked
    [(*_, plan)] = store.ledger.connection.execute(f"EXPLAIN QUERY PLAN {query}").fetchall()
    assert "batches_by_update" in plan
    store.close()


def test_row_of_a_trajectory_contains_its_history(tmp_path: Path) -> None:
    lived(tmp_path).close()
    trained, dropped, unarrived = rows(tmp_path / LEDGER_FILE)
    assert (trained.state, trained.trained_at, trained.stale_by_versions) == ("trained", at(4), 3)
    assert (trained.oldest_version, trained.newest_version) == (at(1), at(3))
    assert (trained.reward, trained.mean_return, trained.num_episodes, trained.num_steps) == (1.0, 20.0, 1, 4)
    assert (trained.started_at_s, trained.finished_at_s) == (NOW_S, NOW_S + 1)
    assert (trained.accepted_at_s, trained.leased_at_s, trained.terminal_at_s) == (
        NOW_S + 2,
        NOW_S + 3,
        NOW_S + 4,
    )
    assert (dropped.state, dropped.reason, dropped.trained_at) == ("dropped", "stale", None)
    assert (unarrived.reason, unarrived.oldest_version, unarrived.num_steps) == ("failed", None, 0)


def test_trace_of_a_trained_trajectory_has_every_stage_after_its_payload_is_gone(tmp_path: Path) -> None:
    store = lived(tmp_path)
    store.mark_checkpointed(at(5))
    store.close()
    for segment in (tmp_path / "segments").iterdir():
        segment.unlink()
    status = trajectory(tmp_path / LEDGER_FILE, "t-1.0")
    assert status.trajectory.trajectory_id == "t-1.0"
    assert status.trajectory.spans == (VersionSpan(at(1), 0, 2), VersionSpan(at(3), 2, 4))
    assert status.trajectory.tensors == {}
    assert [(stage.stage, stage.worker) for stage in status.stages] == [
        ("trajectory.generate", "actor-0"),
        ("store.append", "trajectory_store"),
        ("trajectory.consume", "learner-0"),
    ]
    assert [stage.finished_at_s for stage in status.stages[1:]] == [NOW_S + 2, NOW_S + 4]


def test_trajectory_that_never_arrived_has_an_outcome_and_nothing_else(tmp_path: Path) -> None:
    lived(tmp_path).close()
    status = trajectory(tmp_path / LEDGER_FILE, "t-3.0")
    assert (status.state, status.reason, status.detail) == ("dropped", "failed", "gave up")
    assert (status.trajectory.task_id, status.trajectory.spans, status.stages) == ("t-3", (), ())


def test_unknown_trajectory_and_missing_file_are_named(tmp_path: Path) -> None:
    lived(tmp_path).close()
    with pytest.raises(NotFoundError, match="t-404"):
        trajectory(tmp_path / LEDGER_FILE, "t-404")
    with pytest.raises(NotFoundError, match="no ledger"):
        totals(tmp_path / "elsewhere" / LEDGER_FILE)


def test_file_that_is_no_ledger_is_named(tmp_path: Path) -> None:
    (tmp_path / LEDGER_FILE).write_bytes(b"this is no database" * 100)
    with pytest.raises(CorruptionError, match="cannot be read"):
        totals(tmp_path / LEDGER_FILE)
    with pytest.raises(CorruptionError, match="cannot be read"):
        started_store(tmp_path)


def test_ledger_of_another_schema_is_named(tmp_path: Path) -> None:
    lived(tmp_path).close()
    with sqlite3.connect(tmp_path / LEDGER_FILE) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StaleFolderError, match="version 99"):
        totals(tmp_path / LEDGER_FILE)
    with pytest.raises(StaleFolderError, match="version 99"):
        started_store(tmp_path)


def test_reader_cannot_write(tmp_path: Path) -> None:
    store = lived(tmp_path)
    reader = ids(tmp_path / LEDGER_FILE)
    assert next(reader) == "t-1.0"
    store.drop_unarrived([Dropped(TrajectoryId("t-9.0"), "failed")], now_s=NOW_S)
    assert list(reader) == ["t-2.0", "t-3.0"]
    assert "t-9.0" in set(ids(tmp_path / LEDGER_FILE))
    store.close()


def test_ledger_on_a_full_disk_is_unavailable_and_opens_later(tmp_path: Path) -> None:
    lived(tmp_path).close()
    with file_size_limited(4096), pytest.raises(UnavailableError, match="cannot be opened"):
        started_store(tmp_path)
    started_store(tmp_path).close()


def test_ledger_with_a_damaged_page_is_refused_by_name(tmp_path: Path) -> None:
    lived(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / LEDGER_FILE)) as db:
        (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'trajectories'").fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
    with (tmp_path / LEDGER_FILE).open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    with pytest.raises(CorruptionError, match="cannot be read"):
        started_store(tmp_path)
