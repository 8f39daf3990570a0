import subprocess
from pathlib import Path

from tidegate.runtime.python_program import last_words, python_program


def test_program_imports_no_file_of_the_working_directory_in_place_of_python_s(tmp_path: Path) -> None:
    (tmp_path / "datetime.py").write_text("raise SystemExit('a file of the user')")
    done = subprocess.run(
        python_program("calendar", "2027"), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "2027" in done.stdout


def test_last_words_of_a_program_are_its_last_error_line_or_that_it_was_killed() -> None:
    def ended(stderr: str) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 1, stderr=stderr)

    assert (
        last_words(ended("a line\ntidegate: It failed. Fix: another file\n"))
        == "It failed. Fix: another file"
    )
    assert last_words(ended("")) == "its process was killed"
