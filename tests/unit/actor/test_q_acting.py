"""Acting by a Q-network: each copy's exploration, the first priorities beside single steps, and images."""

import subprocess
import sys
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given

from tests.reference import q_learning as slow
from tests.support.environments import CARTPOLE
from tests.unit.actor import toy_pixels
from tests.unit.actor.support import segment_task, snapshot, version
from tidegate.actor.engines.port import Engine, EngineControl, Sample
from tidegate.actor.engines.q_acting import exploration_rates
from tidegate.actor.engines.registry import EngineSetting, open_engine
from tidegate.algorithms.first_priorities import first_priorities
from tidegate.algorithms.frame_stacks import observed
from tidegate.algorithms.q_learning_settings import QActingSettings
from tidegate.core.records import Array
from tidegate.core.spaces import EnvironmentDescription
from tidegate.models.policies import build_policy
from tidegate.models.policy_port import SegmentPolicy
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.config import PolicyConfig, WorkloadConfig
from tidegate.runtime.environment_settings import RewardConfig

SEEDS = st.integers(0, 2**31)
Q_MLP = PolicyConfig(kind="q_mlp", hidden=(8,))
SETTINGS = QActingSettings(n_steps=3, discount=0.9)


def network(description: EnvironmentDescription = CARTPOLE, policy: PolicyConfig = Q_MLP) -> SegmentPolicy:
    return build_policy(description, policy)


def params(
    seed: int, description: EnvironmentDescription = CARTPOLE, policy: PolicyConfig = Q_MLP
) -> dict[str, Array]:
    fresh = network(description, policy).init_params(np.random.default_rng(seed))
    return {name: 3.0 * value if name.endswith("weight") else value for name, value in fresh.items()}


def engine_of(
    control: EngineControl,
    *,
    description: EnvironmentDescription = CARTPOLE,
    policy: PolicyConfig = Q_MLP,
    num_envs: int = 4,
    settings: QActingSettings = SETTINGS,
    reward: RewardConfig | None = None,
) -> Engine:
    workload = WorkloadConfig(
        kind="segments", env=description.env_id, num_envs=num_envs, reward=reward or RewardConfig()
    )
    setting = EngineSetting(
        workload=workload,
        policy=policy,
        seed=0,
        actor_index=0,
        description=description,
        q_learning=settings,
    )
    return open_engine("auto", setting, control, SystemClock())


def unroll(engine: Engine, *, num_steps: int, env_id: str = "CartPole-v1", seed: int = 0) -> Sample:
    task = msgspec.structs.replace(segment_task(env_id=env_id, unroll_length=num_steps), seed=seed)
    engine.check_task(task)
    [rollouts] = engine.generate([task])
    [sample] = rollouts.samples
    return sample


def expected_priorities(
    q_SNA: Array, segment: dict[str, Any], settings: QActingSettings, *, scale: float = 1.0
) -> Array:
    """Step by step, by the slow twin."""
    num_steps, num_envs = segment["rewards"].shape
    found = np.zeros((num_steps, num_envs))
    for env in range(num_envs):
        for step in range(num_steps):
            if segment["valid"][step, env]:
                target = slow.target(
                    rewards=(scale * segment["rewards"][:, env]).tolist(),
                    terminated=segment["terminated"][:, env].tolist(),
                    truncated=segment["truncated"][:, env].tolist(),
                    values_after=q_SNA[1:, env].max(-1).tolist(),
                    start=step,
                    n_steps=settings.n_steps,
                    discount=settings.discount,
                    rescale=settings.value_rescaling,
                )
                found[step, env] = abs(target - q_SNA[step, env, segment["actions"][step, env]])
    return found


@pytest.mark.parametrize("rescale", [False, True])
def test_segment_carries_the_td_error_of_each_step_under_the_network_that_acted(*, rescale: bool) -> None:
    settings = msgspec.structs.replace(SETTINGS, value_rescaling=rescale)
    control = EngineControl()
    control.newest = snapshot(2, params(0))
    engine = engine_of(control, settings=settings, reward=RewardConfig(scale=0.5))
    for number in range(4):
        sample = unroll(engine, num_steps=20, seed=number)
        tensors = sample.tensors
        q_SNA = network().action_outputs(params(0), {"observations": tensors["observations"]}, np)
        found = tensors["priorities"]
        assert (found.shape, found.dtype) == ((20, 4), np.float32)
        expected = expected_priorities(q_SNA, tensors, settings, scale=0.5)
        np.testing.assert_allclose(found, expected, atol=2e-4)
        assert [span.version for span in sample.spans] == [version(2)]
    assert control.num_swaps == 1


@given(SEEDS, st.integers(1, 6), st.booleans())
def test_first_priorities_stop_at_ends_and_at_failed_steps(seed: int, n_steps: int, rescale: bool) -> None:
    rng = np.random.default_rng(seed)
    chance_TN = rng.random((9, 2))
    segment: dict[str, Array] = {
        "rewards": rng.normal(0, 2, (9, 2)).astype(np.float32),
        "actions": rng.integers(0, 3, (9, 2)).astype(np.int32),
        "terminated": chance_TN < 0.15,
        "truncated": chance_TN > 0.85,
        "valid": rng.random((9, 2)) > 0.2,
    }
    q_SNA = rng.normal(0, 2, (10, 2, 3)).astype(np.float32)
    settings = QActingSettings(n_steps=n_steps, discount=0.8, value_rescaling=rescale)
    found = first_priorities(q_SNA, segment, settings, RewardConfig())
    np.testing.assert_allclose(found, expected_priorities(q_SNA, segment, settings), atol=1e-4)


@given(SEEDS, st.integers(1, 32))
def test_copies_explore_at_rates_from_epsilon_down_to_its_power(seed: int, num_envs: int) -> None:
    settings = QActingSettings(epsilon=0.4, epsilon_exponent=7.0)
    rates = exploration_rates(num_envs, settings, np.random.default_rng(seed))
    assert rates.dtype == np.float32
    assert (np.diff(rates) < 0).all()
    places = (np.log(rates.astype(np.float64)) / np.log(0.4) - 1.0) / 7.0
    # Each copy in its own N-th.
    assert ((places * num_envs - np.arange(num_envs)) > -1e-4).all()
    assert ((places * num_envs - np.arange(num_envs)) < 1.0001).all()


def test_rates_of_one_copy_cover_the_whole_range_over_segments() -> None:
    settings = QActingSettings()
    drawn = [exploration_rates(1, settings, np.random.default_rng([seed, 2]))[0] for seed in range(200)]
    assert min(drawn) < 0.4**7.7
    assert max(drawn) > 0.4**1.3


def test_behaviour_logprobs_are_those_of_the_copy_s_rate_and_the_first_copy_explores_most() -> None:
    control = EngineControl()
    control.newest = snapshot(0, params(0))
    engine = engine_of(control, num_envs=4)
    sample = unroll(engine, num_steps=500, seed=5)
    tensors = sample.tensors
    rates_N = exploration_rates(4, SETTINGS, np.random.default_rng([5, 2]))
    q_SNA = network().action_outputs(params(0), {"observations": tensors["observations"]}, np)
    is_best = tensors["actions"] == q_SNA[:-1].argmax(-1)
    chances = rates_N / 2 + np.where(is_best, 1.0 - rates_N, 0.0)
    np.testing.assert_allclose(np.exp(tensors["behavior_logprobs"]), chances, rtol=1e-4)
    explored = 1.0 - is_best.mean(axis=0)
    assert explored[0] == pytest.approx(rates_N[0] / 2, abs=0.06)
    assert explored[3] < 0.01


def test_same_seed_gives_the_same_segment() -> None:
    made: list[Sample] = []
    for _ in range(2):
        control = EngineControl()
        control.newest = snapshot(0, params(0))
        made.append(unroll(engine_of(control), num_steps=40, seed=9))
    for name, tensor in made[0].tensors.items():
        np.testing.assert_array_equal(tensor, made[1].tensors[name], err_msg=name)


def test_images_have_first_priorities_too() -> None:
    policy = PolicyConfig(kind="q_cnn", features=8)
    description = toy_pixels.DESCRIPTION
    made = params(0, description, policy)
    control = EngineControl()
    control.newest = snapshot(0, made)
    engine = engine_of(control, description=description, policy=policy, num_envs=2)
    sample = unroll(engine, num_steps=6, env_id=description.env_id)
    leaf = network(description, policy).observations["observations"]
    images = observed(sample.tensors["frames.observations"], sample.tensors["starts.observations"], leaf, np)
    q_SNA = network(description, policy).action_outputs(made, {"observations": images}, np)
    expected = expected_priorities(q_SNA, sample.tensors, SETTINGS)
    np.testing.assert_allclose(sample.tensors["priorities"], expected, rtol=1e-3, atol=1e-3)


def test_actor_of_a_q_network_loads_no_torch() -> None:
    code = "import sys, tidegate.actor.engines.vector_env; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
