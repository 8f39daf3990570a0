"""Run files that come with the package, by name."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tidegate.core.errors import ConfigError
from tidegate.launch import shipped_runs as module
from tidegate.launch.run_file import read_run_file

ROOT = Path(__file__).parents[3]
# Their environments are modules of examples/.
NEED_A_CHECKOUT = {
    path.stem
    for path in (ROOT / "runs").glob("*.yaml")
    if re.search(r"^\s*env: examples\.", path.read_text(), re.M)
}


def test_name_is_the_run_file_of_the_checkout() -> None:
    plan = read_run_file(Path("cartpole"), ["seed=7"])
    assert (plan.file.run, plan.file.seed) == ("cartpole", 7)
    assert plan.file.workload == read_run_file(ROOT / "runs" / "cartpole.yaml", []).file.workload


def test_file_of_that_name_in_the_working_directory_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cartpole").write_text((ROOT / "runs" / "ppo.yaml").read_text())
    assert read_run_file(Path("cartpole"), []).file.run == "ppo"


def test_unknown_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"one that comes with Tidegate: a2c, .*cartpole"):
        read_run_file(Path("kartpole"), [])


def test_package_without_run_files_has_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FOLDERS", (tmp_path / "none",))
    assert module.shipped_runs() == {}
    with pytest.raises(ConfigError, match="cannot be read"):
        read_run_file(Path("cartpole"), [])


def test_wheel_takes_every_run_file_that_needs_no_checkout() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    names = {path.stem for path in (ROOT / "runs").glob("*.yaml")} - NEED_A_CHECKOUT
    runs = {source: target for source, target in included.items() if source.startswith("runs/")}
    assert runs == {f"runs/{name}.yaml": f"tidegate/run_files/{name}.yaml" for name in names}


@pytest.mark.slow
def test_installed_wheel_checks_a_run_by_name_without_a_checkout(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    program = "import tidegate, sys; sys.stdout.write(tidegate.__file__); from tidegate.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "check", "cartpole"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert str(installed) in done.stdout
