from typing import Any

from tidegate.catalogue import actor as actor_stats
from tidegate.launch.board import HISTORY_MAX, INSTANCES_MAX, RATE_SNAPSHOTS, Board, drops
from tidegate.wire.stats import ServiceStats


def snapshot(
    instance: str,
    *,
    at_s: float = 0.0,
    started_at_s: float = 0.0,
    labels: dict[str, str] | None = None,
    **values: float,
) -> ServiceStats:
    return ServiceStats(
        service=instance.partition("-")[0],
        instance=instance,
        state="ready",
        at_s=at_s,
        started_at_s=started_at_s,
        values=values,
        labels=labels or {},
    )


def test_counters_are_summed_and_gauges_averaged_over_instances() -> None:
    board = Board()
    board.put(snapshot("actor-0", steps_total=10, weight_pull_ms=2))
    board.put(snapshot("actor-1", steps_total=30, weight_pull_ms=4))
    assert board.values()["steps_total"] == 40
    assert board.values()["weight_pull_ms"] == 3


def test_invented_instances_are_left_out_beyond_the_bound() -> None:
    board = Board()
    for number in range(INSTANCES_MAX + 10):
        board.put(snapshot(f"actor-{number}", steps_total=1))
    board.put(snapshot("actor-0", steps_total=3))
    assert board.values()["steps_total"] == INSTANCES_MAX + 2


def test_counters_of_a_replaced_actor_stay_in_the_sums() -> None:
    board = Board()
    faults: dict[str, Any] = {"environment_faults.hung_total": 1.0}
    board.put(snapshot("actor-0", steps_total=10, busy_tasks=2, **faults))
    board.put(snapshot("actor-0", started_at_s=5.0, steps_total=1, busy_tasks=1))
    assert board.values()["environment_faults.hung_total"] == 1
    assert board.values()["steps_total"] == 11
    assert board.values()["busy_tasks"] == 1


def test_counters_of_a_service_that_keeps_them_are_not_counted_again_after_its_restart() -> None:
    board = Board()
    board.put(snapshot("learner", trained_trajectories_total=10))
    board.put(snapshot("learner", started_at_s=5.0, trained_trajectories_total=12))
    assert board.values()["trained_trajectories_total"] == 12


def evaluated(instance: str, version: str, **values: float) -> ServiceStats:
    return snapshot(instance, labels={"evaluation_version": version}, **values)


def test_newest_evaluation_counts_and_answers_to_solved_share() -> None:
    board = Board(headline="solved_share")
    board.put(evaluated("actor-0", "0-ab@20", evaluation_solved_share=0.9))
    board.put(evaluated("actor-1", "0-ab@9", evaluation_solved_share=0.4))
    assert board.values()["solved_share"] == 0.9
    assert [value for _, value in board.history] == [0.9]


def test_history_of_evaluations_holds_each_once_however_often_actors_repeat_theirs() -> None:
    board = Board(headline="evaluation_return")
    for _ in range(3):
        board.put(evaluated("actor-0", "0-ab@20", evaluation_return=90.0))
        board.put(evaluated("actor-1", "0-ab@10", evaluation_return=40.0))
    board.put(evaluated("actor-1", "0-ab@30", evaluation_return=90.0))
    assert [value for _, value in board.history] == [90.0, 90.0]


def test_evaluation_of_a_restored_lineage_is_newer_than_one_of_the_branch_that_was_lost() -> None:
    board = Board()
    board.put(evaluated("actor-0", "0-ab@40", evaluation_return=90.0))
    board.put(evaluated("actor-1", "1-cd@20", evaluation_return=40.0))
    assert board.values()["evaluation_return"] == 40.0
    assert board.evaluated() == "1-cd@20"


def test_time_of_evaluations_is_summed_over_actors() -> None:
    board = Board()
    board.put(evaluated("actor-0", "0-ab@20", evaluation_return=90.0, evaluation_s_total=2.0))
    board.put(evaluated("actor-1", "0-ab@10", evaluation_return=40.0, evaluation_s_total=3.0))
    assert board.values()["evaluation_s_total"] == 5.0


def test_failed_evaluation_is_reported_until_a_newer_version_was_evaluated() -> None:
    board = Board()
    assert board.evaluation_problem() == ""
    board.put(snapshot("actor-0", labels={"evaluation_problem": "0-ab@20: 3 episodes were still running"}))
    board.put(evaluated("actor-1", "0-ab@10", evaluation_return=40.0))
    assert board.evaluation_problem() == "0-ab@20: 3 episodes were still running"
    board.put(evaluated("actor-1", "0-ab@30", evaluation_return=40.0))
    assert board.evaluation_problem() == ""


def test_rate_is_taken_over_the_last_snapshots_only() -> None:
    board = Board()
    board.put(snapshot("actor-0", at_s=0.0, steps_total=0))
    for index in range(RATE_SNAPSHOTS):
        board.put(snapshot("actor-0", at_s=100.0 + index, steps_total=1000 + 50 * index))
    assert board.rate("actor-0", actor_stats.STEPS) == 50


def test_rate_is_unknown_before_two_snapshots_of_one_life() -> None:
    board = Board()
    assert board.rate("actor-0", actor_stats.STEPS) is None
    board.put(snapshot("actor-0", at_s=0.0, steps_total=100))
    board.put(snapshot("actor-0", at_s=1.0, started_at_s=0.9, steps_total=5))
    assert board.rate("actor-0", actor_stats.STEPS) is None


def test_total_over_lives_survives_restarts() -> None:
    board = Board()
    board.put(snapshot("actor-0", started_at_s=0.0, steps_total=100))
    board.put(snapshot("actor-0", started_at_s=5.0, steps_total=7))
    board.put(snapshot("actor-0", started_at_s=9.0, steps_total=2))
    board.put(snapshot("actor-1", steps_total=1))
    assert board.total_over_lives("actor", actor_stats.STEPS) == 110


def test_history_is_bounded_and_keeps_its_ends() -> None:
    board = Board(headline="loss")
    for index in range(5 * HISTORY_MAX):
        board.put(snapshot("learner", at_s=index, loss=index))
    assert len(board.history) <= HISTORY_MAX
    assert board.history[0][1] == 0
    assert board.history[-1][1] >= 5 * HISTORY_MAX - 32


def test_drops_are_named_by_reason() -> None:
    values = {
        "dropped_total": 5.0,
        "dropped_stale_total": 3.0,
        "dropped_retired_total": 2.0,
        "dropped_failed_total": 0.0,
    }
    assert drops(values) == {"stale": 3, "retired": 2}
