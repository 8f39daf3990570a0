"""Damaged files, full disks and folders in use: a sentence and an exit code of their own, and no traceback."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.disks import FULL
from tests.unit.cli.run_folder import id_of, write_accounting, write_samples
from tidegate.cli.accounting import journal_path, ledger_path
from tidegate.cli.app import (
    EXIT_BAD_INPUT,
    EXIT_DAMAGED,
    EXIT_DISK_FULL,
    EXIT_FAILED,
    EXIT_IN_USE,
    print_error,
    run,
)
from tidegate.core.errors import FolderInUseError
from tidegate.launch import run_folder as folders

PAGE_BYTES = 4096
FAULTS: dict[str, Callable[[Path], object]] = {
    "deleted": lambda path: path.unlink(),
    "emptied": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "flipped": lambda path: path.write_bytes(bytes(byte ^ 0x55 for byte in path.read_bytes())),
}
COMMANDS = (
    "audit",
    "audit --verify",
    "status",
    "explain",
    f"explain {id_of(1)}",
    "replay",
    "policy",
    "slo",
)


def damage(path: Path) -> None:
    """Overwrite every page of a database but its first, as a failing disk does."""
    data = path.read_bytes()
    assert len(data) > PAGE_BYTES
    path.write_bytes(data[:PAGE_BYTES] + b"\xa5" * (len(data) - PAGE_BYTES))


@pytest.mark.parametrize("command", [["audit"], ["audit", "--json"]])
def test_damaged_page_of_the_ledger_is_no_verdict_on_the_accounting(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_accounting(tmp_path)
    damage(ledger_path(tmp_path))
    assert run([*command, "--dir", str(tmp_path)]) == EXIT_DAMAGED
    error = capsys.readouterr().err
    assert error.startswith("tidegate: The ledger")
    assert "cannot be read" in error


@pytest.mark.slow
def test_report_of_a_damaged_run_is_a_sentence_or_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_accounting(tmp_path)
    damage(ledger_path(tmp_path))
    (tmp_path / "summary.json").write_text('{"run_id": "x", "elaps')
    assert run(["report", "--dir", str(tmp_path)]) in (0, EXIT_DAMAGED)
    assert "Traceback" not in capsys.readouterr().err


def test_status_of_a_run_with_a_truncated_summary_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_accounting(tmp_path)
    (tmp_path / "summary.json").write_text('{"run_id": "x", "elaps')
    assert run(["status", "--dir", str(tmp_path)]) == EXIT_DAMAGED
    assert "summary.json cannot be read" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not FULL.exists(), reason="the system has no /dev/full")
def test_command_on_a_full_disk_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_accounting(tmp_path)
    (tmp_path / "report.html.new").symlink_to(FULL)
    assert run(["report", "--dir", str(tmp_path)]) == EXIT_DISK_FULL
    assert capsys.readouterr().err.startswith("tidegate: The disk is full")


def test_folder_in_use_has_an_exit_code_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders.lock(tmp_path)
    with pytest.raises(FolderInUseError) as second:
        folders.lock(tmp_path)
    assert print_error(second.value) == EXIT_IN_USE
    assert "is in use by another `tidegate up`" in capsys.readouterr().err


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damaged") / "run"
    write_accounting(folder)
    write_samples(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_command_on_a_run_with_any_damaged_file_is_an_answer_or_a_sentence(
    command: str, fault: str, stopped_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [
        path.relative_to(stopped_run)
        for path in sorted(stopped_run.rglob("*"))
        if path.is_file() and path.suffix != ".token"  # no command reads a service's token
    ]
    assert len(names) >= 6
    for number, name in enumerate(names):
        folder = tmp_path / str(number)
        shutil.copytree(stopped_run, folder)
        FAULTS[fault](folder / name)
        where = [str(folder)] if command == "policy" else ["--dir", str(folder)]
        code = run([*command.split(), *where])
        error = capsys.readouterr().err
        assert code in (0, EXIT_FAILED, EXIT_BAD_INPUT, EXIT_DAMAGED), f"{name}: {error}"
        assert "Traceback" not in error, name
        if code not in (0, EXIT_FAILED):
            assert error.startswith("tidegate: "), f"{name}: {error}"


@pytest.mark.parametrize("command", ["audit", f"explain {id_of(1)}"])
def test_damaged_journal_is_named_with_a_way_back(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_accounting(tmp_path)
    damage(journal_path(tmp_path))
    assert run([*command.split(), "--dir", str(tmp_path)]) == EXIT_DAMAGED
    error = capsys.readouterr().err
    assert "journal.sqlite is not a readable journal" in error
    assert "tidegate fork" in error


def test_run_whose_record_is_damaged_is_named_with_a_way_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_accounting(tmp_path)
    (tmp_path / "run.json").write_bytes(b"{")
    assert run(["audit", "--dir", str(tmp_path)]) == EXIT_DAMAGED
    assert "Put the file back from a copy" in capsys.readouterr().err
