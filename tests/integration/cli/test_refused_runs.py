"""Run files that cannot work: refused with one sentence before any service starts, and nothing stays behind."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration
RUNS = Path(__file__).parents[3] / "runs"
MODULE = """
import gymnasium
import numpy as np
from gymnasium import spaces


class Mine(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}


class Unmade(Mine):
    def __init__(self):
        raise RuntimeError("the licence has expired")


class Unreset(Mine):
    def reset(self, *, seed=None, options=None):
        return self.level


class Speaks(Mine):
    observation_space = spaces.Dict({"where": spaces.Discrete(4), "heard": spaces.Text(8)})


class Leaves(Mine):
    def reset(self, *, seed=None, options=None):
        import os
        os._exit(3)


class TwoArms(Mine):
    action_space = spaces.Dict({"left": spaces.Discrete(2), "right": spaces.Discrete(2)})


for kind in (Mine, Unmade, Unreset, Speaks, Leaves, TwoArms):
    gymnasium.register(f"{kind.__name__}-v0", entry_point=kind)
"""
REFUSED = {
    "unknown id": (
        ["workload.env=CartPol-v1"],
        "There is no environment 'CartPol-v1'. Set workload.env to CartPole-v1",
    ),
    "unknown version": (
        ["workload.env=CartPole-v7"],
        "version `v7` for environment `CartPole` doesn't exist",
    ),
    "no such module": (
        ["workload.env=nowhere:Mine-v0"],
        "names the module nowhere, which there is not. It is neither in the folder where the run is started",
    ),
    "not in its module": (
        ["workload.env=my_module:Mime-v0"],
        "Module my_module registers no environment 'Mime-v0'. Set workload.env to my_module:Mine-v0",
    ),
    "module with a missing package": (
        ["workload.env=unimportable:Mine-v0"],
        "needs the package no-such-engine, which is not installed. There is no module no_such_engine. Install it: ",
    ),
    "raises when it is made": (
        ["workload.env=my_module:Unmade-v0"],
        "fails when it is made. RuntimeError: the licence has expired at my_module.py:20",
    ),
    "raises in reset": (
        ["workload.env=my_module:Unreset-v0"],
        "fails in reset. AttributeError: 'Unreset' object has no attribute 'level' at my_module.py:25",
    ),
    "ends its process": (
        ["workload.env=my_module:Leaves-v0"],
        "ended the process that tried it, with exit code 3",
    ),
    "unsupported observations": (
        ["workload.env=my_module:Speaks-v0"],
        "the space of its observations.heard is Text(",
    ),
    "unsupported actions": (
        ["workload.env=my_module:TwoArms-v0", "policy.input_scale=[]"],
        "the space of its actions has several parts, for which there is no policy",
    ),
    "unknown argument": (
        ["workload.env=FrozenLake-v1", "workload.env_kwargs={is_slipery: false}", "policy.input_scale=[]"],
        "has no argument 'is_slipery'. It takes desc, map_name, is_slippery",
    ),
    "argument with a wrong value": (
        ["workload.env=FrozenLake-v1", "workload.env_kwargs={map_name: 9x9}", "policy.input_scale=[]"],
        "fails when it is made. KeyError: '9x9'",
    ),
    "wrapper that does not fit": (
        ["workload.wrappers=[{name: GrayscaleObservation}]"],
        "workload.wrappers.0: GrayscaleObservation does not fit the environment's observations. They are Box(",
    ),
    "frames that cannot be stacked": (
        ["workload.env=Taxi-v4", "workload.frame_stack=4", "policy.input_scale=[]"],
        "workload.frame_stack does not fit the environment's observations. They are Discrete(500)",
    ),
    "policy that does not fit": (
        ["workload.env=Acrobot-v1"],
        "policy.input_scale has 4 factors for 6 inputs",
    ),
    "policy of images": (
        ["policy.kind=cnn", "policy.input_scale=[]"],
        "policy.kind is cnn, and CartPole-v1 shows no images",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_run_that_cannot_work_is_refused_before_it_starts(case: str, tmp_path: Path) -> None:
    overrides, sentence = REFUSED[case]
    (tmp_path / "my_module.py").write_text(MODULE)
    (tmp_path / "unimportable.py").write_text("import no_such_engine\n")
    arguments = [argument for override in overrides for argument in ("--set", override)]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tidegate.cli.main",
            "up",
            str(RUNS / "cartpole.yaml"),
            "--headless",
            *arguments,
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 2, done.stderr
    # Before it asyncio may report a process that a busy machine could not end in time.
    assert sentence in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert list((tmp_path / ".tidegate" / "runs").iterdir()) == []


def test_env_describes_a_module_of_the_folder_and_refuses_as_a_run_does(tmp_path: Path) -> None:
    (tmp_path / "my_module.py").write_text(MODULE)

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
