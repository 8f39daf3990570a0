"""An actor's memory: what a segment records, and where it begins again."""

import numpy as np
import pytest
import torch

from tests.unit.actor import toy_env, toy_pixels
from tests.unit.actor.support import segment_task, snapshot
from tests.unit.learner.trajectories import segment, version
from tidegate.actor.engines.episode_memory import EpisodeMemory
from tidegate.actor.engines.port import EngineControl
from tidegate.actor.engines.registry import EngineSetting, open_engine
from tidegate.algorithms.objectives import ActorCriticSettings
from tidegate.core.records import Trajectory
from tidegate.core.spaces import EnvironmentDescription
from tidegate.learner.optim.actor_critic import ActorCriticTrainer
from tidegate.models.policies import build_policy
from tidegate.models.recurrent import RecurrentPolicy
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.config import PolicyConfig, WorkloadConfig

CONFIG = PolicyConfig(kind="mlp", hidden=(6,), memory="lstm", memory_units=4)
OF_IMAGES = PolicyConfig(kind="cnn", features=6, memory="lstm", memory_units=4)


def policy(
    description: EnvironmentDescription = toy_env.DESCRIPTION, config: PolicyConfig = CONFIG
) -> RecurrentPolicy:
    made = build_policy(description, config)
    assert isinstance(made, RecurrentPolicy)
    return made


def test_the_state_is_emptied_after_the_row_that_follows_an_end_and_after_a_fault() -> None:
    network = policy()
    params = network.init_params(np.random.default_rng(0))
    memory = EpisodeMemory(memory_size=8, faulted_N=np.array([False, True, False]))
    seen = {"observations": np.ones((3, 2), np.float32)}

    def is_empty(*, ended: list[bool], faulted: list[bool] | None = None) -> list[bool]:
        _, after_NM = network.stepper(params)(seen, memory.state_NM)
        faulted_N = None if faulted is None else np.array(faulted)
        memory.advance(after_NM, ended_N=np.array(ended), faulted_N=faulted_N)
        return [not state.any() for state in memory.state_NM]

    # Environment 1 failed in its first reset: its first row is no step.
    assert is_empty(ended=[True, False, False]) == [False, True, False]
    # Environment 0 ended at the row before: this one is no step; environment 2 fails here.
    assert is_empty(ended=[False, False, False], faulted=[False, False, True]) == [True, False, True]
    assert is_empty(ended=[False, False, False]) == [False, False, False]


@pytest.mark.parametrize(
    ("description", "config"), [(toy_env.DESCRIPTION, CONFIG), (toy_pixels.DESCRIPTION, OF_IMAGES)]
)
def test_segments_record_the_state_that_the_learner_unrolls_from(
    description: EnvironmentDescription, config: PolicyConfig
) -> None:
    """The learner finds the actor's logprobs again, over ends and from one segment into the next."""
    network, env_id = policy(description, config), description.env_id
    params = network.init_params(np.random.default_rng(0))
    params["policy.weight"] *= np.float32(100.0)
    control = EngineControl()
    workload = WorkloadConfig(kind="segments", env=env_id, num_envs=3)
    setting = EngineSetting(workload=workload, policy=config, seed=0, actor_index=0, description=description)
    engine = open_engine("auto", setting, control, SystemClock())
    control.newest = snapshot(0, params)
    records: list[Trajectory] = []
    for number in range(4):
        task = segment_task(f"segment-{number}", env_id=env_id, unroll_length=5)
        engine.check_task(task)
        [rollouts] = engine.generate([task])
        [sample] = rollouts.samples
        records.append(segment(f"t{number}", at=version(0), tensors=sample.tensors))
    assert not records[0].tensors["memory"].any()
    assert records[1].tensors["memory"].any()
    made = ActorCriticTrainer(network, ActorCriticSettings(), seed=0, device=torch.device("cpu"))
    made.restore(params, made.state())
    metrics = made.update(made.prepare(records), number=1)
    assert metrics["mismatch_kl"] < 1e-9
    assert not all((record.tensors["valid"]).all() for record in records)
