"""From an actor's segments through the store's buffer to updates of a Q-network: names, shapes and priorities fit."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.environments import CARTPOLE
from tests.support.replay_units import UnitSource
from tests.unit.actor import test_q_acting as acting
from tests.unit.actor import toy_pixels
from tests.unit.actor.support import snapshot
from tidegate.actor.engines.port import EngineControl
from tidegate.algorithms.q_learning_settings import QActingSettings, QLearningSettings, QSequenceSettings
from tidegate.core.spaces import EnvironmentDescription
from tidegate.learner.optim.q_learner import QLearner
from tidegate.learner.optim.r2d2 import R2d2Learner
from tidegate.models.policies import build_policy
from tidegate.models.policy_port import MemoryPolicy
from tidegate.runtime.config import PolicyConfig
from tidegate.runtime.environment_settings import RewardConfig

NUM_STEPS, NUM_ENVS = 24, 4
N_STEPS = acting.SETTINGS.n_steps


@pytest.mark.parametrize(
    ("description", "policy"),
    [(CARTPOLE, acting.Q_MLP), (toy_pixels.DESCRIPTION, PolicyConfig(kind="q_cnn", features=8))],
)
def test_segments_of_an_actor_are_drawn_and_trained(
    tmp_path: Path, description: EnvironmentDescription, policy: PolicyConfig
) -> None:
    settings = QLearningSettings(discount=acting.SETTINGS.discount, learning_rate=1e-4)
    network = build_policy(description, policy)
    trainer = QLearner(network, settings, seed=0, device=torch.device("cpu"), reward=RewardConfig())
    control = EngineControl()
    engine = acting.engine_of(control, description=description, policy=policy, num_envs=NUM_ENVS)
    source = UnitSource(
        tmp_path,
        num_steps=NUM_STEPS,
        num_envs=NUM_ENVS,
        horizon=N_STEPS,
        selector="prioritised",
        priority_exponent=1.0,
    )
    for number in range(3):
        control.newest = snapshot(number, trainer.policy())
        sample = acting.unroll(engine, num_steps=NUM_STEPS, env_id=description.env_id, seed=number)
        source.insert(sample.tensors, step=number)
        # The network that acted is the one that is trained, and its target network until the first copy: where a
        # window lies within its segment, the actor's first priority is the learner's TD error.
        units = source.draw(64, step=number)
        metrics = trainer.update(trainer.prepare(units), number=number + 1)
        priorities = trainer.priorities()
        assert priorities is not None
        assert np.isfinite(list(metrics.values())).all()
        if number == 0:
            shares = units.probabilities_B / units.probabilities_B.max()
            np.testing.assert_allclose(shares, priorities / priorities.max(), rtol=2e-3, atol=2e-3)
        source.set_priorities(units, priorities)
    source.close()


@pytest.mark.parametrize(
    ("description", "policy"),
    [
        (CARTPOLE, PolicyConfig(kind="q_mlp", hidden=(8,), memory="gru", memory_units=4)),
        (CARTPOLE, PolicyConfig(kind="q_mlp", hidden=(8,), memory="lstm", memory_units=4)),
        (toy_pixels.DESCRIPTION, PolicyConfig(kind="q_cnn", features=8, memory="gru", memory_units=4)),
    ],
    ids=["gru", "lstm", "images"],
)
def test_sequences_of_an_actor_are_drawn_as_often_as_the_learner_finds_them_surprising(
    tmp_path: Path, description: EnvironmentDescription, policy: PolicyConfig
) -> None:
    """The first priority is the learner's where nothing is cut: with one step a target, and within a segment."""
    length, burn_in, num_steps = 9, 1, 3 * NUM_STEPS
    settings = QLearningSettings(
        discount=0.9, learning_rate=1e-4, sequences=QSequenceSettings(burn_in=burn_in, n_steps=1)
    )
    network = build_policy(description, policy)
    assert isinstance(network, MemoryPolicy)
    trainer = R2d2Learner(network, settings, seed=0, device=torch.device("cpu"), reward=RewardConfig())
    control = EngineControl()
    engine = acting.engine_of(
        control,
        description=description,
        policy=policy,
        num_envs=NUM_ENVS,
        settings=QActingSettings(
            discount=0.9, sequence_period=length, sequence_length=length, burn_in=burn_in
        ),
    )
    source = UnitSource(
        tmp_path,
        num_steps=num_steps,
        num_envs=NUM_ENVS,
        horizon=length,
        sequence_period=length,
        selector="prioritised",
        priority_exponent=1.0,
    )
    control.newest = snapshot(0, trainer.policy())
    source.insert(acting.unroll(engine, num_steps=num_steps, env_id=description.env_id).tensors)
    units = source.draw(200)
    assert not units.tensors["memory"].any(axis=1).all()
    assert units.tensors["memory"].any(axis=1).any()
    trainer.update(trainer.prepare(units), number=1)
    priorities = trainer.priorities()
    assert priorities is not None
    shares = units.probabilities_B / units.probabilities_B.max()
    np.testing.assert_allclose(shares, priorities / priorities.max(), rtol=2e-3, atol=2e-3)
    source.close()
