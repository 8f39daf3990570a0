"""Columns unrolled from recorded states: beside a walk over every row with resets, with their gradient."""

import dataclasses

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.segments import DESCRIPTION, random_segment
from tests.unit.learner.trajectories import segment, version
from tidegate.algorithms.objectives import ActorCriticSettings
from tidegate.algorithms.segment_batch import SegmentBatch, stack_segments
from tidegate.core.errors import RecordError
from tidegate.learner.optim.actor_critic import ActorCriticTrainer
from tidegate.learner.optim.policy_network import PolicyNetwork
from tidegate.learner.optim.sequence_network import SequenceNetwork
from tidegate.models.policies import build_policy
from tidegate.models.recurrent import RecurrentPolicy
from tidegate.runtime.config import PolicyConfig

CPU = torch.device("cpu")
CONFIG = PolicyConfig(kind="mlp", hidden=(6,), memory="gru", memory_units=5)
NUM_STEPS, NUM_ENVS = 10, 4


def policy() -> RecurrentPolicy:
    made = build_policy(DESCRIPTION, CONFIG)
    assert isinstance(made, RecurrentPolicy)
    return made


def tensors_with_memory(seed: int) -> dict[str, np.ndarray]:
    tensors = random_segment(seed, num_steps=NUM_STEPS, num_envs=NUM_ENVS)
    state = np.random.default_rng(seed).normal(0.0, 0.5, (NUM_ENVS, 5)).astype(np.float32)
    return {**tensors, "memory": state}


def batch(seed: int) -> SegmentBatch:
    return stack_segments([tensors_with_memory(seed)], device=CPU)


@given(st.integers(0, 2**31))
def test_columns_equal_a_walk_that_empties_the_state_after_each_row_that_is_no_step(seed: int) -> None:
    network = policy()
    params = network.init_params(np.random.default_rng(seed))
    params["policy.weight"] *= np.float32(100.0)  # a fresh policy's outputs are nearly 0
    given_ = batch(seed)
    tensors = {name: torch.as_tensor(array) for name, array in params.items()}
    made = SequenceNetwork(network, tensors, PolicyNetwork(network, tensors, device=CPU))
    columns_C = torch.tensor([2, 0, 3])
    found = made.outputs(given_, columns_C).numpy()
    assert found.shape == (NUM_STEPS + 1, 3, 4)
    seen, state = given_.observations["observations"].numpy(), given_.memory_NM.numpy()
    step = network.stepper(params)
    for t in range(NUM_STEPS + 1):
        outputs, state = step({"observations": seen[t]}, state)
        np.testing.assert_allclose(found[t, :, :3], outputs[[2, 0, 3]], atol=1e-4)
        if t < NUM_STEPS:
            state = state * given_.valid_TN[t].numpy()[:, None].astype(np.float32)


def test_the_state_before_a_segment_and_earlier_steps_reach_later_outputs_of_the_same_episode_only() -> None:
    network = policy()
    params = {
        name: torch.as_tensor(array) for name, array in network.init_params(np.random.default_rng(0)).items()
    }
    made = SequenceNetwork(network, params, PolicyNetwork(network, params, device=CPU))
    given_ = batch(3)
    valid_TN = torch.ones_like(given_.valid_TN)
    valid_TN[4, 0] = False  # the episode of environment 0 ended at step 3
    memory_NM = given_.memory_NM.clone().requires_grad_()
    changed = dataclasses.replace(given_, valid_TN=valid_TN, memory_NM=memory_NM)
    values_SN = made.outputs(changed, torch.arange(NUM_ENVS))[..., -1]
    (until_end,) = torch.autograd.grad(values_SN[4, 0], memory_NM, retain_graph=True)
    assert float(until_end[0].abs().max()) > 0.0
    assert float(until_end[1:].abs().max()) == 0.0
    (after_end,) = torch.autograd.grad(values_SN[5:, 0].sum(), memory_NM)
    assert float(after_end.abs().max()) == 0.0


def trainer() -> ActorCriticTrainer:
    settings = ActorCriticSettings(epochs=2, minibatches=3)
    return ActorCriticTrainer(policy(), settings, seed=0, device=CPU)


def test_an_update_trains_every_part_of_a_policy_with_memory() -> None:
    made = trainer()
    before = made.policy()
    records = [segment("t", at=version(0), tensors=tensors_with_memory(1))]
    metrics = made.update(made.prepare(records), number=1)
    assert metrics["gradient_steps"] == 6
    after = made.policy()
    assert {name for name in before if not np.array_equal(before[name], after[name])} == before.keys() - {
        "input_scale"
    }


def test_a_segment_without_its_state_is_refused() -> None:
    record = segment("t", at=version(0), tensors=tensors_with_memory(1))
    without = {name: tensor for name, tensor in record.tensors.items() if name != "memory"}
    with pytest.raises(RecordError, match="has no memory"):
        trainer().prepare([msgspec.structs.replace(record, tensors=without)])
