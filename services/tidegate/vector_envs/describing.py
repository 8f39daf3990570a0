"""Describes the environment of a run: opens a copy, reads its spaces, steps it for a moment, closes it."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.core.spaces import DictSpace, EnvironmentDescription, Space, TupleSpace, observation_leaves
from tidegate.runtime.config import WorkloadConfig
from tidegate.runtime.loading import load
from tidegate.vector_envs.failures import failure_of
from tidegate.vector_envs.finding import find_spec
from tidegate.vector_envs.opening import STEP_LIMIT, has_native_form, open_vector_env, quiet

# The measurement adds to the start of a run: it ends after so much time or so many steps, the first of the two.
MEASURED_S = 0.1
MEASURED_STEPS_MAX = 20_000
NUM_ACTIONS = 32
# Copies that open and reset as fast as this are measured several at once, as an actor steps them; of slower ones one
# alone (16 copies of Pong take 2.5 CPU-seconds).
QUICK_TO_OPEN_CPU_S = 0.08
COPIES_MAX = 16


def describe(
    workload: WorkloadConfig, *, accept: Callable[[EnvironmentDescription], object] | None = None
) -> EnvironmentDescription:
    """What the workload's environment observes and accepts, with its wrappers and stacked frames.

    Its module is imported and its code runs: a reset, and steps with random actions. ``accept`` is called with the
    description before its speed is measured, which takes a while; what it raises is raised.

    Raises:
        NotFoundError: there is no such environment, or what it needs is not installed.
        ConfigError: a space is unsupported, an argument or wrapper does not fit, or its code fails.
    """
    env_id = workload.env
    spec = find_spec(env_id)
    started_cpu_s = time.process_time()
    envs = open_vector_env(workload, num_envs=1, checked=True)
    with quiet():
        try:
            # Imports Gymnasium, which is known to be installed only here.
            plain_space = load("tidegate.vector_envs.spaces:plain_space")
            what = f"Environment {env_id!r}: the space of its"
            observations = plain_space(envs.single_observation_space, place=f"{what} observations")
            actions = plain_space(envs.single_action_space, place=f"{what} actions")
            if isinstance(actions, DictSpace | TupleSpace):
                raise ConfigError(
                    f"{what} actions has several parts, for which there is no policy",
                    why=f"it is {actions}"[:200],
                    fix="wrap the environment so that its actions are Discrete, MultiDiscrete, MultiBinary or a Box",
                )
            observation_leaves(observations)
            _try_out(env_id, envs, observations)
            limit = workload.env_kwargs.get(STEP_LIMIT, spec.max_episode_steps)
            description = EnvironmentDescription(
                env_id=env_id,
                observation_space=observations,
                action_space=actions,
                max_episode_steps=max(0, int(limit or 0)),
                is_vectorised=has_native_form(spec),
                steps_per_cpu_s=0.0,
            )
            if accept is not None:
                accept(description)
            if time.process_time() - started_cpu_s < QUICK_TO_OPEN_CPU_S:
                envs.close()
                num_envs = workload.num_envs if has_native_form(spec) else min(workload.num_envs, COPIES_MAX)
                envs = open_vector_env(workload, num_envs=num_envs)
            steps_per_cpu_s = _measure(envs)
        finally:
            envs.close()
    return msgspec.structs.replace(description, steps_per_cpu_s=steps_per_cpu_s)


def _try_out(env_id: str, envs: Any, space: Space) -> None:
    """One reset and one step.

    Raises:
        ConfigError: either fails, or gives an observation that is not in the declared space.
    """
    check_observation = load("tidegate.vector_envs.spaces:check_observation")
    try:
        observations, _ = envs.reset(seed=0)
    except Exception as error:  # an environment is third-party code
        raise failure_of(env_id, "in reset", error) from error
    check_observation(space, observations, place=f"Environment {env_id!r}: its first observation")
    envs.action_space.seed(0)
    try:
        observations, *_ = envs.step(envs.action_space.sample())
    except Exception as error:
        raise failure_of(env_id, "in a step", error) from error
    check_observation(space, observations, place=f"Environment {env_id!r}: the observation of its first step")


def _measure(envs: Any) -> float:
    """Steps of all copies for each second of CPU, under random actions; ends at a step that fails.

    An environment that fails now and then is no reason to refuse a run: actors step each copy behind a guard.
    """
    envs.action_space.seed(0)
    actions = [envs.action_space.sample() for _ in range(NUM_ACTIONS)]
    num_steps = 0
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    with contextlib.suppress(Exception):
        envs.reset(seed=0)
        started_s, started_cpu_s = time.perf_counter(), time.process_time()
        while num_steps < MEASURED_STEPS_MAX and time.perf_counter() - started_s < MEASURED_S:
            envs.step(actions[num_steps % NUM_ACTIONS])
            num_steps += 1
    spent_s = time.process_time() - started_cpu_s
    return num_steps * envs.num_envs / spent_s if spent_s > 0.0 else 0.0
