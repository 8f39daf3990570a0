"""The lines of the README that use an exported policy without Tidegate, executed as they stand there."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.unit.cli.policy.folders import write_policies
from tidegate.cli.policy.exporting import write_policy
from tidegate.launch.stored_policy import read_stored_policy

README = Path(__file__).parents[4] / "README.md"
PYTHON_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
# Plays CartPole with the ``act`` of the lines before it, and prints its actions.
GAME = """
import gymnasium, sys
assert not any(name.partition(".")[0] == "tidegate" for name in sys.modules)
env = gymnasium.make("CartPole-v1")
observation, _ = env.reset(seed=3)
ended = False
while not ended:
    action = act(observation)
    print(*observation, action)
    observation, _, terminated, truncated, _ = env.step(action)
    ended = terminated or truncated
"""


def lines_of(file_name: str) -> str:
    """The one block of the README that loads ``file_name``."""
    [block] = [
        block for block in PYTHON_BLOCK.findall(README.read_text(encoding="utf-8")) if file_name in block
    ]
    return block


@pytest.mark.parametrize("file_name", ["policy.onnx", "policy.safetensors"])
def test_lines_of_the_readme_play_as_the_policy_does(tmp_path: Path, file_name: str) -> None:
    stored = read_stored_policy(write_policies(tmp_path / "run"), None)
    write_policy(stored, tmp_path / file_name)
    (tmp_path / "game.py").write_text(lines_of(file_name) + GAME, encoding="utf-8")
    played = subprocess.run(
        [sys.executable, "game.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert played.returncode == 0, played.stderr
    rows = np.array([line.split() for line in played.stdout.splitlines()], np.float32)
    assert len(rows) >= 8
    observations, actions = rows[:, :4], rows[:, 4].astype(np.int64)
    outputs = stored.policy().action_outputs(stored.tensors, {"observations": observations}, np)
    np.testing.assert_array_equal(actions, outputs.argmax(axis=1))
