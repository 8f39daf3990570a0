"""An environment that records the environment variables of each process which opens it.

Used in runs as ``tests.support.dumping_env:Dumping-v0``.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv

FOLDER_VARIABLE = "DUMPING_ENV_FOLDER"


class Dumping(CartPoleEnv):
    """CartPole."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        path = Path(os.environ[FOLDER_VARIABLE]) / f"{os.getpid()}"
        title = Path("/proc/self/cmdline").read_text().replace("\0", " ").strip()
        path.write_text(json.dumps({"title": title or sys.argv[0], "variables": dict(os.environ)}))
        path.rename(path.with_suffix(".json"))  # a reader finds no part of it


gym.register("Dumping-v0", entry_point=Dumping, max_episode_steps=200)  # pyright: ignore[reportUnknownMemberType] (gymnasium leaves its types open)
