import json
import os
from pathlib import Path

import pytest

from tests.unit.cli.run_folder import START_S, write_accounting, write_run
from tidegate.cli.app import run
from tidegate.cli.run_list import RunLine
from tidegate.cli.runs import prunable
from tidegate.launch.run_folder import lock

HOUR_S = 3600.0


def line(name: str, *, age_h: float, state: str = "ended", **fields: object) -> RunLine:
    return RunLine(name, state=state, started_at_s=START_S - age_h * HOUR_S, **fields)  # pyright: ignore[reportArgumentType]


def names(lines: list[RunLine]) -> list[str]:
    return [each.name for each in lines]


def test_newest_runs_are_kept_and_the_older_ones_go() -> None:
    lines = [line("new", age_h=1), line("old", age_h=30), line("oldest", age_h=100)]
    now_s = START_S
    assert names(prunable(lines, keep=1, older_than_s=0.0, now_s=now_s)) == ["old", "oldest"]
    assert names(prunable(lines, keep=0, older_than_s=48 * HOUR_S, now_s=now_s)) == ["oldest"]
    assert names(prunable(lines, keep=3, older_than_s=0.0, now_s=now_s)) == []


def test_running_and_unreadable_runs_stay_and_age_counts_from_the_last_update() -> None:
    lines = [
        line("live", age_h=100, state="running"),
        line("damaged", age_h=100, problem="it is damaged"),
        line("long", age_h=100, last_at_s=START_S - HOUR_S),
    ]
    assert names(prunable(lines, keep=0, older_than_s=2 * HOUR_S, now_s=START_S)) == []


def test_runs_are_listed_with_what_they_reached(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_accounting(tmp_path / "one")
    assert run(["runs", str(tmp_path), "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)["runs"]
    assert (found["name"], found["env"], found["step"], found["score"]) == ("one", "CartPole-v1", 3, 200.0)
    assert run(["runs", str(tmp_path)]) == 0
    assert "CartPole-v1" in capsys.readouterr().out


def test_names_with_brackets_are_printed_whole_where_no_terminal_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"sweep[lr=1e-3][b]:bug:{'x' * 60}"
    write_accounting(tmp_path / name)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.json").write_text("{")
    assert run(["runs", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert f"{name}  CartPole-v1" in printed
    assert "it is damaged" in printed


def test_narrow_terminal_cuts_no_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_accounting(tmp_path / "cartpole-20270115-080000")
    monkeypatch.setenv("COLUMNS", "40")
    assert run(["runs", str(tmp_path)]) == 0
    assert "cartpole-20270115-080000" in capsys.readouterr().out


def test_prune_lists_first_and_removes_when_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two", "three"):
        write_run(tmp_path / name)
    (tmp_path / "notes.txt").write_text("mine")
    assert run(["runs", str(tmp_path), "--prune"]) == 2
    assert run(["runs", str(tmp_path), "--prune", "--keep", "1"]) == 0
    assert "add --yes" in capsys.readouterr().out
    assert len(list(tmp_path.iterdir())) == 4
    newest = max(
        (tmp_path / name for name in ("one", "two", "three")),
        key=lambda each: (each / "run.json").stat().st_mtime,
    )
    assert run(["runs", str(tmp_path), "--prune", "--keep", "1", "--yes"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {newest.name, "notes.txt"}


def test_folder_in_which_a_platform_just_started_stays(tmp_path: Path) -> None:
    write_run(tmp_path / "one")
    held = lock(tmp_path / "one")
    assert held
    assert run(["runs", str(tmp_path), "--prune", "--keep", "0", "--yes"]) == 0
    assert (tmp_path / "one" / "run.json").is_file()


def test_prune_removes_no_other_run_for_a_link_that_leads_to_one_of_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "archive" / "a")
    os.utime(tmp_path / "archive" / "a" / "run.json", (START_S - HOUR_S, START_S - HOUR_S))
    write_run(tmp_path / "runs" / "a")
    (tmp_path / "runs" / "older").symlink_to(tmp_path / "archive" / "a")
    assert run(["runs", str(tmp_path / "runs"), "--prune", "--keep", "1", "--yes"]) == 0
    assert "removed" not in capsys.readouterr().out
    assert (tmp_path / "runs" / "a" / "run.json").is_file()
    assert (tmp_path / "archive" / "a" / "run.json").is_file()


def test_prune_of_a_single_run_folder_names_and_removes_that_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "one")
    assert run(["runs", str(tmp_path / "one"), "--prune", "--keep", "0"]) == 0
    assert f"would remove {tmp_path / 'one'}\n" in capsys.readouterr().out
    assert run(["runs", str(tmp_path / "one"), "--prune", "--keep", "0", "--yes"]) == 0
    assert not (tmp_path / "one").exists()
