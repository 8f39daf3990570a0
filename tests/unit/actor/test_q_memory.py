"""Acting by a Q-network with memory: the states that sequences of replay begin from."""

import msgspec
import numpy as np
import pytest

from tests.unit.actor import toy_env
from tests.unit.actor.support import segment_task, snapshot
from tidegate.actor.engines.port import EngineControl
from tidegate.actor.engines.registry import EngineSetting, open_engine
from tidegate.algorithms.q_learning_settings import QActingSettings
from tidegate.core.records import Array
from tidegate.models.policies import build_policy
from tidegate.models.policy_port import MemoryPolicy
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.config import PolicyConfig, WorkloadConfig

CONFIG = PolicyConfig(kind="q_mlp", hidden=(6,), memory="lstm", memory_units=4)
NUM_ENVS, NUM_STEPS = 3, 6


def segments(count: int, *, period: int) -> tuple[MemoryPolicy, dict[str, Array], list[dict[str, Array]]]:
    """The policy, its parameters, and the segments that it acted in."""
    policy = build_policy(toy_env.DESCRIPTION, CONFIG)
    assert isinstance(policy, MemoryPolicy)
    params = policy.init_params(np.random.default_rng(0))
    control = EngineControl()
    setting = EngineSetting(
        workload=WorkloadConfig(kind="segments", env=toy_env.ENV_ID, num_envs=NUM_ENVS),
        policy=CONFIG,
        seed=0,
        actor_index=0,
        description=toy_env.DESCRIPTION,
        q_learning=QActingSettings(sequence_period=period),
    )
    engine = open_engine("auto", setting, control, SystemClock())
    control.newest = snapshot(0, params)
    made: list[dict[str, Array]] = []
    for number in range(count):
        task = segment_task(f"segment-{number}", env_id=toy_env.ENV_ID, unroll_length=NUM_STEPS)
        task = msgspec.structs.replace(task, seed=number)
        engine.check_task(task)
        [rollouts] = engine.generate([task])
        made.append(rollouts.samples[0].tensors)
    engine.close()
    return policy, params, made


@pytest.mark.parametrize("period", [0, 1, 2, 3])
def test_states_are_stored_before_every_row_of_the_period_and_are_empty_after_an_end(period: int) -> None:
    policy, params, made = segments(4, period=period)
    state = np.zeros((NUM_ENVS, policy.memory_size), np.float32)
    for tensors in made:
        expected: list[Array] = []
        for step in range(NUM_STEPS):
            if step % (period or NUM_STEPS) == 0:
                expected.append(state)
            _, state = policy.stepper(params)({"observations": tensors["observations"][step]}, state)
            state = state * tensors["valid"][step][:, None].astype(np.float32)
        np.testing.assert_allclose(tensors["memory"], np.stack(expected), atol=1e-6)
    assert not all(tensors["valid"].all() for tensors in made)
    assert not made[0]["memory"][0].any()
    assert made[1]["memory"].any()


def test_sequences_have_no_first_priority() -> None:
    _, _, [tensors] = segments(1, period=2)
    assert "priorities" not in tensors
