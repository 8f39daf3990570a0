import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from tests.unit.cli.run_folder import id_of, write_accounting, write_run
from tidegate.cli.accounting import journal_path, ledger_path, read_accounting
from tidegate.cli.app import run
from tidegate.cli.audit import one_line
from tidegate.core.errors import CorruptionError, NotFoundError
from tidegate.core.ids import RunId, TaskId, TrajectoryId
from tidegate.trajectory_store.config import TrajectoryStoreConfig
from tidegate.trajectory_store.store import Store
from tidegate.wire.clients.trajectory_store import Dropped


def test_books_of_a_stopped_run_balance_to_the_last_trajectory(tmp_path: Path) -> None:
    write_accounting(tmp_path, admitted=12, arrived=9, batches=3, retired=1)
    audit = read_accounting(tmp_path).audit
    assert audit.balanced
    assert (audit.admitted, audit.trained, audit.available, audit.awaiting) == (12, 6, 3, 2)
    assert audit.dropped == {"retired": 1}
    assert audit.in_flight == 5
    assert (audit.max_lag_trained, audit.max_lag, audit.trained_twice) == (2, 4, 0)


def test_ledger_row_that_nobody_admitted_unbalances_the_books(tmp_path: Path) -> None:
    record = write_accounting(tmp_path)
    run_id = RunId(record.run_id)
    store = Store(ledger_path(tmp_path).parent, run_id=run_id, config=TrajectoryStoreConfig(), now_s=0.0)
    store.drop_unarrived([Dropped(TrajectoryId(f"{TaskId('stranger')}.0"), "failed")], now_s=0.0)
    store.close()
    accounting = read_accounting(tmp_path)
    assert not accounting.audit.balanced
    assert accounting.audit.unknown == 1
    assert "NOT balanced" in one_line(accounting)


def test_run_that_never_wrote_books_says_where_to_look(tmp_path: Path) -> None:
    write_run(tmp_path)
    with pytest.raises(NotFoundError, match="logs/"):
        read_accounting(tmp_path)


def test_audit_verifies_the_ledger_and_fails_on_a_changed_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_accounting(tmp_path, admitted=12, arrived=9, batches=3)
    command = ["audit", "--verify", "--dir", str(tmp_path)]
    assert run(command) == 0
    head = capsys.readouterr().out.split("head ")[1].strip()
    assert run([*command, "--head", head[:16]]) == 0
    assert run([*command, "--head", "0" * 16]) == 1
    assert "no entry has the digest" in capsys.readouterr().out
    with closing(sqlite3.connect(ledger_path(tmp_path))) as db, db:
        db.execute("UPDATE trajectories SET age_s = 9.5 WHERE seq = 1")
    assert run(command) == 1
    told = capsys.readouterr().out
    assert f"changed: {id_of(1)}: age_s of row 1 are not" in told
    assert "NOT intact (1 findings)" in told
    assert run([*command, "--json"]) == 1
    answer = msgspec.json.decode(capsys.readouterr().out)
    assert (answer["balanced"], answer["verification"]["num_findings"]) == (True, 1)


def test_head_without_verify_is_refused(tmp_path: Path) -> None:
    write_accounting(tmp_path)
    assert run(["audit", "--dir", str(tmp_path), "--head", "ab"]) == 2


def test_book_that_is_no_database_is_named(tmp_path: Path) -> None:
    write_accounting(tmp_path)
    journal_path(tmp_path).write_bytes(b"not a database, and long enough to be looked at" * 100)
    with pytest.raises(CorruptionError, match=r"journal\.sqlite"):
        read_accounting(tmp_path)
