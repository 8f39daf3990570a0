"""Policies and steps for the tests of the inference service."""

import numpy as np

from tests.support.environments import CARTPOLE
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.core.records import Array, PolicySnapshot
from tidegate.core.spaces import EnvironmentDescription
from tidegate.inference.state import CheckedStep, check_step
from tidegate.models.policies import build_policy
from tidegate.models.policy_port import SegmentPolicy
from tidegate.runtime.config import PolicyConfig
from tidegate.wire.vector_step import ActStep, StepLayout

NUM_ENVS = 3
MLP = PolicyConfig(kind="mlp", hidden=(8,))


def version(step: int) -> PolicyVersion:
    return PolicyVersion(LineageName("0-a"), step)


def make_policy(
    config: PolicyConfig = MLP, description: EnvironmentDescription = CARTPOLE
) -> tuple[SegmentPolicy, StepLayout]:
    policy = build_policy(description, config)
    return policy, StepLayout.of(policy, num_envs=NUM_ENVS)


def snapshot(policy: SegmentPolicy, step: int, *, seed: int = 0) -> PolicySnapshot:
    return PolicySnapshot(version(step), policy.init_params(np.random.default_rng(seed)))


def random_observations(layout: StepLayout, rng: np.random.Generator) -> dict[str, Array]:
    return {
        tensor.name: (rng.normal(size=(layout.num_envs, *tensor.shape)) * 50).astype(tensor.dtype)
        for tensor in layout.tensors
    }


def random_step(layout: StepLayout, rng: np.random.Generator, *, number: int = 1) -> ActStep:
    return ActStep(
        number=number,
        seed=int(rng.integers(1 << 63)),
        observations=layout.join(random_observations(layout, rng)),
        memory=rng.normal(size=(layout.num_envs, layout.memory_size)).astype(np.float32).tobytes(),
    )


def checked(layout: StepLayout, step: ActStep, *, now_s: float = 1.0) -> CheckedStep:
    return check_step(step, layout, instance="actor-0", now_s=now_s)
