"""Backups of a run folder as admission exports them."""

from pathlib import Path

from tidegate.admission.backup_reports import report_backups
from tidegate.runtime.backup_state import BackupState, expect_backups, write_state
from tidegate.runtime.board_metrics import readings
from tidegate.runtime.stats_board import StatsBoard

NOW_S = 1_000_000.0


def exported(folder: Path, *, now_s: float) -> dict[tuple[str, str], float]:
    """Metrics of backups, by name and cause."""
    board = StatsBoard(service="admission", instance="admission", started_at_s=0.0)
    report_backups(folder, board, now_s=now_s)
    return {
        (each.metric.removeprefix("tidegate.backup."), each.labels.get("tidegate.cause", "")): each.value
        for each in readings(board.snapshot(at_s=now_s))
        if each.metric.startswith("tidegate.backup.")
    }


def test_run_without_backups_exports_nothing_of_them(tmp_path: Path) -> None:
    assert exported(tmp_path, now_s=NOW_S) == {}


def test_backup_that_was_never_made_is_late_from_the_start_of_the_run(tmp_path: Path) -> None:
    expect_backups(tmp_path, place="s3://bucket/run", every_s=600.0, now_s=NOW_S)
    assert exported(tmp_path, now_s=NOW_S + 1500.0) == {("behind", ""): 2.5}


def test_age_grows_without_the_process_that_makes_backups(tmp_path: Path) -> None:
    state = BackupState(
        "s3://bucket/run",
        number=3,
        made_at_s=NOW_S,
        num_bytes=5_000,
        duration_s=4.0,
        every_s=600.0,
        failures={"refused": 2, "deadline": 1},
    )
    write_state(tmp_path, state)
    assert exported(tmp_path, now_s=NOW_S + 1200.0) == {
        ("age", ""): 1200.0,
        ("behind", ""): 2.0,
        ("size", ""): 5_000.0,
        ("duration", ""): 4.0,
        ("failures", "refused"): 2.0,
        ("failures", "deadline"): 1.0,
    }


def test_backup_of_a_place_that_is_no_longer_the_runs_is_exported_no_more(tmp_path: Path) -> None:
    board = StatsBoard(service="admission", instance="admission", started_at_s=0.0)
    write_state(tmp_path, BackupState("s3://bucket/run", number=3, made_at_s=NOW_S, every_s=600.0))
    report_backups(tmp_path, board, now_s=NOW_S + 60.0)
    expect_backups(tmp_path, place="s3://other/run", every_s=600.0, now_s=NOW_S + 60.0)
    report_backups(tmp_path, board, now_s=NOW_S + 120.0)
    assert {each.metric for each in readings(board.snapshot(at_s=0.0)) if "backup" in each.metric} == {
        "tidegate.backup.behind"
    }
