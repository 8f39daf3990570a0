"""What a start that is refused leaves behind."""

from contextlib import suppress
from pathlib import Path

from tidegate.core.errors import ConfigError, FolderInUseError, TidegateError
from tidegate.launch.beginning import nothing_left_of_a_refusal


def refuse(folder: Path, error: TidegateError, *, started: bool = False) -> None:
    """A start that wrote files before it was refused."""
    with suppress(type(error)), nothing_left_of_a_refusal(folder):
        (folder / "data").mkdir(parents=True)
        (folder / ".lock").touch()
        if started:
            (folder / "processes.json").touch()
        raise error


def test_folder_of_a_refused_start_can_be_taken_by_the_next_one(tmp_path: Path) -> None:
    refuse(tmp_path / "new", ConfigError("own code has a mistake"))
    assert not (tmp_path / "new").exists()
    (tmp_path / "mine").mkdir()
    refuse(tmp_path / "mine", ConfigError("own code has a mistake"))
    assert list((tmp_path / "mine").iterdir()) == []


def test_files_of_others_and_of_a_run_that_started_stay(tmp_path: Path) -> None:
    refuse(tmp_path / "started", ConfigError("the broker ended"), started=True)
    refuse(tmp_path / "raced", FolderInUseError("another start came between"))
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "notes.txt").touch()
    refuse(tmp_path / "kept", ConfigError("it is no run folder"))
    for name in ("started", "raced", "kept"):
        assert (tmp_path / name / ".lock").exists()
