import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tools.check_types import (
    changed,
    digests,
    file_of,
    fingerprint,
    importers,
    module_of,
    published,
    read_passed,
)

SETTINGS = '[tool.pyright]\ninclude = ["services", "tests"]\nexclude = ["services/made", "**/__pycache__"]\n'


def project(root: Path) -> Path:
    for name in ("services/a.py", "services/made/b.py", "tests/c.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x = 1\n")
    (root / "pyproject.toml").write_text(SETTINGS)
    return root


def test_everything_is_checked_the_first_time_and_nothing_twice(tmp_path: Path) -> None:
    files = digests(project(tmp_path))
    assert list(files) == ["services/a.py", "tests/c.py"]
    assert changed(files, passed={}) is None
    assert changed(files, passed=files) == set()


def test_changed_and_new_files_are_checked(tmp_path: Path) -> None:
    before = digests(project(tmp_path))
    (tmp_path / "services/a.py").write_text("x = 2\n")
    (tmp_path / "tests/d.py").write_text("")
    assert changed(digests(tmp_path), passed=before) == {"services/a.py", "tests/d.py"}


def test_everything_is_checked_after_a_removal(tmp_path: Path) -> None:
    before = digests(project(tmp_path))
    (tmp_path / "services/a.py").unlink()
    assert changed(digests(tmp_path), passed=before) is None


def test_other_settings_or_packages_and_a_damaged_record_are_as_no_check(tmp_path: Path) -> None:
    common = fingerprint(project(tmp_path))
    kept = tmp_path / "types.json"
    assert read_passed(kept, common) == {}
    kept.write_text(json.dumps({"common": common, "files": {"a": "1"}}))
    assert read_passed(kept, common) == {"a": "1"}
    (tmp_path / "pyproject.toml").write_text(SETTINGS + "strict = []\n")
    assert read_passed(kept, fingerprint(tmp_path)) == {}
    kept.write_text('{"common": ')
    assert read_passed(kept, common) == {}


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone of a project of two modules."""
    for variable in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):  # as in a hook
        monkeypatch.delenv(variable, raising=False)
    origin = project(tmp_path / "origin")
    git(origin, "init", "-q")
    commit(origin)
    git(tmp_path, "clone", "-q", "origin", "clone")
    return tmp_path / "clone"


def git(folder: Path, *arguments: str) -> None:
    program = shutil.which("git")
    if program is None:
        pytest.skip("needs git")
    subprocess.run([program, *arguments], cwd=folder, check=True)


def commit(folder: Path) -> None:
    git(folder, "add", "-A")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-qm", "change")


def first_check(clone: Path) -> set[str] | None:
    files = digests(clone)
    return changed(files, passed=published(clone, files))


def test_first_check_of_a_clone_is_of_what_its_origin_has_not(clone: Path) -> None:
    assert first_check(clone) == set()
    (clone / "services/a.py").write_text("x = 2\n")
    commit(clone)
    (clone / "tests/d.py").write_text("")
    assert first_check(clone) == {"services/a.py", "tests/d.py"}


def test_first_check_of_a_clone_is_of_everything_after_a_removal(clone: Path) -> None:
    (clone / "services/a.py").unlink()
    assert first_check(clone) is None


def test_first_check_of_a_clone_is_of_everything_with_other_settings(clone: Path) -> None:
    (clone / "pyproject.toml").write_text(SETTINGS + "strict = []\n")
    assert first_check(clone) is None


def test_first_check_is_of_everything_without_an_origin(clone: Path) -> None:
    git(clone, "remote", "remove", "origin")
    assert first_check(clone) is None


def test_what_imports_a_module_is_checked_with_it_also_across_packages() -> None:
    found = importers({"services/tidegate/runtime/retrying.py"})
    assert {"services/tidegate/runtime/bus.py", "tests/integration/runtime/test_bus.py"} <= found
    assert importers({"tests/unit/tools/test_check_types.py"}) == set()


def test_files_and_modules_have_one_name_each() -> None:
    for name in (
        "services/tidegate/runtime/retrying.py",
        "services/tidegate/core/__init__.py",
        "tools/e2e.py",
    ):
        assert file_of(module_of(name)) == name
    assert file_of("tests.unit") is None
