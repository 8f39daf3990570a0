"""What a run folder says about its backups, to people and to admission."""

from pathlib import Path

import pytest

from tidegate.core.errors import (
    ConfigError,
    ConflictError,
    CorruptionError,
    DeadlineError,
    PermissionDeniedError,
    TidegateError,
    UnavailableError,
)
from tidegate.runtime.backup_state import (
    BACKUP_JSON,
    OVERDUE_PERIODS,
    BackupState,
    NoSpaceError,
    backup_problem,
    backup_sentence,
    expect_backups,
    expect_no_backups,
    failure_cause,
    is_expected,
    periods_without,
    read_state,
    with_failure,
    write_state,
)

NOW_S = 1_800_000_000.0
MADE = BackupState(
    "s3://bucket/run",
    number=12,
    version="0-ab@340",
    made_at_s=NOW_S - 420.0,
    num_bytes=31_200_000,
    duration_s=2.44,
    every_s=600.0,
    begun_at_s=NOW_S - 9000.0,
)


def test_sentence_names_place_number_version_age_size_and_duration() -> None:
    assert backup_sentence(MADE, running=True, now_s=NOW_S) == (
        "number 12 in s3://bucket/run holds version 0-ab@340 as of 2027-01-15 07:53:00 UTC (7 min ago):"
        " 31.2 MB, made in 2.4 s"
    )


def test_folder_for_which_no_backup_was_asked_has_no_sentence(tmp_path: Path) -> None:
    assert backup_sentence(read_state(tmp_path), running=True, now_s=NOW_S) == ""
    (tmp_path / BACKUP_JSON).write_bytes(b"{")
    assert read_state(tmp_path) is None


def test_backup_that_is_overdue_is_a_problem_of_a_run_that_trains_and_not_of_one_that_ended() -> None:
    late_s = MADE.made_at_s + OVERDUE_PERIODS * MADE.every_s
    assert backup_problem(MADE, now_s=late_s) == ""
    late_s += 60.0
    assert "none was completed for 31 min, and one is due every 10 min" in backup_problem(MADE, now_s=late_s)
    assert "due every 10 min" in backup_sentence(MADE, running=True, now_s=late_s)
    assert "due every" not in backup_sentence(MADE, running=False, now_s=late_s)


def test_time_in_which_nothing_ran_is_not_without_a_backup(tmp_path: Path) -> None:
    write_state(tmp_path, MADE)
    resumed_s = NOW_S + 5 * 86400.0
    expect_backups(tmp_path, place=MADE.place, every_s=600.0, now_s=resumed_s)
    state = read_state(tmp_path)
    assert state is not None
    assert state.number == MADE.number
    assert periods_without(state, now_s=resumed_s + 300.0) == 0.5


def test_run_that_asks_for_no_backups_any_more_has_none_due(tmp_path: Path) -> None:
    expect_no_backups(tmp_path)
    assert read_state(tmp_path) is None
    write_state(tmp_path, MADE)
    expect_no_backups(tmp_path)
    state = read_state(tmp_path)
    assert state is not None
    assert (state.number, periods_without(state, now_s=NOW_S + 1e6)) == (12, 0.0)


def test_last_backup_is_expected_until_it_is_made(tmp_path: Path) -> None:
    assert not is_expected(tmp_path)
    write_state(tmp_path, MADE)
    assert is_expected(tmp_path)
    expect_no_backups(tmp_path, but_one=True)
    state = read_state(tmp_path)
    assert state is not None
    assert is_expected(tmp_path)
    assert periods_without(state, now_s=NOW_S + 1e6) == 0.0
    expect_no_backups(tmp_path)
    assert not is_expected(tmp_path)
    expect_no_backups(tmp_path, but_one=True)  # it was complete before this process began
    assert is_expected(tmp_path)
    expect_backups(tmp_path, place=MADE.place, every_s=60.0, now_s=NOW_S)
    expect_no_backups(tmp_path)
    assert not is_expected(tmp_path)


def test_backups_of_another_place_are_not_those_of_this_one(tmp_path: Path) -> None:
    write_state(tmp_path, with_failure(MADE, DeadlineError("late")))
    expect_backups(tmp_path, place="s3://other/run", every_s=60.0, now_s=NOW_S)
    state = read_state(tmp_path)
    assert state == BackupState("s3://other/run", every_s=60.0, begun_at_s=NOW_S, failures={"deadline": 1})
    assert backup_sentence(state, running=True, now_s=NOW_S) == "none is complete yet in s3://other/run"


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (OSError("no space left"), "disk"),
        (NoSpaceError("too small"), "disk"),
        (PermissionDeniedError("no"), "refused"),
        (DeadlineError("late"), "deadline"),
        (UnavailableError("away"), "unavailable"),
        (ConflictError("two"), "conflict"),
        (CorruptionError("bad"), "damaged"),
        (ConfigError("wrong"), "other"),
    ],
)
def test_failures_are_counted_by_cause(error: TidegateError | OSError, cause: str) -> None:
    assert failure_cause(error) == cause
    twice = with_failure(with_failure(MADE, error), error)
    assert twice.failures == {cause: 2}
    assert twice.number == MADE.number
