"""Run it with pytest, in this folder."""

import gymnasium
import my_env
from gymnasium.utils.env_checker import check_env


def test_environment_keeps_the_rules_of_gymnasium():
    check_env(my_env.Line(), skip_render_check=True)


def test_walk_to_the_goal_is_rewarded():
    env = gymnasium.make("Line-v0")
    observation, _ = env.reset(seed=1)
    total, done = 0.0, False
    while not done:
        observation, reward, terminated, truncated, _ = env.step(int(observation[1] > 0))
        total, done = total + reward, terminated or truncated
    assert round(total, 2) == 0.55
