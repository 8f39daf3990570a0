import errno
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.cli.run_folder import write_accounting, write_progress, write_run
from tidegate.cli import run_list
from tidegate.cli.run_list import RunFolders, RunLine, line_of
from tidegate.core.errors import NotFoundError
from tidegate.launch.run_folder import ProcessesRecord, lock, write_processes


def test_line_tells_what_was_trained_last(tmp_path: Path) -> None:
    write_accounting(tmp_path / "a")
    line = line_of(tmp_path / "a")
    assert (line.name, line.env, line.state, line.step) == ("a", "CartPole-v1", "stopped", 3)
    assert (line.score_name, line.score, line.lag_max, line.max_lag) == ("mean_return", 200.0, 2, 4)
    assert line.balanced is None, "no summary was written"


def test_run_that_never_trained_and_one_that_cannot_be_read_are_listed(tmp_path: Path) -> None:
    write_run(tmp_path / "new")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.json").write_text("{")
    (tmp_path / "no run").mkdir()
    lines = {line.name: line for line in RunFolders(tmp_path).lines()}
    assert set(lines) == {"new", "bad"}
    assert lines["new"].score is None
    assert "damaged" in lines["bad"].problem


def test_folder_that_is_closed_to_this_user_hides_no_other_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "mine")
    write_run(tmp_path / "theirs")
    stat = os.stat

    def refuse(path: Any, **options: Any) -> os.stat_result:
        if "theirs" in Path(path).parts and Path(path).name != "theirs":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", refuse)
    assert [line.name for line in RunFolders(tmp_path).lines()] == ["mine"]


def test_folder_whose_name_is_no_utf8_can_be_listed_and_addressed(tmp_path: Path) -> None:
    write_run(tmp_path / os.fsdecode(b"a\xff"))
    runs = RunFolders(tmp_path)
    (line,) = msgspec.json.decode(msgspec.json.encode(runs.lines()))
    assert runs.named(line["name"]).name == os.fsdecode(b"a\xff")


def test_run_that_is_over_is_read_again_only_after_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = write_accounting(tmp_path / "over")
    goes_on = write_run(tmp_path / "live")
    write_processes(
        tmp_path / "live", ProcessesRecord(os.getpid(), goes_on.created_at_s, ended=False, processes={})
    )
    held = lock(tmp_path / "live")
    read: list[str] = []

    def counted(folder: Path) -> RunLine:
        read.append(folder.name)
        return line_of(folder)

    monkeypatch.setattr(run_list, "line_of", counted)
    runs = RunFolders(tmp_path)
    assert {line.name: line.state for line in runs.lines()} == {"over": "stopped", "live": "running"}
    runs.lines()
    assert sorted(read) == ["live", "live", "over"]
    write_progress(tmp_path / "over", record, seqs=[13, 14], step=3)
    assert {line.name: line.step for line in runs.lines()}["over"] == 4
    os.close(held)
    assert {line.name: line.state for line in runs.lines()}["live"] == "stopped", "its supervisor was killed"
    (tmp_path / "over" / "run.json").chmod(0o000)
    runs.lines()
    assert read.count("over") == 3, "it may be closed to this user now"


def test_single_run_folder_is_a_list_of_one(tmp_path: Path) -> None:
    write_run(tmp_path / "only")
    runs = RunFolders(tmp_path / "only")
    assert [line.name for line in runs.lines()] == ["only"]
    assert runs.named("only") == tmp_path / "only"


@pytest.mark.parametrize("name", ["..", ".", "", "a/../../b", "/etc", "b"])
def test_only_listed_runs_can_be_addressed(tmp_path: Path, name: str) -> None:
    write_run(tmp_path / "runs" / "a")
    write_run(tmp_path / "b")
    with pytest.raises(NotFoundError):
        RunFolders(tmp_path / "runs").named(name)


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="start a run first"):
        RunFolders(tmp_path / "none")
