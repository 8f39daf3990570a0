"""The same algorithm without services: actors, a learner, pipes for segments, shared memory for weights.

Same engine, network, update, batch size, number of actors and staleness budget as the run file's, and the same line a
step in ``learner/steps.jsonl``. Nothing survives a crash here, nothing is accounted for, and nothing can be asked.

Usage: ``python -m benchmarks.peers.plain_cartpole RUN_FILE FOLDER [path.to.key=value ...]``; ends at SIGTERM.

Bounds: a semaphore holds the credits for segments, (max_lag + 1) · batch at first and a batch more with each update, as
the platform's law admits them. An actor takes one before it begins a segment, so no segment can be older than the
budget when it is trained, and no pipe holds more than those.
"""

import multiprocessing
import os
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from multiprocessing import connection
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import Synchronized, SynchronizedArray
from multiprocessing.synchronize import Semaphore
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np

from benchmarks.peers.segment_pipe import Segment, pack_segment, unpack_segment
from tidegate.actor.engines.port import EngineControl
from tidegate.actor.engines.registry import EngineSetting, open_engine
from tidegate.core.ids import GroupId, LineageName, PolicyVersion, RunId, TaskId, TrajectoryId
from tidegate.core.records import Array, PolicySnapshot, Task, Trajectory, VersionSpan
from tidegate.core.spaces import EnvironmentDescription
from tidegate.launch.run_file import RunPlan, read_run_file
from tidegate.models.policies import build_policy
from tidegate.models.policy_port import SegmentPolicy
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.parent_death import guard
from tidegate.vector_envs.describing import describe

if TYPE_CHECKING:
    from tidegate.learner.optim.actor_critic import ActorCriticTrainer

LINEAGE = LineageName("0-peer")
POLL_S = 0.5


class SharedPolicy:
    """The newest policy in memory that all processes see; a lock keeps readers from half a policy."""

    def __init__(self, context: SpawnContext, shapes: dict[str, tuple[int, ...]]) -> None:
        """No policy yet: step -1."""
        self._shapes = shapes
        self._step: Synchronized[int] = context.Value("q", -1)
        self._flat: SynchronizedArray[float] = context.Array(
            "f", sum(_size(shape) for shape in shapes.values())
        )

    def write(self, step: int, policy: dict[str, Array]) -> None:
        """Replace it."""
        flat = np.concatenate([policy[name].ravel() for name in self._shapes])
        with self._step.get_lock():
            self._view()[:] = flat
            self._step.value = step

    def read(self, *, known_step: int) -> PolicySnapshot | None:
        """The newest, None when it is the known one."""
        with self._step.get_lock():
            step = self._step.value
            if step == known_step:
                return None
            flat = self._view().copy()
        tensors: dict[str, Array] = {}
        position = 0
        for name, shape in self._shapes.items():
            tensors[name] = flat[position : position + _size(shape)].reshape(shape)
            position += _size(shape)
        return PolicySnapshot(PolicyVersion(LINEAGE, step), tensors)

    def _view(self) -> Any:
        return np.frombuffer(cast("Any", self._flat.get_obj()), dtype=np.float32)


def _size(shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def act(
    orders: bytes, pipe: connection.Connection, credit: Semaphore, policy: SharedPolicy, parent_pid: int
) -> None:
    """An actor process: a credit, the newest policy, a segment, again; killed with its parent."""
    if not guard(parent_pid, signal.SIGKILL):
        return
    setting = msgspec.msgpack.decode(orders, type=EngineSetting)
    control = EngineControl()
    engine = open_engine("auto", setting, control, SystemClock())
    number, step = 0, -1
    while True:
        if not credit.acquire(timeout=POLL_S):
            continue
        while (newer := policy.read(known_step=step)) is not None:
            control.newest, step = newer, newer.version.step
        task = task_of(setting, f"{setting.actor_index}-{number}")
        engine.check_task(task)
        [rollouts] = engine.generate([task])
        number += 1
        try:
            pipe.send_bytes(pack_segment(rollouts.samples[0]))
        except (BrokenPipeError, ConnectionResetError):
            return


def task_of(setting: EngineSetting, name: str) -> Task:
    """The task of one segment."""
    workload = setting.workload
    return Task(
        task_id=TaskId(name),
        run_id=RunId("peer"),
        kind="segment",
        required_version=PolicyVersion(LINEAGE, 0),
        env_id=workload.env,
        unroll_length=workload.unroll_length,
    )


def engine_setting(plan: RunPlan, description: EnvironmentDescription, *, actor_index: int) -> EngineSetting:
    """What an actor's engine is made from."""
    return EngineSetting(
        workload=plan.file.workload,
        policy=plan.file.policy,
        seed=plan.file.seed,
        actor_index=actor_index,
        description=description,
    )


def main(arguments: list[str]) -> int:
    """Run the learner here and the actors below; returns the exit code."""
    run_file, folder, *overrides = arguments
    plan = read_run_file(Path(run_file), overrides)
    description = describe(plan.file.workload)
    network = build_policy(description, plan.file.policy)
    context = multiprocessing.get_context("spawn")
    policy = SharedPolicy(context, network.parameter_shapes())
    credit = context.Semaphore(0)
    pipes: list[connection.Connection] = []
    actors: list[BaseProcess] = []
    for index in range(plan.replicas["actor"]):
        here, there = context.Pipe(duplex=False)
        orders = engine_setting(plan, description, actor_index=index)
        actor = context.Process(
            target=act, args=(msgspec.msgpack.encode(orders), there, credit, policy, os.getpid()), daemon=True
        )
        actor.start()
        there.close()
        pipes.append(here)
        actors.append(actor)
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
    try:
        learn(plan, network, pipes, credit=credit, policy=policy, folder=Path(folder))
    finally:
        for actor in actors:
            actor.kill()
            actor.join()
    return 0


def learn(
    plan: RunPlan,
    network: SegmentPolicy,
    pipes: list[connection.Connection],
    *,
    credit: Semaphore,
    policy: SharedPolicy,
    folder: Path,
) -> None:
    """The learner: a batch in order of arrival, an update, weights and credits out, a line; until it is ended."""
    # Only here, so that the actors, which import this module, carry no torch.
    from tidegate.learner.optim.several_updates import SeveralUpdates
    from tidegate.learner.state import TrainingProgress
    from tidegate.learner.steps_log import StepLine, StepsLog

    config = plan.services["learner"]
    trainer = SeveralUpdates(open_plain_trainer(plan, network), count=config.updates_per_version)
    log = StepsLog(folder / "learner" / "steps.jsonl", bytes_max=config.steps_file_bytes_max)
    batch_size, max_lag = plan.file.batch_size, plan.file.staleness.max_lag
    progress = TrainingProgress(version=PolicyVersion(LINEAGE, 0))
    policy.write(0, trainer.policy())
    _grant(credit, (max_lag + 1) * batch_size)
    arrived: deque[Segment] = deque()
    while True:
        waiting_s = time.monotonic()
        while True:
            # A slow actor's segment may be overtaken past the budget: dropped here too, and its credit given again.
            fresh = [each for each in arrived if progress.version.step - each.line.version_step <= max_lag]
            _grant(credit, len(arrived) - len(fresh))
            arrived = deque(fresh)
            if len(arrived) >= batch_size:
                break
            for ready in connection.wait(pipes):
                assert isinstance(ready, connection.Connection)
                arrived.append(unpack_segment(ready.recv_bytes()))
        begun_s = time.monotonic()
        batch = [arrived.popleft() for _ in range(batch_size)]
        step = progress.version.step
        lags = [step - segment.line.version_step for segment in batch]
        trajectories = [trajectory_of(segment, f"{step}-{index}") for index, segment in enumerate(batch)]
        metrics = trainer.update(trainer.prepare(trajectories), number=step + 1)
        progress = progress.after(trajectories)
        policy.write(step + 1, trainer.policy())
        _grant(credit, batch_size)
        log.append(
            StepLine(
                step=step + 1,
                lineage=LINEAGE,
                at_s=time.time(),
                samples=batch_size,
                env_steps=progress.consumed_steps,
                lag_mean=sum(lags) / len(lags),
                lag_max=max(lags),
                by_lag=dict(Counter(lags)),
                age_mean_s=0.0,
                mean_return=progress.episodes.mean(),
                mean_reward=None,
                loss=metrics.get("loss"),
                ess=metrics.get("ess"),
                clipped_fraction=metrics.get("clipped_fraction"),
                wait_s=begun_s - waiting_s,
                train_s=time.monotonic() - begun_s,
                publish_s=0.0,
            )
        )


def open_plain_trainer(plan: RunPlan, network: SegmentPolicy) -> "ActorCriticTrainer":
    """The trainer of the run file, with as many threads as its learner has."""
    import torch

    from tidegate.learner.optim.actor_critic import ActorCriticTrainer

    config = plan.services["learner"]
    torch.set_num_threads(config.threads)
    return ActorCriticTrainer(
        network,
        config.actor_critic,
        seed=plan.file.seed,
        device=torch.device("cpu"),
        reward=plan.file.workload.reward,
        precision=config.precision,
    )


def _grant(credit: Semaphore, count: int) -> None:
    for _ in range(count):
        credit.release()


def trajectory_of(segment: Segment, name: str) -> Trajectory:
    """A segment as the learner's trainer takes it."""
    version = PolicyVersion(LINEAGE, segment.line.version_step)
    return Trajectory(
        trajectory_id=TrajectoryId(name),
        run_id=RunId("peer"),
        task_id=TaskId(name),
        group_id=GroupId(name),
        group_size=1,
        spans=(VersionSpan(version, 0, len(segment.tensors["actions"])),),
        tensors=segment.tensors,
        num_steps=segment.line.num_steps,
        episodes=segment.line.episodes,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
