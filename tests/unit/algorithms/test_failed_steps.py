"""Targets of segments in which steps failed: those of the true steps alone, whatever the other rows contain."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.reference import vtrace as slow
from tests.support.segments import random_segment
from tidegate.algorithms.objectives import OBJECTIVES, ActorCriticSettings, ObjectiveName, prepare_update
from tidegate.algorithms.segment_batch import stack_segments
from tidegate.core.records import Array

NUM_STEPS, NUM_ENVS = 14, 3
GARBAGE = 1e6


def segment_with_failures(seed: int) -> tuple[dict[str, Array], Array, Array]:
    """A segment, π_prox's logprobs and its values; rows that are no steps contain garbage wherever they may.

    The observation after a failed step repeats the one before, so that its value is made garbage, too.
    """
    rng = np.random.default_rng(seed)
    segment = random_segment(seed, num_steps=NUM_STEPS, num_envs=NUM_ENVS)
    shape = (NUM_STEPS, NUM_ENVS)
    terminated, truncated, valid = (np.zeros(shape, np.bool_) for _ in range(3))
    values = rng.standard_normal((NUM_STEPS + 1, NUM_ENVS)).astype(np.float32)
    logprobs = np.log(rng.uniform(0.05, 1.0, shape)).astype(np.float32)
    done = rng.random(NUM_ENVS) < 0.2
    for t in range(NUM_STEPS):
        failed = rng.random(NUM_ENVS) < 0.2
        if t > 0:
            truncated[t - 1] |= failed & ~done
        valid[t] = ~done & ~failed
        ends = valid[t] & (rng.random(NUM_ENVS) < 0.2)
        terminated[t] = ends & (rng.random(NUM_ENVS) < 0.5)
        truncated[t] = (ends & ~terminated[t]) | failed
        values[t + 1][failed] = GARBAGE
        done = ends | failed
    logprobs[~valid] = -30.0
    segment["behavior_logprobs"][~valid] = -1e-3
    segment["rewards"][~valid] = -GARBAGE
    return segment | {"terminated": terminated, "truncated": truncated, "valid": valid}, logprobs, values


def true_runs(valid_T: Array) -> list[tuple[int, int]]:
    """The first and last row of each run of steps."""
    runs: list[tuple[int, int]] = []
    for t, is_step in enumerate(valid_T.tolist()):
        if is_step and t > 0 and valid_T[t - 1]:
            runs[-1] = (runs[-1][0], t)
        elif is_step:
            runs.append((t, t))
    return runs


@pytest.mark.parametrize("objective", OBJECTIVES)
@given(seed=st.integers(0, 10**6))
def test_targets_are_those_of_the_true_steps_alone(objective: ObjectiveName, seed: int) -> None:
    segment, logprobs, values = segment_with_failures(seed)
    settings = ActorCriticSettings(
        objective=objective,
        epochs=1,
        minibatches=1,
        normalise_advantages=False,
        discount=0.9,
        lambda_=0.8,
        clip_rho=1.2,
        value_scale=1.0,
    )
    steps = prepare_update(
        stack_segments([segment], device=torch.device("cpu")),
        logprobs_TN=torch.as_tensor(logprobs),
        values_SN=torch.as_tensor(values),
        settings=settings,
    ).steps
    advantages, targets = np.full((2, NUM_STEPS, NUM_ENVS), np.nan)
    for n in range(NUM_ENVS):
        for first, last in true_runs(segment["valid"][:, n]):
            window = slice(first, last + 1)
            length = last + 1 - first
            log_ratios = logprobs[window, n].astype(float) - segment["behavior_logprobs"][window, n]
            found_targets, found, _ = slow.vtrace(
                ratios=np.exp(log_ratios).tolist() if objective == "vtrace" else [1.0] * length,
                rewards=segment["rewards"][window, n].tolist(),
                discounts=[0.9 * (not ended) for ended in segment["terminated"][window, n]],
                continues=[True] * (length - 1) + [False],
                values=values[first : last + 2, n].tolist(),
                clip_rho=1.2,
                clip_c=1.0,
                lambda_=0.8,
            )
            advantages[window, n], targets[window, n] = found, found_targets
    valid = segment["valid"]
    np.testing.assert_allclose(steps.advantages_B.numpy(), advantages[valid], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(steps.value_targets_B.numpy(), targets[valid], rtol=1e-4, atol=1e-4)
