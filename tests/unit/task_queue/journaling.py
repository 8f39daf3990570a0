"""Journals for tests: tasks, outcomes, and what a file says about each trajectory."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tidegate.core.curriculum import CurriculumState
from tidegate.core.ids import LineageName, PolicyVersion, RunId, TrajectoryId, task_id, trajectory_at
from tidegate.core.records import Task
from tidegate.task_queue import packing
from tidegate.task_queue.journal import Journal
from tidegate.task_queue.packed_tasks import all_packed
from tidegate.task_queue.state import TrajectoryState
from tidegate.wire.clients.trajectory_store import Outcome

RUN = RunId("run-1")
HEAD = PolicyVersion(LineageName("0-a"), 0)


def make_task(seq: int, *, num_samples: int = 1, admitted_at_s: float = 1.0) -> Task:
    return Task(
        task_id=task_id(seq),
        run_id=RUN,
        kind="group" if num_samples > 1 else "segment",
        required_version=HEAD,
        num_samples=num_samples,
        admitted_at_s=admitted_at_s,
        trace_parent="00-trace",
    )


def admit(journal: Journal, count: int, *, num_samples: int = 1, admitted_at_s: float = 1.0) -> None:
    tasks = [
        make_task(journal.next_seq + number, num_samples=num_samples, admitted_at_s=admitted_at_s)
        for number in range(count)
    ]
    curriculum = CurriculumState(num_drawn=journal.curriculum.num_drawn + count)
    journal.admit(tasks, curriculum=curriculum)


def outcome(
    seq: int, state: str, *, sample_index: int = 0, trained_at: PolicyVersion | None = None
) -> Outcome:
    return Outcome(trajectory_at(seq, sample_index), state, trained_at=trained_at)


def small_chunks(monkeypatch: pytest.MonkeyPatch, *, num_tasks: int) -> None:
    """Chunks of a few tasks, so that a test needs few to fill them."""
    monkeypatch.setattr(packing, "CHUNK_TASKS", num_tasks)


def states_of(path: Path) -> dict[TrajectoryId, TrajectoryState]:
    """The state of every trajectory, from every row and every chunk of a file."""
    with closing(sqlite3.connect(path)) as db:
        states = {
            trajectory_at(seq, sample_index): TrajectoryState(state)
            for seq, sample_index, state in db.execute("SELECT seq, sample_index, state FROM trajectories")
        }
        for packed in all_packed(db):
            for place, state in enumerate(packed.states()):
                name = trajectory_at(packed.first + place // packed.num_samples, place % packed.num_samples)
                assert name not in states, f"{name} is packed and has a row"
                states[name] = state
    return states
