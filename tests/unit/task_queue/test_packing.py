"""Old rows that are packed: ids, counts, times and the audit stay as they were, and the file stays small."""

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.unit.cli.run_folder import write_accounting
from tests.unit.task_queue.journaling import HEAD, RUN, admit, outcome, small_chunks, states_of
from tidegate.cli.accounting import journal_path, ledger_path, read_accounting
from tidegate.core.errors import CorruptionError
from tidegate.core.ids import RunId, TaskId, task_id, trajectory_at
from tidegate.task_queue import packing
from tidegate.task_queue.journal import Journal, open_journal, read_journal
from tidegate.task_queue.journal_file import (
    admission_of,
    admitted_by_slice,
    count_published,
    first_admission_s,
)
from tidegate.task_queue.packed_tasks import all_packed, count_columns
from tidegate.task_queue.state import Counts
from tidegate.trajectory_store.outcome_log import read_outcomes

CHUNK = 4


@pytest.fixture(autouse=True)
def chunks_of_few_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    small_chunks(monkeypatch, num_tasks=CHUNK)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


def end(journal: Journal, *seqs: int, num_samples: int = 1, state: str = "trained") -> None:
    outcomes = [
        outcome(seq, state, sample_index=sample_index, trained_at=HEAD)
        for seq in seqs
        for sample_index in range(num_samples)
    ]
    journal.apply(outcomes, next_cursor=journal.cursor + len(outcomes), trained_at={})


def pack_all(journal: Journal) -> int:
    num_trajectories = 0
    while packed := journal.pack(rows_kept_max=0):
        num_trajectories += packed
    return num_trajectories


def packed_journal(path: Path) -> Journal:
    """Ten groups of two that ended, of which the first eight are packed; of the third task one was dropped."""
    journal = open_journal(path, run_id=RUN)
    for seq in range(1, 11):
        admit(journal, 1, num_samples=2, admitted_at_s=1_800_000_000.1234 + seq)
    end(journal, *range(1, 11), num_samples=2)
    end(journal, 3, state="dropped")
    assert pack_all(journal) == 16
    return journal


def change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(statement)


def test_packed_tasks_count_and_are_listed_as_before(path: Path) -> None:
    journal = packed_journal(path)
    assert journal.counts == journal.recount() == Counts(trained=19, dropped=1)
    assert (journal.next_seq, journal.published_tasks) == (11, 10)
    again = open_journal(path, run_id=RUN)
    assert (again.counts, again.next_seq, again.published_tasks) == (journal.counts, 11, 10)
    assert again.num_packed == journal.num_packed == 16
    with read_journal(path) as reader:
        assert list(reader.admitted_ids()) == [trajectory_at(seq, n) for seq in range(1, 11) for n in (0, 1)]
        assert (reader.totals().admitted, reader.totals().open, reader.totals().published_tasks) == (
            20,
            0,
            10,
        )


def test_numbers_go_on_behind_a_journal_that_is_packed_to_its_last_task(path: Path) -> None:
    journal = open_journal(path, run_id=RUN)
    admit(journal, CHUNK)
    end(journal, *range(1, CHUNK + 1))
    admit(journal, 1)
    assert pack_all(journal) == CHUNK
    change(path, f"DELETE FROM tasks WHERE seq > {CHUNK}")
    change(path, f"DELETE FROM trajectories WHERE seq > {CHUNK}")
    assert open_journal(path, run_id=RUN).next_seq == CHUNK + 1


def test_nothing_is_packed_up_to_the_bound(path: Path) -> None:
    journal = open_journal(path, run_id=RUN)
    admit(journal, 12)
    end(journal, *range(1, 13))
    assert journal.pack(rows_kept_max=12) == 0
    assert journal.pack(rows_kept_max=11) == CHUNK
    assert journal.pack(rows_kept_max=11) == 0


@pytest.mark.parametrize("state", ["admitted", "accepted"])
def test_oldest_task_in_flight_holds_back_itself_and_those_after_it(path: Path, state: str) -> None:
    journal = open_journal(path, run_id=RUN)
    admit(journal, 13)
    end(journal, *(seq for seq in range(1, 13) if seq != 6))
    if state == "accepted":
        end(journal, 6, state="accepted")
    assert pack_all(journal) == CHUNK
    assert [item.trajectory_id for item in journal.in_flight(limit=10)] == [
        trajectory_at(6, 0),
        trajectory_at(13, 0),
    ]
    end(journal, 6)
    assert pack_all(journal) == 2 * CHUNK


def test_tasks_of_another_number_of_samples_begin_a_chunk_of_their_own(path: Path) -> None:
    journal = open_journal(path, run_id=RUN)
    admit(journal, 2, num_samples=2)
    admit(journal, 5, num_samples=3)
    end(journal, 1, 2, num_samples=2)
    end(journal, *range(3, 8), num_samples=3)
    assert pack_all(journal) == 2 * 2 + CHUNK * 3
    assert journal.recount() == Counts(trained=19)


def test_revived_trajectory_is_in_flight_again_and_its_chunk_is_packed_again_once_it_ended(
    path: Path,
) -> None:
    journal = packed_journal(path)
    before = states_of(path)
    end(journal, 3, state="available")
    assert journal.counts == journal.recount() == Counts(accepted=1, trained=19)
    assert (journal.num_packed, journal.published_tasks) == (8, 10)
    assert [item.trajectory_id for item in journal.in_flight(limit=10)] == [trajectory_at(3, 0)]
    assert journal.running(before_seq=99, limit=10) == []
    assert pack_all(journal) == 0
    end(journal, 3, state="dropped")
    assert pack_all(journal) == 8
    assert states_of(path) == before


def test_outcomes_that_change_nothing_unpack_nothing(path: Path) -> None:
    """As a store that was set back by a power cut sends them: the present state of every row."""
    journal = packed_journal(path)
    changes = journal.apply(
        [outcome(seq, "trained", sample_index=1, trained_at=HEAD) for seq in range(1, 11)], next_cursor=99
    )
    assert (changes.changed, changes.unknown, changes.ended) == (0, 0, ())
    assert journal.num_packed == 16


def test_samples_that_a_packed_task_does_not_have_are_unknown(path: Path) -> None:
    journal = packed_journal(path)
    applied = journal.apply([outcome(3, "trained", sample_index=2)], next_cursor=99)
    assert (applied.unknown, applied.changed) == (1, 0)


def test_reader_sees_one_moment_while_the_writer_packs(path: Path) -> None:
    journal = open_journal(path, run_id=RUN)
    admit(journal, 10)
    end(journal, *range(1, 11))
    expected = [trajectory_at(seq, 0) for seq in range(1, 11)]
    with read_journal(path) as reader:
        ids = reader.admitted_ids()
        first = next(ids)
        assert pack_all(journal) == 2 * CHUNK
        assert [first, *ids] == expected
        assert reader.totals().admitted == 10
    with read_journal(path) as reader:
        assert list(reader.admitted_ids()) == expected


def test_times_of_packed_tasks_are_kept_to_the_millisecond(path: Path) -> None:
    packed_journal(path).close()
    for seq in range(1, 11):
        at_s, attempt = admission_of(path, task_id(seq)) or (0.0, 0)
        assert at_s == pytest.approx(1_800_000_000.1234 + seq, abs=0.0006)
        assert attempt == 1
    for stranger in (task_id(0), task_id(11), task_id(10**30), TaskId("e-0-a-7")):
        assert admission_of(path, stranger) is None
    assert first_admission_s(path) == pytest.approx(1_800_000_001.1234, abs=0.0006)


@pytest.mark.parametrize("slice_s", [0.7, 2.0, 1000.0])
def test_admissions_by_time_are_the_same_packed_or_not(path: Path, slice_s: float) -> None:
    journal, chance, at_s = open_journal(path, run_id=RUN), random.Random(5), 100.0
    for _ in range(15):
        at_s += chance.randint(-300, 3000) / 1000
        admit(journal, 2, num_samples=3, admitted_at_s=at_s)
    end(journal, *range(1, 31), num_samples=3)
    before = admitted_by_slice(path, start_s=105.0, slice_s=slice_s), first_admission_s(path)
    assert pack_all(journal) == 84
    assert (admitted_by_slice(path, start_s=105.0, slice_s=slice_s), first_admission_s(path)) == before
    assert sum(before[0].values()) == 90


def test_audit_of_a_packed_journal_is_that_of_its_rows(tmp_path: Path) -> None:
    record = write_accounting(tmp_path, admitted=12, arrived=9, batches=3, retired=1)
    journal = open_journal(journal_path(tmp_path), run_id=RunId(record.run_id))
    with closing(sqlite3.connect(ledger_path(tmp_path))) as ledger:
        outcomes, cursor = read_outcomes(ledger, 0, limit=1000)
    journal.apply(outcomes, next_cursor=cursor)
    before = read_accounting(tmp_path)
    assert before.audit.balanced
    assert pack_all(journal) == CHUNK
    assert read_accounting(tmp_path) == before
    change(journal_path(tmp_path), "DELETE FROM packed")
    assert read_accounting(tmp_path).audit.unknown == CHUNK, "a chunk that is lost is a finding"
    journal.close()


def test_kill_in_the_middle_of_packing_leaves_the_journal_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run" / "journal.sqlite"
    path.parent.mkdir()
    journal = open_journal(path, run_id=RUN)
    admit(journal, 10, num_samples=2)
    end(journal, *range(1, 11), num_samples=2)
    before = states_of(path), journal.counts, journal.next_seq, journal.published_tasks, journal.cursor

    def killed(*_: object, **__: object) -> None:
        shutil.copytree(path.parent, tmp_path / "image")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(packing, "insert_packed", killed)
        with pytest.raises(KeyboardInterrupt):
            journal.pack(rows_kept_max=0)
    for name in ("run", "image"):
        image = tmp_path / name / "journal.sqlite"
        again = open_journal(image, run_id=RUN)
        found = states_of(image), again.counts, again.next_seq, again.published_tasks, again.cursor
        assert found == before
        assert again.num_packed == 0
        assert pack_all(again) == 16
        again.close()
    journal.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE packed SET content = substr(content, 1, length(content) - 1) WHERE first = 5",
        "UPDATE packed SET content = zeroblob(length(content)) WHERE first = 5",
        "UPDATE packed SET content = 'text' WHERE first = 5",
        "UPDATE packed SET content = (SELECT content FROM packed WHERE first = 1) WHERE first = 5",
        "UPDATE packed SET last = last + 1 WHERE first = 5",
        "UPDATE packed SET num_samples = 9 WHERE first = 5",
        "UPDATE packed SET num_dropped = 1 WHERE first = 5",
        "UPDATE packed SET to_ms = to_ms + 1 WHERE first = 5",
        "UPDATE packed SET kind = 'chat' WHERE first = 5",
    ],
)
def test_damaged_chunk_is_named_with_a_way_back(path: Path, statement: str) -> None:
    journal = packed_journal(path)
    change(path, statement)
    named = "Tasks 5 to [89] of the journal cannot be read.*put the file back"
    with read_journal(path) as reader:
        with pytest.raises(CorruptionError, match=named):
            reader.totals()
        with pytest.raises(CorruptionError, match=named):
            list(reader.admitted_ids())
    with pytest.raises(CorruptionError, match=named):
        admission_of(path, task_id(6))
    counts, cursor = journal.counts, journal.cursor
    with pytest.raises(CorruptionError, match=named):
        end(journal, 2, 6, state="available")
    assert (journal.counts, journal.cursor) == (counts, cursor)
    assert open_journal(path, run_id=RUN).cursor == cursor, "rolled back"


def test_task_whose_trajectory_was_lost_is_named_and_not_packed(path: Path) -> None:
    journal = open_journal(path, run_id=RUN)
    admit(journal, 10, num_samples=2)
    end(journal, *range(1, 11), num_samples=2)
    change(path, "DELETE FROM trajectories WHERE seq = 2 AND sample_index = 1")
    with pytest.raises(
        CorruptionError, match=r"Tasks 1 to 4 .* 8 trajectories of them were admitted, 7 are left"
    ):
        journal.pack(rows_kept_max=0)
    assert journal.num_packed == 0
    assert len(states_of(path)) == 19


def test_file_stays_flat_over_many_packs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_chunks(monkeypatch, num_tasks=64)
    journal, chance = open_journal(path, run_id=RUN), random.Random(2)
    sizes: list[int] = []
    for turn in range(24):
        first = journal.next_seq
        admit(journal, 200, num_samples=8, admitted_at_s=1_800_000_000.0 + turn)
        outcomes = [
            outcome(seq, chance.choice(["trained", "dropped"]), sample_index=sample_index, trained_at=HEAD)
            for seq in range(first, first + 200)
            for sample_index in range(8)
        ]
        journal.apply(outcomes, next_cursor=journal.cursor + 1, trained_at={})
        while journal.pack(rows_kept_max=3_000):
            pass
        with closing(sqlite3.connect(path)) as db:
            (pages,) = db.execute("PRAGMA page_count").fetchone()
        sizes.append(pages * 4096)
    assert journal.num_packed > 34_000
    # 19,200 trajectories more in the second half: 450 kB in rows, and 4 kB of bits.
    assert max(sizes[12:]) <= max(sizes[:12]) + 4 * 4096, sizes
    with closing(sqlite3.connect(path)) as db:
        num_bytes = sum(len(packed.content) for packed in all_packed(db))
    assert num_bytes / journal.num_packed < 0.2
    assert journal.recount() == journal.counts
    journal.close()


def test_opening_a_journal_reads_no_content_of_its_chunks(path: Path) -> None:
    statements: list[str] = []
    open_journal(path, run_id=RUN).close()
    with closing(sqlite3.connect(path)) as db:
        db.set_trace_callback(statements.append)
        count_columns(db)
        count_published(db)
        db.set_trace_callback(None)
        for statement in statements:
            plan = " ".join(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}"))
            assert "packed USING COVERING INDEX packed_numbers" in plan
