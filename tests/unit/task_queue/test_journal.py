"""The journal on disk, held against a model that keeps everything in a dictionary."""

import sqlite3
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.disks import file_size_limited
from tests.support.examples import num_examples
from tests.unit.task_queue.journaling import HEAD, RUN, admit, make_task, outcome, small_chunks, states_of
from tidegate.core.admission import Limits
from tidegate.core.curriculum import CurriculumState
from tidegate.core.errors import (
    CorruptionError,
    NotFoundError,
    StaleFolderError,
    TidegateError,
    UnavailableError,
)
from tidegate.core.ids import LineageName, PolicyVersion, RunId, TrajectoryId, task_id, trajectory_at
from tidegate.core.records import Task
from tidegate.task_queue.journal import open_journal, read_admitted_ids, read_journal
from tidegate.task_queue.journal_file import admission_of
from tidegate.task_queue.state import Counts, TrajectoryState, state_after
from tidegate.wire.clients.trajectory_store import Outcome
from tidegate.wire.convert import task_from_bytes


class JournalMachine(RuleBasedStateMachine):
    """Admissions, publishes, outcomes (of known and unknown ids, twice), packing and crashes, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.monkeypatch = pytest.MonkeyPatch()
        small_chunks(self.monkeypatch, num_tasks=3)
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "journal.sqlite"
        self.states: dict[TrajectoryId, TrajectoryState] = {}
        self.published: set[int] = set()
        self.cursor = 0
        self.ahead: Counter[PolicyVersion] = Counter()
        self.admitted_at_s: list[float] = []

    @initialize(data=st.data(), num_samples=st.integers(1, 3))
    def open(self, data: st.DataObject, num_samples: int) -> None:
        """A run that has packed some of its tasks."""
        self.journal = open_journal(self.path, run_id=RUN)
        self.admit(count=8, num_samples=num_samples, at_s=1e9)
        self.end_the_oldest_and_pack(data=data, share=0.8, rows_kept_max=0)
        assert self.journal.num_packed == 6 * num_samples

    # The clock may step back.
    @rule(count=st.integers(1, 7), num_samples=st.integers(1, 3), at_s=st.floats(1e9, 2e9))
    def admit(self, count: int, num_samples: int, at_s: float) -> None:
        first = self.journal.next_seq
        admit(self.journal, count, num_samples=num_samples, admitted_at_s=at_s)
        self.admitted_at_s += [at_s] * count
        for seq in range(first, first + count):
            for sample_index in range(num_samples):
                self.states[trajectory_at(seq, sample_index)] = TrajectoryState.ADMITTED

    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        waiting = [item.seq for item in self.journal.unpublished(limit=100)]
        chosen = data.draw(st.lists(st.sampled_from(waiting), unique=True)) if waiting else []
        self.journal.mark_published(chosen)
        self.journal.mark_published(chosen)
        self.published |= set(chosen)

    @rule(
        data=st.data(),
        states=st.lists(
            st.sampled_from(["accepted", "available", "trained", "dropped"]), min_size=1, max_size=5
        ),
        step=st.integers(0, 3),
    )
    def follow(self, data: st.DataObject, states: list[str], step: int) -> None:
        known = [*self.states, TrajectoryId("t9999999999.0"), TrajectoryId("not ours")]
        version = PolicyVersion(LineageName("0-a"), step)
        outcomes = [
            Outcome(
                data.draw(st.sampled_from(known)), state, trained_at=version if state == "trained" else None
            )
            for state in states
        ]
        self.follow_outcomes(outcomes, version=version)

    @rule(data=st.data(), share=st.floats(0.0, 1.0), rows_kept_max=st.integers(0, 5))
    def end_the_oldest_and_pack(self, data: st.DataObject, share: float, rows_kept_max: int) -> None:
        """Most that is old has ended, in a run: only that is packed."""
        oldest = sorted(self.states)[: round(share * len(self.states))]
        open_ids = [name for name in oldest if self.states[name] <= TrajectoryState.ACCEPTED]
        dropped = data.draw(st.sets(st.sampled_from(open_ids))) if open_ids else set[TrajectoryId]()
        self.follow_outcomes(
            [
                Outcome(name, "dropped" if name in dropped else "trained", trained_at=HEAD)
                for name in open_ids
            ],
            version=HEAD,
        )
        while self.journal.pack(rows_kept_max=rows_kept_max):
            pass

    @rule(data=st.data())
    def explain(self, data: st.DataObject) -> None:
        seq = data.draw(st.integers(1, self.journal.next_seq))
        found = admission_of(self.path, task_id(seq))
        if seq == self.journal.next_seq:
            assert found is None
        else:
            assert found == (pytest.approx(self.admitted_at_s[seq - 1], abs=0.0006), 1)

    def follow_outcomes(self, outcomes: list[Outcome], *, version: PolicyVersion) -> None:
        self.cursor += len(outcomes)
        applied = self.journal.apply(outcomes, next_cursor=self.cursor)
        changed = 0
        ended: list[Outcome] = []
        for item in outcomes:
            before = self.states.get(item.trajectory_id)
            if before is None:
                continue
            after = state_after(before, item.state)
            changed += after is not before
            if after is not before and after > TrajectoryState.ACCEPTED:
                ended.append(item)
            self.states[item.trajectory_id] = after
            if before is TrajectoryState.ADMITTED:
                self.published.add(int(item.trajectory_id[1:11]))
            if after is TrajectoryState.TRAINED and after is not before:
                self.ahead[version] += 1
        assert applied.changed == changed
        assert applied.unknown == sum(item.trajectory_id not in self.states for item in outcomes)
        assert list(applied.ended) == ended

    @rule()
    def crash(self) -> None:
        """The process dies between two transactions: nothing is closed, the file is what is left."""
        survivor = open_journal(self.path, run_id=RUN)
        assert survivor.counts == self.journal.counts
        assert survivor.next_seq == self.journal.next_seq
        assert survivor.published_tasks == self.journal.published_tasks
        assert survivor.num_packed == self.journal.num_packed
        assert survivor.curriculum == self.journal.curriculum
        self.journal.close()
        self.journal = survivor

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "journal"):
            return
        journal, tally = self.journal, Counter(self.states.values())
        assert journal.counts == Counts(*(tally[state] for state in TrajectoryState)) == journal.recount()
        assert journal.cursor == self.cursor
        assert journal.trained_at == dict(self.ahead)
        assert journal.published_tasks == len(self.published)
        waiting = [item.seq for item in journal.unpublished(limit=1000)]
        assert waiting == [seq for seq in range(1, journal.next_seq) if seq not in self.published]
        assert len(waiting) == journal.unpublished_tasks
        running = [key for key, state in self.states.items() if state is TrajectoryState.ADMITTED]
        assert journal.running(before_seq=journal.next_seq, limit=1000) == sorted(running)
        in_flight = [key for key, state in self.states.items() if state <= TrajectoryState.ACCEPTED]
        assert [item.trajectory_id for item in journal.in_flight(limit=1000)] == sorted(in_flight)
        with read_journal(self.path) as reader:
            assert list(reader.admitted_ids()) == sorted(self.states)
            totals = reader.totals()
        assert totals.admitted == len(self.states)
        assert totals.open == len(in_flight)
        assert states_of(self.path) == self.states

    def teardown(self) -> None:
        self.monkeypatch.undo()
        self.journal.close()
        self.folder.cleanup()


JournalMachine.TestCase.settings = settings(max_examples=num_examples(40), stateful_step_count=15)
TestJournalAgreesWithItsModel = JournalMachine.TestCase


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


def test_task_is_on_disk_with_its_message_before_it_is_published(path: Path) -> None:
    journal = open_journal(path, run_id=RUN)
    admit(journal, 2, num_samples=3)
    after_crash = open_journal(path, run_id=RUN)
    waiting = after_crash.unpublished(limit=10)
    assert [(item.seq, item.task_id, item.attempt) for item in waiting] == [
        (1, task_id(1), 1),
        (2, task_id(2), 1),
    ]
    assert task_from_bytes(waiting[0].spec) == make_task(1, num_samples=3)
    assert after_crash.next_seq == 3


def test_message_is_forgotten_once_the_store_has_heard_of_the_task(path: Path) -> None:
    journal = open_journal(path, run_id=RUN)
    admit(journal, 2)
    journal.mark_published([1, 2])
    journal.apply([outcome(1, "accepted")], next_cursor=1)
    journal.close()
    with sqlite3.connect(path) as db:
        assert [spec is None for (spec,) in db.execute("SELECT spec FROM tasks ORDER BY seq")] == [
            True,
            False,
        ]


def test_outcome_says_that_a_task_was_published_whose_acknowledgement_was_lost(path: Path) -> None:
    journal = open_journal(path, run_id=RUN)
    admit(journal, 1)
    journal.apply([outcome(1, "dropped")], next_cursor=1)
    assert journal.unpublished(limit=10) == []
    assert journal.unpublished_tasks == 0


def test_failed_transaction_leaves_memory_and_file_as_they_were(path: Path) -> None:
    journal = open_journal(path, run_id=RUN)
    admit(journal, 1)
    duplicate = Task(task_id=task_id(2), run_id=RUN, kind="segment", required_version=HEAD, num_samples=1)
    with sqlite3.connect(path) as db:
        db.execute(
            "INSERT INTO tasks (seq, task_id, kind, num_samples, admitted_at_s) VALUES (9, ?, 'segment', 1, 0)",
            (task_id(2),),
        )
    with pytest.raises(TidegateError, match="cannot be written"):
        journal.admit([duplicate], curriculum=CurriculumState(num_drawn=9))
    assert (journal.next_seq, journal.counts, journal.curriculum.num_drawn) == (2, Counts(running=1), 1)
    assert journal.recount() == Counts(running=1)


def test_revived_trajectory_is_in_flight_again_and_not_running(path: Path) -> None:
    journal = open_journal(path, run_id=RUN)
    admit(journal, 1)
    for cursor, state in enumerate(("accepted", "trained"), start=1):
        journal.apply([outcome(1, state, trained_at=HEAD)], next_cursor=cursor)
    assert journal.counts == Counts(trained=1)
    journal.apply([outcome(1, "available")], next_cursor=3)
    assert journal.counts == Counts(accepted=1)


def test_announced_updates_are_forgotten_with_the_next_outcomes(path: Path) -> None:
    journal = open_journal(path, run_id=RUN)
    admit(journal, 2)
    journal.apply([outcome(1, "trained", trained_at=HEAD)], next_cursor=1)
    journal.apply([outcome(2, "trained", trained_at=HEAD)], next_cursor=2, trained_at={})
    assert journal.trained_at == {HEAD: 1}
    assert open_journal(path, run_id=RUN).trained_at == {HEAD: 1}


def test_limits_evaluation_and_position_survive_a_restart(path: Path) -> None:
    journal = open_journal(path, run_id=RUN)
    assert journal.limits is None
    assert journal.evaluated is None
    limits = Limits(max_lag=2, batch_size=4, max_running=8, paused=True, reason="why")
    journal.keep_limits(limits)
    journal.keep_evaluated(HEAD)
    journal.keep_dataset_size(10)
    admit(journal, 13)
    again = open_journal(path, run_id=RUN)
    assert again.limits == limits
    assert again.evaluated == HEAD
    again.keep_dataset_size(10)
    assert (again.totals().epoch, again.totals().position) == (1, 3)
    with read_journal(path) as reader:
        assert (reader.totals().epoch, reader.totals().position) == (1, 3)


def test_folder_of_another_run_or_another_schema_is_refused(path: Path) -> None:
    open_journal(path, run_id=RUN).close()
    with pytest.raises(StaleFolderError, match="belongs to run 'run-1', this is 'run-2'"):
        open_journal(path, run_id=RunId("run-2"))
    with sqlite3.connect(path) as db:
        db.execute("UPDATE meta SET value = '99' WHERE key = 'schema'")
    with pytest.raises(StaleFolderError, match="schema 99"):
        open_journal(path, run_id=RUN)
    with pytest.raises(StaleFolderError, match="schema 99"), read_journal(path):
        pass


def test_file_that_is_no_journal_is_refused_by_writer_and_reader(path: Path) -> None:
    path.write_bytes(b"this is no database" * 500)
    with pytest.raises(CorruptionError, match="not a readable journal"):
        open_journal(path, run_id=RUN)
    with pytest.raises(CorruptionError, match="not a readable journal"), read_journal(path):
        pass
    with pytest.raises(NotFoundError), read_journal(path.with_name("nothing.sqlite")):
        pass


def test_empty_database_without_tables_is_refused_by_the_reader(path: Path) -> None:
    sqlite3.connect(path).close()
    path.touch()
    with pytest.raises(CorruptionError), read_journal(path):
        pass


def test_reader_sees_one_moment_while_the_writer_goes_on(path: Path) -> None:
    journal = open_journal(path, run_id=RUN)
    admit(journal, 3)
    with read_journal(path) as reader:
        ids = reader.admitted_ids()
        first = next(ids)
        admit(journal, 2)
        assert [first, *ids] == [trajectory_at(seq, 0) for seq in (1, 2, 3)]
        assert reader.totals().admitted == 3
        assert reader.run_id() == RUN
    assert len(list(read_admitted_ids(path))) == 5


def test_stopped_journal_can_be_read_from_a_copy_without_its_log(path: Path, tmp_path: Path) -> None:
    journal = open_journal(path, run_id=RUN)
    admit(journal, 2)
    journal.set_retired(retired=True)
    journal.close()
    copy = tmp_path / "copy.sqlite"
    copy.write_bytes(path.read_bytes())
    with read_journal(copy) as reader:
        assert reader.totals().admitted == 2
        assert reader.totals().retired


def test_lookups_of_open_work_do_not_scan_what_is_done(path: Path) -> None:
    open_journal(path, run_id=RUN).close()
    with sqlite3.connect(path) as db:
        plan = db.execute(
            "EXPLAIN QUERY PLAN SELECT seq FROM trajectories WHERE state <= 1 AND state = 0 AND seq < 9"
        ).fetchall()
    assert "trajectories_open" in plan[0][3]


def test_journal_on_a_full_disk_is_unavailable_and_opens_later(path: Path) -> None:
    open_journal(path, run_id=RUN).close()
    with file_size_limited(4096), pytest.raises(UnavailableError, match="cannot be opened"):
        open_journal(path, run_id=RUN)
    open_journal(path, run_id=RUN).close()
