"""Run files that cannot work: refused with one sentence before any service starts, and nothing stays behind."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.wrong_runs import WRONG_RUNS, write_modules
from tests.unit.cli.run_folder import write_checkpoints
from tidegate.cli.app import run

pytestmark = pytest.mark.integration
RUNS = Path(__file__).parents[3] / "runs"
# What each of ``WRONG_RUNS`` is refused with, in part.
SENTENCES = {
    "unknown id": "There is no environment 'CartPol-v1'. Set workload.env to CartPole-v1",
    "unknown version": "version `v7` for environment `CartPole` doesn't exist",
    "no such module": (
        "names the module nowhere, which there is not. It is neither beside the run file, nor where the run is started"
    ),
    "not in its module": (
        "Module my_module registers no environment 'Mime-v0'. Set workload.env to my_module:Mine-v0"
    ),
    "module with a missing package": (
        "needs the package no-such-engine, which is not installed. There is no module no_such_engine. "
        "Install it: "
    ),
    "raises when it is made": "fails when it is made. RuntimeError: the licence has expired at my_module.py:20",
    "raises in reset": (
        "fails in reset. AttributeError: 'Unreset' object has no attribute 'level' at my_module.py:25"
    ),
    "ends its process": "ended the process that tried it, with exit code 3",
    "unsupported observations": "the space of its observations.heard is Text(",
    "unsupported actions": "the space of its actions has several parts, for which there is no policy",
    "unknown argument": "has no argument 'is_slipery'. It takes desc, map_name, is_slippery",
    "argument with a wrong value": "fails when it is made. KeyError: '9x9'",
    "wrapper that does not fit": (
        "workload.wrappers.0: GrayscaleObservation does not fit the environment's observations. They are Box("
    ),
    "frames that cannot be stacked": (
        "workload.frame_stack does not fit the environment's observations. They are Discrete(500)"
    ),
    "policy that does not fit": "policy.input_scale has 4 factors for 6 inputs",
    "policy of images": "policy.kind is cnn, and CartPole-v1 shows no images",
}


def overrides(case: str) -> list[str]:
    return [str(RUNS / "cartpole.yaml"), *(word for each in WRONG_RUNS[case] for word in ("--set", each))]


@pytest.mark.parametrize("case", WRONG_RUNS)
def test_run_that_cannot_work_is_refused_before_it_starts(case: str, tmp_path: Path) -> None:
    write_modules(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "tidegate.cli.main", "up", "--headless", *overrides(case)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 2, done.stderr
    # Before it asyncio may report a process that a busy machine could not end in time.
    assert SENTENCES[case] in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.glob(".tidegate/runs/*")) == []


@pytest.mark.parametrize("case", WRONG_RUNS)
def test_check_refuses_what_up_refuses(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_modules(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert run(["check", *overrides(case)]) == 2
    printed = capsys.readouterr()
    assert SENTENCES[case] in printed.err.splitlines()[-1]
    assert printed.out == ""


def test_fork_that_cannot_work_is_refused_and_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "parent").mkdir()
    write_checkpoints(tmp_path / "parent", steps=[20])
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tidegate.cli.main", "fork", "parent", "--headless", "--dir", "fork"),
            *("--set", "workload.env=CartPol-v1"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 2, done.stderr
    assert SENTENCES["unknown id"] in done.stderr
    assert not (tmp_path / "fork").exists()


def test_env_describes_a_module_of_the_folder_and_refuses_as_a_run_does(tmp_path: Path) -> None:
    write_modules(tmp_path)

    def env(env_id: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "tidegate.cli.main", "env", env_id],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    described = env("my_module:Mine-v0")
    assert described.returncode == 0, described.stderr
    assert "2 of float32, -1 to 1" in described.stdout
    refused = env("my_module:Unmade-v0")
    assert refused.returncode == 2
    assert "the licence has expired at my_module.py:20" in refused.stderr
