"""The ledger against a simple model of the same events, redelivery, restores and crashes included.

The model's learner has the list of its trained trajectories as parameters, and a checkpoint is a copy of that list.
I3 then means that no trajectory is in the parameters twice.
"""

import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.examples import num_examples
from tests.unit.trajectory_store.building import LIMITS, counted, make_trajectory, message_of, open_store
from tidegate.core.audit import LedgerTotals
from tidegate.core.errors import ConflictError
from tidegate.core.ids import LineageName, PolicyVersion, TaskId, TrajectoryId, trajectory_id
from tidegate.core.records import VersionSpan
from tidegate.core.staleness import Expired, Fresh, Lineage, LineageTree, Verdict, judge
from tidegate.trajectory_store import counted_rows
from tidegate.trajectory_store.config import TrajectoryStoreConfig
from tidegate.trajectory_store.counts import count_rows
from tidegate.trajectory_store.memory import load_memory
from tidegate.trajectory_store.reading import ids, totals
from tidegate.trajectory_store.schema import LEDGER_FILE
from tidegate.trajectory_store.store import Store
from tidegate.trajectory_store.verifying import verify
from tidegate.wire.clients.trajectory_store import ConsumedBatch, Consumption, Dropped

# In memory where possible: these tests kill processes and do not simulate power cuts.
SHARED_MEMORY = Path("/dev/shm")
CONFIG = TrajectoryStoreConfig(segment_bytes=4096, frame_cache_bytes=8192, outcomes_max=20)
# Tasks ask for one trajectory, or for a group of two.
TASKS = {f"t-{index}": 1 + index % 2 for index in range(14)}


@dataclass
class Row:
    """The expected state of one trajectory."""

    state: str
    spans: tuple[VersionSpan, ...] = ()
    started_at_s: float = 0.0
    group: str = ""
    group_size: int = 1
    reason: str = ""
    batch_id: str = ""
    trained_at: PolicyVersion | None = None


@dataclass
class Held:
    """A trained batch whose commit is not acknowledged yet."""

    batch_id: str
    version: PolicyVersion
    consumptions: list[Consumption]


@dataclass
class Checkpoint:
    """What a learner needs to resume from here."""

    version: PolicyVersion
    parameters: list[TrajectoryId]
    unconfirmed: list[Held]


@dataclass
class Learner:
    """A learner whose parameters are the list of what they were trained on."""

    version: PolicyVersion
    parameters: list[TrajectoryId] = field(default_factory=list[TrajectoryId])
    unconfirmed: list[Held] = field(default_factory=list[Held])
    confirmed: list[Held] = field(default_factory=list[Held])


class LedgerMachine(RuleBasedStateMachine):
    """Random histories of one store, one learner and its predecessors."""

    store: Store
    learner: Learner

    @initialize()
    def start(self) -> None:
        self.root = Path(tempfile.mkdtemp(dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None))
        self.num_folders = 0
        self.folder = self.root / "0"
        self.now_s = 1000.0
        self.store = open_store(self.folder, config=CONFIG, now_s=self.now_s)
        self.tree = LineageTree().add(Lineage(name=LineageName("0")))
        self.store.open_lineage(
            Lineage(name=LineageName("0")), learner_id="learner", consumed=(), now_s=self.now_s
        )
        self.learner = Learner(version=PolicyVersion(LineageName("0"), 0))
        self.checkpoints = [Checkpoint(self.learner.version, [], [])]
        self.marked: list[PolicyVersion] = []
        self.rows: dict[TrajectoryId, Row] = {}
        self.num_duplicates = 0
        self.num_revived = 0
        self.cursor = 0
        self.reported: dict[TrajectoryId, str] = {}

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.root)

    # -- the world -------------------------------------------------------------------------------------------------

    @rule(
        tasks=st.lists(st.sampled_from(sorted(TASKS)), min_size=1, max_size=5),
        behind=st.integers(0, 6),
        mixed=st.booleans(),
    )
    def deliver(self, tasks: list[str], behind: int, mixed: bool) -> None:
        newest = self.learner.version
        oldest = PolicyVersion(newest.lineage, max(0, newest.step - behind))
        spans = (
            (VersionSpan(oldest, 0, 2), VersionSpan(newest, 2, 4)) if mixed else (VersionSpan(oldest, 0, 4),)
        )
        messages = [
            message_of(
                *(
                    make_trajectory(
                        task, index=index, group_size=TASKS[task], spans=spans, started_at_s=self.now_s
                    )
                    for index in range(TASKS[task])
                )
            )
            for task in tasks
        ]
        intake = self.store.ingest(messages, now_s=self.now_s)
        assert not intake.refused
        for task in tasks:
            for index in range(TASKS[task]):
                name = trajectory_id(TaskId(task), sample_index=index)
                if name in self.rows:
                    self.num_duplicates += 1
                else:
                    self.rows[name] = Row(
                        "available",
                        spans=spans,
                        started_at_s=self.now_s,
                        group=task,
                        group_size=TASKS[task],
                    )

    @rule(tasks=st.lists(st.sampled_from(sorted(TASKS)), min_size=1, max_size=3))
    def drop_unarrived(self, tasks: list[str]) -> None:
        names = {trajectory_id(TaskId(task), sample_index=0) for task in tasks}
        new = [name for name in names if name not in self.rows]
        dropped = [Dropped(name, "failed", "no actor finished it") for name in names]
        assert self.store.drop_unarrived(dropped, now_s=self.now_s) == len(new)
        for name in new:
            self.rows[name] = Row("dropped", reason="failed")

    @rule(seconds=st.sampled_from([1.0, 20.0, 50.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.now_s += seconds
        head = self.store.ledger.head
        assert head is not None
        waiting = [row for row in self.rows.values() if row.state == "available"]
        verdicts = {id(row): self.verdict(row, head) for row in waiting}
        self.store.expire(LIMITS, now_s=self.now_s)
        self.store.tidy(now_s=self.now_s)
        for row in waiting:
            failed = [
                verdicts[id(other)]
                for other in waiting
                if other.group == row.group and not isinstance(verdicts[id(other)], Fresh)
            ]
            if failed:
                row.state = "dropped"
                row.reason = "expired" if isinstance(failed[0], Expired) else "stale"

    @rule()
    def crash_of_the_store(self) -> None:
        """What a kill -9 leaves: the files as they are, with bytes of an unfinished write."""
        self.num_folders += 1
        image = self.root / str(self.num_folders)
        shutil.copytree(self.folder, image)
        self.store.close()
        newest = max((image / "segments").iterdir())
        with newest.open("ab") as segment:
            segment.write(b"torn")
        self.folder = image
        self.store = open_store(image, config=CONFIG, now_s=self.now_s)

    # -- the learner -----------------------------------------------------------------------------------------------

    @rule(at_once=st.integers(1, 20))
    def count_ended(self, at_once: int) -> None:
        """What a start, and a restore, need not count again; an invariant compares with a full count."""
        ledger = self.store.ledger
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(counted_rows, "ROWS_MIN", 1)
            patch.setattr(counted_rows, "ROWS_MAX", at_once)
            ledger.count_ended()

    @rule(batch_size=st.integers(2, 3), trained=st.booleans())
    def lease(self, batch_size: int, trained: bool) -> None:
        version = self.learner.version
        self.note_given_back(version)
        before = {name for name, row in self.rows.items() if row.state == "available"}
        batch = self.store.lease(
            version, batch_size=batch_size, limits=LIMITS, learner_id="learner", now_s=self.now_s
        )
        self.note_overdue(version)
        if batch is None:
            return
        again = self.store.lease(
            version, batch_size=batch_size, limits=LIMITS, learner_id="learner", now_s=self.now_s
        )
        assert again is not None
        assert (again.batch_id, again.frames) == (batch.batch_id, batch.frames)
        groups = Counter(self.rows[name].group for name in batch.trajectory_ids)
        for name in batch.trajectory_ids:
            row = self.rows[name]
            assert isinstance(self.verdict(row, version), Fresh)  # I1
            assert groups[row.group] == row.group_size  # I6
            assert name in before or row.batch_id == batch.batch_id
            row.state, row.batch_id = "leased", batch.batch_id
        if trained:
            self.train(batch.batch_id, version, batch.trajectory_ids)

    def train(self, batch_id: str, version: PolicyVersion, names: list[TrajectoryId]) -> None:
        consumptions = [
            Consumption(name, verdict)
            for name in names
            if isinstance(verdict := self.verdict(self.rows[name], version), Fresh)
        ]
        self.learner.parameters = [*self.learner.parameters, *names]
        self.learner.unconfirmed = [*self.learner.unconfirmed, Held(batch_id, version, consumptions)]
        self.learner.version = PolicyVersion(version.lineage, version.step + 1)

    @precondition(lambda self: self.learner.unconfirmed)
    @rule()
    def commit(self) -> None:
        held, *self.learner.unconfirmed = self.learner.unconfirmed
        self.learner.confirmed = [*self.learner.confirmed, held]
        self.store.commit(
            held.batch_id, version=held.version, consumptions=held.consumptions, now_s=self.now_s
        )
        for item in held.consumptions:
            row = self.rows[item.trajectory_id]
            row.state, row.trained_at = "trained", held.version

    @precondition(lambda self: self.learner.confirmed)
    @rule(data=st.data())
    def commit_again(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.learner.confirmed))
        self.store.commit(
            held.batch_id, version=held.version, consumptions=held.consumptions, now_s=self.now_s
        )

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        trained = {held.batch_id for held in self.learner.unconfirmed}
        leased = {row.batch_id for row in self.rows.values() if row.state == "leased"} - trained
        if not leased:
            return
        batch_id = data.draw(st.sampled_from(sorted(leased)))
        members = {name: row for name, row in self.rows.items() if row.batch_id == batch_id}
        lost = data.draw(st.lists(st.sampled_from(sorted(members)), unique=True, max_size=2))
        self.store.release(
            batch_id, dropped=[Dropped(name, "stale", "too late") for name in lost], now_s=self.now_s
        )
        lost_groups = {members[name].group for name in lost}
        for row in members.values():
            row.state, row.batch_id = "available", ""
            if row.group in lost_groups:
                row.state, row.reason = "dropped", "stale"

    @rule(marked=st.booleans())
    def checkpoint(self, marked: bool) -> None:
        learner = self.learner
        self.checkpoints.append(
            Checkpoint(learner.version, list(learner.parameters), list(learner.unconfirmed))
        )
        if marked:
            self.marked.append(learner.version)
            self.store.mark_checkpointed(learner.version)

    @rule(data=st.data(), twice=st.booleans())
    def restore(self, data: st.DataObject, twice: bool) -> None:
        """The learner dies and resumes from its newest checkpoint, or from an older one if that is corrupt."""
        checkpoint = data.draw(st.sampled_from(self.checkpoints[-3:]))
        lost = self.learner
        name = LineageName(str(len(self.tree.lineages)))
        lineage = Lineage(name=name, parent=checkpoint.version.lineage, fork_step=checkpoint.version.step)
        self.tree = self.tree.add(lineage)
        consumed = [
            ConsumedBatch(held.batch_id, held.version, held.consumptions) for held in checkpoint.unconfirmed
        ]
        for _ in range(2 if twice else 1):
            self.store.open_lineage(lineage, learner_id="learner", consumed=consumed, now_s=self.now_s)
        kept = set(checkpoint.parameters)
        for trajectory, row in self.rows.items():
            was_trained = row.state == "trained"
            if trajectory in kept:
                row.state, row.reason = "trained", ""
            elif row.state == "leased" or was_trained:
                row.state, row.batch_id, row.trained_at = "available", "", None
                self.num_revived += was_trained
                self.note_superseded(trajectory, row, was_trained=was_trained)
        self.learner = Learner(
            version=PolicyVersion(name, checkpoint.version.step), parameters=list(checkpoint.parameters)
        )
        for held in [*lost.unconfirmed, *lost.confirmed]:
            if held.batch_id not in {batch.batch_id for batch in consumed}:
                self.refuses_the_dead_learner(held)

    def refuses_the_dead_learner(self, held: Held) -> None:
        if all(self.rows[item.trajectory_id].state == "trained" for item in held.consumptions):
            return  # it was committed in time and survives: committing it again is fine
        state = self.store.ledger.connection.execute(
            "SELECT state FROM batches WHERE batch_id = ?", (held.batch_id,)
        ).fetchone()[0]
        if state == "committed":
            return  # committed in a branch that was lost: the repeated commit changes nothing
        try:
            self.store.commit(
                held.batch_id, version=held.version, consumptions=held.consumptions, now_s=self.now_s
            )
        except ConflictError:
            return
        raise AssertionError("a commit of a lease that ended was taken")

    # -- the account -----------------------------------------------------------------------------------------------

    def verdict(self, row: Row, head: PolicyVersion) -> Verdict:
        return judge(
            row.spans,
            started_at_s=row.started_at_s,
            head=head,
            tree=self.tree,
            limits=LIMITS,
            now_s=self.now_s,
        )

    def note_overdue(self, version: PolicyVersion) -> None:
        """A request for a batch may drop whole groups that are beyond the budget, and nothing else."""
        for name, row in self.rows.items():
            if row.state == "available":
                actual = self.store.trajectory(name)
                if actual.state == "dropped":
                    members = [
                        other
                        for other in self.rows.values()
                        if other.group == row.group and other.state in ("available", "gone")
                    ]
                    assert any(not isinstance(self.verdict(other, version), Fresh) for other in members)
                    row.reason = actual.reason
                    row.state = "gone"
        for row in self.rows.values():
            if row.state == "gone":
                row.state = "dropped"

    def note_given_back(self, version: PolicyVersion) -> None:
        """A repeated request for a batch that expired meanwhile releases it, less its overdue groups."""
        trained = {held.batch_id for held in self.learner.unconfirmed}
        held = [row for row in self.rows.values() if row.state == "leased" and row.batch_id not in trained]
        overdue = {row.group for row in held if not isinstance(self.verdict(row, version), Fresh)}
        if overdue:
            for row in held:
                row.state, row.batch_id = "available", ""

    def note_superseded(self, name: TrajectoryId, row: Row, *, was_trained: bool) -> None:
        """Only what a checkpoint had made superfluous may be without its payload."""
        if self.store.trajectory(name).state == "dropped":
            assert was_trained
            assert self.marked
            row.state, row.reason = "dropped", "superseded"
            self.num_revived -= 1

    @invariant()
    def conserves_every_trajectory(self) -> None:
        if not hasattr(self, "store"):
            return
        states = Counter(row.state for row in self.rows.values())
        expected = LedgerTotals(
            available=states["available"],
            leased=states["leased"],
            trained=states["trained"],
            dropped=dict(Counter(row.reason for row in self.rows.values() if row.state == "dropped")),  # pyright: ignore[reportArgumentType]  # reasons
            duplicates=self.num_duplicates,
            revived=self.num_revived,
        )
        assert self.store.totals() == counted(self.folder / LEDGER_FILE)
        db = self.store.ledger.connection
        after_a_start, recounted = (
            tally.totals(trained_twice=0) for tally in (load_memory(db).tally, count_rows(db))
        )
        assert after_a_start == recounted
        judged = totals(self.folder / LEDGER_FILE).budgets
        assert (judged.over, judged.unnoted) == (0, 0)
        for found in (self.store.totals(), totals(self.folder / LEDGER_FILE)):
            assert found.available == expected.available
            assert found.leased == expected.leased
            assert found.trained == expected.trained == sum(found.trained_by_lag.values())
            assert found.dropped == expected.dropped
            assert found.duplicates == expected.duplicates
            assert found.revived == expected.revived
            assert found.max_lag_trained <= LIMITS.max_lag
            assert found.trained_twice == 0
        assert set(ids(self.folder / LEDGER_FILE)) == set(self.rows)

    @invariant()
    def trains_nothing_twice(self) -> None:
        if not hasattr(self, "store"):
            return
        learner = self.learner
        assert len(learner.parameters) == len(set(learner.parameters))
        unconfirmed = {item.trajectory_id for held in learner.unconfirmed for item in held.consumptions}
        trained = {name for name, row in self.rows.items() if row.state == "trained"}
        assert set(learner.parameters) - unconfirmed == trained
        assert unconfirmed <= {name for name, row in self.rows.items() if row.state == "leased"}

    @invariant()
    def is_intact(self) -> None:
        if not hasattr(self, "store"):
            return
        assert verify(self.folder / LEDGER_FILE).findings == []

    @invariant()
    def tells_every_outcome_to_a_reader_that_may_be_late(self) -> None:
        if not hasattr(self, "store"):
            return
        while True:
            outcomes, cursor = self.store.outcomes(self.cursor, limit=7)
            self.reported.update((outcome.trajectory_id, outcome.state) for outcome in outcomes)
            if cursor == self.cursor:
                break
            self.cursor = cursor
        for name, row in self.rows.items():
            expected = {"available": {"accepted", "available"}, "leased": {"accepted", "available"}}
            assert self.reported[name] in expected.get(row.state, {row.state})


LedgerMachine.TestCase.settings = settings(max_examples=num_examples(30), stateful_step_count=40)
TestLedgerAgainstAnObviousAccount = LedgerMachine.TestCase
