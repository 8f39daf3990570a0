"""Run files that cannot work: ``runs/cartpole.yaml`` with other settings, and the modules that those name."""

from pathlib import Path

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
MODULES = {"my_module.py": MODULE, "unimportable.py": "import no_such_engine\n"}

# Settings by what is wrong with them.
WRONG_RUNS: dict[str, list[str]] = {
    "unknown id": ["workload.env=CartPol-v1"],
    "unknown version": ["workload.env=CartPole-v7"],
    "no such module": ["workload.env=nowhere:Mine-v0"],
    "not in its module": ["workload.env=my_module:Mime-v0"],
    "module with a missing package": ["workload.env=unimportable:Mine-v0"],
    "raises when it is made": ["workload.env=my_module:Unmade-v0"],
    "raises in reset": ["workload.env=my_module:Unreset-v0"],
    "ends its process": ["workload.env=my_module:Leaves-v0"],
    "unsupported observations": ["workload.env=my_module:Speaks-v0"],
    "unsupported actions": ["workload.env=my_module:TwoArms-v0", "policy.input_scale=[]"],
    "unknown argument": [
        "workload.env=FrozenLake-v1",
        "workload.env_kwargs={is_slipery: false}",
        "policy.input_scale=[]",
    ],
    "argument with a wrong value": [
        "workload.env=FrozenLake-v1",
        "workload.env_kwargs={map_name: 9x9}",
        "policy.input_scale=[]",
    ],
    "wrapper that does not fit": ["workload.wrappers=[{name: GrayscaleObservation}]"],
    "frames that cannot be stacked": [
        "workload.env=Taxi-v4",
        "workload.frame_stack=4",
        "policy.input_scale=[]",
    ],
    "policy that does not fit": ["workload.env=Acrobot-v1"],
    "policy of images": ["policy.kind=cnn", "policy.input_scale=[]"],
}


def write_modules(folder: Path) -> None:
    """Write the modules into the folder where the runs are started."""
    for name, text in MODULES.items():
        (folder / name).write_text(text)
