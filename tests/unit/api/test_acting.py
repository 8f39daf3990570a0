from pathlib import Path

import gymnasium as gym
import numpy as np

import tidegate
from tests.unit.cli.policy.folders import write_policies
from tidegate.launch.stored_policy import read_stored_policy


def test_greedy_action_is_the_most_likely_one(tmp_path: Path) -> None:
    write_policies(tmp_path)
    stored = read_stored_policy(tmp_path, None)
    policy = tidegate.Run(tmp_path).policy()
    assert policy.version == stored.version
    observations_B4 = np.random.default_rng(1).normal(size=(100, 4)).astype(np.float32)
    logits_BP = stored.policy().action_outputs(stored.tensors, {"observations": observations_B4}, np)
    expected = np.argmax(logits_BP, axis=1).tolist()
    assert [int(policy.act(observation)) for observation in observations_B4] == expected
    assert set(expected) == {0, 1}


def test_action_is_what_the_environment_takes(tmp_path: Path) -> None:
    write_policies(tmp_path)
    policy = tidegate.Run(tmp_path).policy()
    env = gym.make("CartPole-v1")
    observation, _ = env.reset(seed=1)
    for _ in range(5):
        observation, *_ = env.step(policy.act(observation))


def test_drawn_actions_follow_the_generator(tmp_path: Path) -> None:
    write_policies(tmp_path)
    policy = tidegate.Run(tmp_path).policy("0-root@19")
    observation = np.array([0.0, 0.0, 0.01, 0.0], np.float32)
    draws = [[policy.act(observation, rng=np.random.default_rng(seed)) for _ in range(20)] for seed in (1, 1)]
    assert draws[0] == draws[1]
    assert {int(policy.act(observation)) for _ in range(5)} <= {0, 1}
