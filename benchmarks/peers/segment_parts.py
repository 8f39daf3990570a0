"""What a step of segments costs where nothing else is done: environment, inference, recording, training, each alone.

A program: a run file and overrides; prints one JSON object of CPU-seconds a step. One process and one thread, so that
their sum is the least that any arrangement of processes can take.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.peers.plain_cartpole import (
    LINEAGE,
    engine_setting,
    open_plain_trainer,
    task_of,
    trajectory_of,
)
from benchmarks.peers.segment_pipe import pack_segment, unpack_segment
from tidegate.actor.engines.port import EngineControl
from tidegate.actor.engines.registry import EngineSetting, open_engine
from tidegate.core.ids import PolicyVersion
from tidegate.core.records import Array, PolicySnapshot, Trajectory
from tidegate.launch.run_file import RunPlan, read_run_file
from tidegate.models.policies import build_policy
from tidegate.runtime.clock import SystemClock
from tidegate.vector_envs.describing import describe
from tidegate.vector_envs.observations import recorded_observations
from tidegate.vector_envs.opening import open_vector_env

WARM_UP = 3
SECONDS = 5.0


class Parts(msgspec.Struct, frozen=True):
    """CPU-seconds of an environment step. ``recording``: what an engine spends beside environment and inference."""

    environment: float
    inference: float
    recording: float
    training: float

    @property
    def total(self) -> float:
        """All four."""
        return self.environment + self.inference + self.recording + self.training


def cpu_s_of(work: Callable[[], object], *, steps: int) -> float:
    """CPU-seconds of one of the ``steps`` that each call of ``work`` makes."""
    for _ in range(WARM_UP):
        work()
    calls, begun_s = 0, time.process_time()
    while (spent_s := time.process_time() - begun_s) < SECONDS:
        work()
        calls += 1
    return spent_s / (calls * steps)


def measure(plan: RunPlan) -> Parts:
    """Each part in turn."""
    workload, policy = plan.file.workload, plan.file.policy
    description = describe(workload)
    network = build_policy(description, policy)
    params = network.init_params(np.random.default_rng(plan.file.seed))
    envs = open_vector_env(workload, num_envs=workload.num_envs)
    observed, _ = envs.reset(seed=plan.file.seed)
    observations = recorded_observations(description.observation_space, observed)
    rng = np.random.default_rng(plan.file.seed)
    environment = cpu_s_of(
        lambda: envs.step(
            network.actions.environment_actions(
                network.actions.sample(
                    np.zeros((workload.num_envs, network.actions.num_outputs), np.float32), rng
                )[0]
            )
        ),
        steps=workload.num_envs,
    )
    envs.close()
    act = network.runner(params)
    inference = cpu_s_of(lambda: act(observations), steps=workload.num_envs)
    trajectories, engine = _segments(plan, engine_setting(plan, description, actor_index=0), params)
    steps = workload.num_envs * workload.unroll_length * len(trajectories)
    # After all that is measured without torch, as in an actor: this imports it.
    trainer = open_plain_trainer(plan, network)
    return Parts(
        environment=environment,
        inference=inference,
        recording=max(0.0, engine - environment - inference),
        training=cpu_s_of(lambda: trainer.update(trainer.prepare(trajectories), number=1), steps=steps),
    )


def _segments(
    plan: RunPlan, setting: EngineSetting, params: dict[str, Array]
) -> tuple[list[Trajectory], float]:
    """A batch, and CPU-seconds of a step of the engine that recorded it."""
    control = EngineControl()
    engine = open_engine("auto", setting, control, SystemClock())
    control.newest = PolicySnapshot(PolicyVersion(LINEAGE, 0), params)
    engine.check_policy(control.newest)
    made: list[Trajectory] = []

    def generate() -> None:
        task = task_of(setting, f"parts-{len(made)}")
        engine.check_task(task)
        [rollouts] = engine.generate([task])
        segment = unpack_segment(pack_segment(rollouts.samples[0]))
        made.append(trajectory_of(segment, task.task_id))

    cpu_s = cpu_s_of(generate, steps=setting.workload.num_envs * setting.workload.unroll_length)
    engine.close()
    return made[: plan.file.batch_size], cpu_s


def main(arguments: list[str]) -> int:
    """Print the parts; returns the exit code."""
    run_file, *overrides = arguments
    parts = measure(read_run_file(Path(run_file), overrides))
    sys.stdout.write(msgspec.json.encode(parts).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
