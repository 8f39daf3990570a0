"""Acting by a Q-network with memory: the states that sequences of replay begin from, and their first priorities."""

import msgspec
import numpy as np
import pytest

from tests.reference import q_learning as slow
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


def segments(
    count: int, settings: QActingSettings
) -> tuple[MemoryPolicy, dict[str, Array], list[dict[str, Array]]]:
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
        q_learning=settings,
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
    policy, params, made = segments(4, QActingSettings(sequence_period=period))
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


@pytest.mark.parametrize("rescale", [False, True])
def test_each_start_of_a_sequence_carries_its_priority_under_the_network_that_acted(*, rescale: bool) -> None:
    settings = QActingSettings(
        sequence_period=2,
        sequence_length=4,
        burn_in=1,
        priority_max_share=0.75,
        n_steps=2,
        discount=0.9,
        value_rescaling=rescale,
    )
    policy, params, made = segments(4, settings)
    state = np.zeros((NUM_ENVS, policy.memory_size), np.float32)
    num_starts = 0
    for tensors in made:
        states: list[Array] = []
        values: list[Array] = []
        for step in range(NUM_STEPS + 1):
            states.append(state)
            q_NA, state = policy.stepper(params)({"observations": tensors["observations"][step]}, state)
            values.append(q_NA)
            if step < NUM_STEPS:
                state = state * tensors["valid"][step][:, None].astype(np.float32)
        state = states[NUM_STEPS]
        expected = np.zeros((NUM_STEPS, NUM_ENVS))
        for env in range(NUM_ENVS):
            column = {name: tensors[name][:, env].tolist() for name in ("valid", "terminated", "truncated")}
            for start in range(NUM_STEPS):
                if column["valid"][start] and (start % 2 == 0 or not column["valid"][start - 1]):
                    num_starts += 1
                    expected[start, env] = _priority(
                        tensors, values, states[start][env], settings, env, start
                    )
        np.testing.assert_allclose(tensors["priorities"], expected, atol=1e-5)
    assert num_starts > 4 * NUM_ENVS * 3 // 2
    assert not all(tensors["valid"].all() for tensors in made)


def _priority(
    tensors: dict[str, Array],
    values: list[Array],
    state_M: Array,
    settings: QActingSettings,
    env: int,
    start: int,
) -> float:
    """Of one sequence, step by step."""
    rewards, terminated, truncated, actions = (
        tensors[name][:, env].tolist() for name in ("rewards", "terminated", "truncated", "actions")
    )
    errors: list[float] = []
    ended = False
    for step in range(start, min(start + settings.sequence_length, NUM_STEPS)):
        target = slow.target(
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            values_after=[float(each[env].max()) for each in values[1:]],
            start=step,
            n_steps=settings.n_steps,
            discount=settings.discount,
            rescale=settings.value_rescaling,
        )
        errors.append(target - float(values[step][env, actions[step]]))
        ended = terminated[step] or truncated[step]
        if ended:
            break
    is_known = ended or len(errors) > settings.burn_in
    return slow.sequence_priority(
        errors,
        burn_in=settings.burn_in if state_M.any() and is_known else 0,
        length=len(errors),
        max_share=settings.priority_max_share,
    )
