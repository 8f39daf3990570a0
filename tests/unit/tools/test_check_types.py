import json
from pathlib import Path

from tools.check_types import changed, digests, file_of, fingerprint, importers, module_of, read_passed

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
