"""Segments of Atari games as actors record them, under an untrained policy."""

from collections.abc import Iterator

import numpy as np

from tidegate.actor.engines.port import EngineControl, Sample
from tidegate.actor.engines.registry import EngineSetting, open_engine
from tidegate.core.ids import LineageName, PolicyVersion, RunId, TaskId
from tidegate.core.records import PolicySnapshot, Task
from tidegate.models.policies import build_policy
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.config import PolicyConfig, WorkloadConfig
from tidegate.vector_envs.describing import describe

GAMES = (
    "Pong",
    "Breakout",
    "SpaceInvaders",
    "Seaquest",
    "Qbert",
    "BeamRider",
    "Asterix",
    "MsPacman",
)
NUM_ENVS, NUM_STEPS = 16, 64
VERSION = PolicyVersion(LineageName("0-bench"), 0)


def segments(game: str, *, count: int, seed: int = 0) -> Iterator[Sample]:
    """Consecutive segments of one stream of environments."""
    workload = WorkloadConfig(
        kind="segments", env=f"ALE/{game}-v5", num_envs=NUM_ENVS, unroll_length=NUM_STEPS
    )
    policy = PolicyConfig(kind="cnn")
    description = describe(workload)
    control = EngineControl()
    engine = open_engine(
        "auto",
        EngineSetting(workload=workload, policy=policy, seed=seed, actor_index=0, description=description),
        control,
        SystemClock(),
    )
    params = build_policy(description, policy).init_params(np.random.default_rng(seed))
    control.newest = PolicySnapshot(VERSION, params)
    engine.check_policy(control.newest)
    try:
        for index in range(count):
            task = Task(
                task_id=TaskId(f"{game}-{seed}-{index}"),
                run_id=RunId("bench"),
                kind="segment",
                required_version=VERSION,
                env_id=workload.env,
                unroll_length=NUM_STEPS,
                seed=seed + index,
            )
            engine.check_task(task)
            [rollouts] = engine.generate([task])
            yield from rollouts.samples
    finally:
        engine.close()
