import pytest

from tests.unit.cli.run_folder import CARTPOLE
from tidegate.catalogue import actor as actor_stats
from tidegate.catalogue import admission as admission_stats
from tidegate.catalogue import supervisor as supervisor_stats
from tidegate.cli.up.screen import line
from tidegate.cli.up.view import WIDTH_MIN, clock, draw, number, problems_line
from tidegate.core.targets import parse_target
from tidegate.launch.board import Board
from tidegate.launch.live_run import LiveRun
from tidegate.launch.run_file import read_run_file
from tidegate.wire.permissions import SUPERVISOR
from tidegate.wire.stats import ServiceStats

NOW_S = 1_000.0


def snapshot(
    instance: str, *, at_s: float, labels: dict[str, str] | None = None, **values: float
) -> ServiceStats:
    return ServiceStats(instance.partition("-")[0], instance, "ready", at_s, 0.0, values, labels or {})


def busy_board() -> Board:
    """Half a minute of a platform that works."""
    board = Board(headline="mean_return")
    for tick in range(60):
        at_s = NOW_S - 30 + tick / 2
        for actor in ("actor-0", "actor-1"):
            board.put(
                snapshot(
                    actor, at_s=at_s, steps_total=512.0 * tick, busy_s_total=0.4 * tick, serving_step=tick - 1
                )
            )
        board.put(snapshot("learner", at_s=at_s, labels={"version": f"0-ab@{tick}"}, version_step=tick,
                           mean_return=8.0 * tick, trained_steps_total=1024.0 * tick, lag_last_max=3.0))  # fmt: skip
        board.put(snapshot("trajectory_store", at_s=at_s, available_trajectories=3.0, accepted_total=100.0,
                           dropped_total=4.0, dropped_stale_total=4.0))  # fmt: skip
        board.put(snapshot("task_queue", at_s=at_s, running_trajectories=2.0, admission_delay=1.0,
                           labels={"admission_state": "staleness budget filled: waits for a version"}))  # fmt: skip
        board.put(snapshot("admission", at_s=at_s, labels={
            "bottleneck": "actor", "bottleneck_sentence": "actors never wait " * 12, "bottleneck_fix": "add an actor",
            "slos": "8 ok, 1 burning (lag_p95)",
        }))  # fmt: skip
        seen: dict[str, float] = {
            supervisor_stats.RESTARTS_OF.member("actor-1"): 2.0,
            supervisor_stats.CPU_SHARE_OF.member("actor-1"): 0.5,
            supervisor_stats.PSS_MB_OF.member("actor-1"): 44.0,
        }
        board.put(ServiceStats(SUPERVISOR, SUPERVISOR, "ready", at_s, 0.0, seen, {"nats-server": "running"}))
    return board


def scene_with(board: Board, *, target: str = "mean_return>=475", phase: str = "training") -> LiveRun:
    return LiveRun(
        run_id="cartpole-abc123",
        folder="runs/x",
        plan=read_run_file(CARTPOLE, ["staleness.max_lag=4"]),
        target=parse_target(target),
        started_at_s=0.0,
        board=board,
        phase=phase,
    )


@pytest.mark.parametrize("height", [20, 24, 30, 42, 80])
@pytest.mark.parametrize("width", [40, 80, 100, 250])
@pytest.mark.parametrize("target", ["", "mean_return>=475", "mean_return>=475 and version_step>=9", "loss<0"])
def test_view_fits_the_terminal(width: int, height: int, target: str) -> None:
    for board in (Board(), busy_board()):
        lines = draw(
            scene_with(board, target=target), width=width, height=height, now_s=NOW_S
        ).plain.splitlines()
        assert max(map(len, lines)) <= max(WIDTH_MIN, width)
        assert len(lines) <= max(height, 30)


def test_view_shows_who_stands_where_and_who_holds_it_up() -> None:
    text = draw(scene_with(busy_board()), width=100, height=50, now_s=NOW_S).plain
    for part in ("cartpole-abc123", "0-ab@59", "v58, 1 behind", "3 ready", "staleness budget filled", "3 of max_lag 4",
                 "stale 4", "8 ok, 1 burning (lag_p95)",
                 "bottleneck  actor", "add an actor", "1024 steps/s", "80%", "44 MB"):  # fmt: skip
        assert part in text, part


def test_evaluated_return_is_beside_the_return_while_exploring() -> None:
    evaluation = snapshot(
        "actor-0",
        at_s=NOW_S,
        labels={"evaluation_version": "0-ab@50"},
        evaluation_return=500.0,
        evaluation_return_min=420.0,
        evaluation_return_max=510.0,
    )
    board = busy_board()
    board.put(evaluation)
    text = draw(scene_with(board), width=120, height=50, now_s=NOW_S).plain
    assert "mean return now 472   evaluated 500 (420 to 510), version 0-ab@50" in text
    board = Board(headline="evaluation_return")
    board.put(evaluation)
    board.put(snapshot("learner", at_s=NOW_S, mean_return=472.0))
    text = draw(scene_with(board, target="evaluation_return>=505"), width=120, height=50, now_s=NOW_S).plain
    assert "evaluation return now 500 (420 to 510), version 0-ab@50   exploring 472" in text


def test_evaluation_that_failed_says_why() -> None:
    board = busy_board()
    board.put(snapshot("actor-0", at_s=NOW_S, labels={"evaluation_problem": "0-ab@50: 3 episodes still ran"}))
    text = draw(scene_with(board), width=120, height=50, now_s=NOW_S).plain
    assert "evaluation failed: 0-ab@50: 3 episodes still ran" in text


def test_instance_that_fell_silent_is_named_so() -> None:
    text = draw(scene_with(busy_board()), width=100, height=50, now_s=NOW_S + 60).plain
    assert "silent" in text


def test_long_advice_is_wrapped_and_cut() -> None:
    text = draw(scene_with(busy_board()), width=100, height=60, now_s=NOW_S).plain
    assert sum("actors never wait" in each for each in text.splitlines()) == 2


def test_target_that_has_no_value_yet_is_not_taken_for_a_mistake() -> None:
    board = Board()
    board.put(snapshot("learner", at_s=NOW_S, labels={"version": "0-ab@1"}, warmup_solved_share=0.4))
    assert "no solved_share yet" in line(scene_with(board, target="solved_share>=0.9"))
    assert "did you mean warmup_solved_share?" in line(scene_with(board, target="solvd_share>=0.9"))
    shown = draw(scene_with(board, target="solved_share>=0.9"), width=100, height=30, now_s=NOW_S)
    assert "no solved_share yet" in shown.plain


def test_line_says_how_far_the_target_is() -> None:
    text = line(scene_with(busy_board()))
    assert "mean_return 472 of 475" in text
    assert "version 0-ab@59" in text
    assert "SLOs: 8 ok, 1 burning (lag_p95)" in text


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (61.9, "1:01"), (3600 + 62, "1:01:02")])
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.123, "0.12"),
        (12.34, "12.3"),
        (475.2, "475"),
        (9_999.0, "9999"),
        (12_345.0, "12.3k"),
        (2e6, "2.00M"),
    ],
)
def test_number_keeps_the_digits_that_matter(value: float, text: str) -> None:
    assert number(value) == text


def test_cause_of_a_fault_is_on_the_screen_and_in_the_line() -> None:
    board = busy_board()
    assert problems_line(board) == ""
    hung = "Copy 3 of 'My-v0' does not return from step: 12 s"
    board.put(snapshot("actor-1", at_s=NOW_S, labels={actor_stats.ENVIRONMENT_CALL: hung}))
    assert f"actor-1: {hung}" in line(scene_with(board))
    told = f"faults of environments: 1 hung; actor-1, 9 s ago: {hung}"
    board.put(snapshot("admission", at_s=NOW_S, labels={admission_stats.ACTOR_PROBLEMS: told}))
    screen = draw(scene_with(board), width=110, height=60, now_s=NOW_S).plain
    assert "faults of environments: 1 hung" in screen
    assert told in line(scene_with(board))


def test_newest_backup_is_on_the_screen_while_nothing_is_wrong_with_it() -> None:
    board = busy_board()
    board.put(snapshot(SUPERVISOR, at_s=NOW_S, labels={supervisor_stats.BACKUP: "number 7 in s3://bucket"}))
    assert "backup   number 7" in draw(scene_with(board), width=110, height=60, now_s=NOW_S).plain
    labels: dict[str, str] = {
        supervisor_stats.BACKUP: "number 7",
        supervisor_stats.BACKUP_PROBLEM: "backup: none for 3 h",
    }
    board.put(snapshot(SUPERVISOR, at_s=NOW_S, labels=labels))
    screen = draw(scene_with(board), width=110, height=60, now_s=NOW_S).plain
    assert "number 7" not in screen
    assert "backup: none for 3 h" in screen


def test_backup_that_fails_is_on_the_screen_and_in_the_line() -> None:
    board, failed = busy_board(), "backup: the last try failed: s3://bucket did not write objects/ab"
    board.put(snapshot(SUPERVISOR, at_s=NOW_S, labels={supervisor_stats.BACKUP_PROBLEM: failed}))
    assert failed in line(scene_with(board))
    assert "the last try failed" in draw(scene_with(board), width=110, height=60, now_s=NOW_S).plain
