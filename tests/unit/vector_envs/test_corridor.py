"""The corridor of ``examples/corridor.py``: what it shows when, what it rewards, and that a short one needs memory."""

from typing import Literal

import gymnasium
import msgspec
import numpy as np
import pytest
import torch

from examples.corridor import Corridor
from tests.unit.actor.support import segment_task, snapshot
from tests.unit.learner.trajectories import segment, version
from tidegate.actor.engines.port import EngineControl
from tidegate.actor.engines.registry import EngineSetting, open_engine
from tidegate.algorithms.objectives import ActorCriticSettings
from tidegate.core.spaces import BoxSpace, DiscreteSpace, EnvironmentDescription
from tidegate.learner.optim.actor_critic import ActorCriticTrainer
from tidegate.models.policies import build_policy
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.config import PolicyConfig, WorkloadConfig

ENV_ID = "examples.corridor:Corridor-v0"
LENGTH = 4
DESCRIPTION = EnvironmentDescription(ENV_ID, BoxSpace((2,), "float32", (-1.0, 0.0), (1.0,)), DiscreteSpace(2))
NUM_ENVS, NUM_STEPS, NUM_UPDATES = 32, 20, 40


def walk(seed: int, *, action: int, length: int = 5) -> tuple[list[list[float]], list[float]]:
    """Observations and rewards of an episode of one action."""
    corridor = Corridor(length=length)
    observation, _ = corridor.reset(seed=seed)
    observations, rewards, is_over = [observation.tolist()], list[float](), False
    while not is_over:
        observation, reward, is_over, truncated, _ = corridor.step(np.int64(action))
        assert not truncated
        observations.append(observation.tolist())
        rewards.append(reward)
    return observations, rewards


def test_the_sign_stands_at_the_start_alone_and_the_last_step_is_the_turn() -> None:
    signs: set[float] = set()
    for seed in range(8):
        for action in (0, 1):
            observations, rewards = walk(seed, action=action)
            sign = observations[0][0]
            signs.add(sign)
            assert [seen[0] for seen in observations[1:]] == [0.0] * 5
            np.testing.assert_allclose([seen[1] for seen in observations], np.linspace(0, 1, 6), atol=1e-6)
            assert rewards == [0.0] * 4 + [float(sign == 2 * action - 1)]
    assert signs == {-1.0, 1.0}


def test_it_is_registered_with_thirty_steps() -> None:
    made = gymnasium.make(ENV_ID)
    made.reset(seed=0)
    ends = [made.step(made.action_space.sample())[2] for _ in range(30)]
    assert ends == [False] * 29 + [True]


@pytest.mark.slow
@pytest.mark.parametrize(("memory", "lowest", "highest"), [("gru", 0.95, 1.0), ("none", 0.3, 0.7)])
def test_a_short_corridor_is_solved_with_memory_alone(
    memory: Literal["gru", "none"], lowest: float, highest: float
) -> None:
    torch.set_num_threads(1)
    config = PolicyConfig(kind="mlp", hidden=(16,), memory=memory, memory_units=16)
    workload = WorkloadConfig(kind="segments", env=ENV_ID, num_envs=NUM_ENVS, env_kwargs={"length": LENGTH})
    setting = EngineSetting(workload=workload, policy=config, seed=0, actor_index=0, description=DESCRIPTION)
    control = EngineControl()
    engine = open_engine("auto", setting, control, SystemClock())
    learning = ActorCriticSettings(value_scale=1.0, learning_rate=1e-2, anneal_updates=0)
    trainer = ActorCriticTrainer(
        build_policy(DESCRIPTION, config), learning, seed=0, device=torch.device("cpu")
    )
    returns: list[float] = []
    for number in range(1, NUM_UPDATES + 1):
        control.newest = snapshot(number, trainer.policy())
        task = segment_task(f"segment-{number}", env_id=ENV_ID, unroll_length=NUM_STEPS)
        task = msgspec.structs.replace(task, seed=number)
        engine.check_task(task)
        [rollouts] = engine.generate([task])
        [sample] = rollouts.samples
        returns += [end.episode_return for end in sample.episodes]
        record = segment(f"t{number}", at=version(number), tensors=sample.tensors)
        trainer.update(trainer.prepare([record]), number=number)
    engine.close()
    assert lowest <= float(np.mean(returns[-200:])) <= highest
