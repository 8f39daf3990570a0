"""Segments as an actor records them, from a made-up environment whose episodes end at random."""

import numpy as np

from tidegate.core.records import Array
from tidegate.core.spaces import BoxSpace, DiscreteSpace, EnvironmentDescription

OBSERVATION_SIZE = 4
NUM_ACTIONS = 3
DESCRIPTION = EnvironmentDescription(
    env_id="Made-v0",
    observation_space=BoxSpace((OBSERVATION_SIZE,), "float32", (-np.inf,), (np.inf,)),
    action_space=DiscreteSpace(NUM_ACTIONS),
)


def random_segment(seed: int, *, num_steps: int, num_envs: int) -> dict[str, Array]:
    """A segment in the layout of ``algorithms.segments``: a fifth of the steps end an episode, half of them cut."""
    rng = np.random.default_rng(seed)
    shape = (num_steps, num_envs)
    ended = np.zeros(shape, dtype=bool)
    valid = np.ones(shape, dtype=bool)
    previous = rng.random(num_envs) < 0.2
    for t in range(num_steps):
        valid[t] = ~previous
        ended[t] = valid[t] & (rng.random(num_envs) < 0.2)
        previous = ended[t]
    terminated = ended & (rng.random(shape) < 0.5)
    return {
        "observations": rng.standard_normal((num_steps + 1, num_envs, OBSERVATION_SIZE)).astype(np.float32),
        "actions": rng.integers(0, NUM_ACTIONS, size=shape, dtype=np.int32),
        "behavior_logprobs": np.log(rng.uniform(0.05, 1.0, size=shape)).astype(np.float32),
        "rewards": np.where(valid, rng.standard_normal(shape), 0.0).astype(np.float32),
        "terminated": terminated,
        "truncated": ended & ~terminated,
        "valid": valid,
    }
