from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.ids import LineageName, PolicyVersion, RunId, task_id, trajectory_at
from tidegate.core.lengths import NUM_BINS_MAX
from tidegate.core.records import Task
from tidegate.runtime.stats_board import StatsBoard
from tidegate.task_queue.mix import MixCounts
from tidegate.wire.clients.trajectory_store import Outcome


def make_board() -> StatsBoard:
    return StatsBoard(service="task_queue", instance="task_queue", started_at_s=0.0)


def make_task(seq: int, bin_name: str, *, num_samples: int = 1) -> Task:
    return Task(
        task_id=task_id(seq),
        run_id=RunId("run-1"),
        kind="group",
        required_version=PolicyVersion(LineageName("0-a"), 0),
        num_samples=num_samples,
        curriculum_bin=bin_name,
    )


def values(board: StatsBoard) -> dict[str, float]:
    return board.snapshot(at_s=0.0).values


def test_admitted_decided_and_trained_are_counted_by_bin_and_length() -> None:
    board = make_board()
    mix = MixCounts(board, tasks_max=10)
    mix.admitted([make_task(1, "easy", num_samples=2), make_task(2, "hard", num_samples=2)], first_seq=1)
    mix.ended(
        [
            Outcome(trajectory_at(1, 0), "trained", curriculum_bin="easy", length_tokens=5),
            Outcome(trajectory_at(1, 1), "trained", curriculum_bin="easy", length_tokens=7),
            Outcome(trajectory_at(2, 0), "dropped", reason="stale", curriculum_bin="hard", length_tokens=90),
        ]
    )
    assert values(board) == {
        "admitted_bin.easy_total": 2.0,
        "admitted_bin.hard_total": 2.0,
        "decided_bin.easy_total": 2.0,
        "decided_bin.hard_total": 1.0,
        "trained_bin.easy_total": 2.0,
        "trained_bin.hard_total": 0.0,
        "decided_length.4-7_total": 2.0,
        "decided_length.64-127_total": 1.0,
        "trained_length.4-7_total": 2.0,
        "trained_length.64-127_total": 0.0,
    }


def test_work_that_never_reached_the_store_counts_for_the_bin_it_was_admitted_in() -> None:
    """Its outcome says ``all``: the store never saw the record."""
    board = make_board()
    mix = MixCounts(board, tasks_max=10)
    mix.admitted([make_task(1, "hard")], first_seq=1)
    mix.ended([Outcome(trajectory_at(1, 0), "dropped", reason="failed")])
    assert values(board)["decided_bin.hard_total"] == 1.0
    assert values(board)["decided_length.0_total"] == 1.0
    assert "decided_bin.all_total" not in values(board)


def test_retired_work_is_no_drift() -> None:
    board = make_board()
    MixCounts(board, tasks_max=10).ended([Outcome(trajectory_at(1, 0), "dropped", reason="retired")])
    assert values(board) == {}


@given(names=st.lists(st.text(max_size=80), max_size=300))
def test_names_of_a_dataset_cannot_grow_the_board(names: list[str]) -> None:
    board = make_board()
    mix = MixCounts(board, tasks_max=3)
    for seq, name in enumerate(names, start=1):
        mix.admitted([make_task(seq, name)], first_seq=seq)
    labels = [name for name in values(board) if name.startswith("admitted_bin.")]
    assert len(labels) <= NUM_BINS_MAX + 1
    assert sum(values(board).values()) == len(names)


def test_bin_of_a_task_that_was_forgotten_is_taken_from_its_outcome() -> None:
    board = make_board()
    mix = MixCounts(board, tasks_max=1)
    mix.admitted([make_task(1, "hard"), make_task(2, "easy")], first_seq=1)
    mix.ended([Outcome(trajectory_at(1, 0), "trained", curriculum_bin="hard")])
    assert values(board)["trained_bin.hard_total"] == 1.0
