import subprocess
from pathlib import Path

from tidegate.runtime.python_program import python_program


def test_program_imports_no_file_of_the_working_directory_in_place_of_python_s(tmp_path: Path) -> None:
    (tmp_path / "datetime.py").write_text("raise SystemExit('a file of the user')")
    done = subprocess.run(
        python_program("calendar", "2027"), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "2027" in done.stdout
