"""An actor's engine and a learner's trainer that take time and compute nothing.

Both run in worker threads of the simulation, and swap policies and stop where the real ones do.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from tidegate.actor.engines.port import Completed, EngineControl, Rollouts, Sample
from tidegate.actor.engines.version_marks import VersionMarks
from tidegate.core.curriculum import uniform_fraction
from tidegate.core.records import Array, PolicySnapshot, Sampler, Task, Trajectory
from tidegate.core.response import FRESH, Response
from tidegate.learner.optim.port import TrainerState
from tidegate.runtime.clock import Clock
from tidegate.sim.oracle import NODE_TENSOR, NODES_TENSOR, Oracle
from tidegate.sim.process import Worker

# Positions of a rollout; before each, the engine checks for a new policy and whether it must stop.
POSITIONS = 4
STRAGGLER_SLOWNESS = 10.0
RIGHT_SHARE = 0.5


class Pace(msgspec.Struct):
    """How long work takes now, in seconds; faults change it during a run.

    A rollout takes ``rollout_s`` times a draw from [0.5, 1.5]; the share ``stragglers`` takes much longer.
    """

    rollout_s: float
    update_s: float
    stragglers: float = 0.0


class PacedEngine:
    """Rollouts that take time and record the policy of each of their positions."""

    def __init__(
        self,
        pace: Pace,
        control: EngineControl,
        clock: Clock,
        true_clock: Clock,
        oracle: Oracle,
        rng: random.Random,
        *,
        actor: str,
        group_size: int,
    ) -> None:
        """``clock`` and ``rng`` are this actor's own; ``actor`` is its instance; ``group_size``: samples of a task."""
        self._group_size = group_size
        self._actor = actor
        oracle.starts(actor)
        self._pace = pace
        self._control = control
        self._clock = clock
        self._true_clock = true_clock
        self._oracle = oracle
        self._rng = rng

    def check_policy(self, snapshot: PolicySnapshot) -> None:
        """Every policy fits."""

    def check_task(self, task: Task) -> None:
        """Every task fits."""

    def generate(self, tasks: Sequence[Task]) -> list[Rollouts]:
        """Run the tasks side by side; all take as long as the slowest."""
        started_at_s = self._clock.now_s()
        self._oracle.begins(
            [task.task_id for task in tasks], recorded_s=started_at_s, now_s=self._true_clock.now_s()
        )
        snapshot = self._newest()
        marks = VersionMarks(snapshot.version)
        self._control.begins(tasks, snapshot.version, now_s=started_at_s)
        nodes = np.empty(POSITIONS, dtype=np.int32)
        length = self._rng.uniform(0.5, 1.5)
        straggles = self._rng.random() < self._pace.stragglers
        for position in range(POSITIONS):
            self._control.position = position
            if self._control.stop:
                self._control.ends()
                return []
            if all(task.task_id in self._control.cut for task in tasks):
                break
            if self._newest().version != snapshot.version:
                snapshot = self._newest()
                marks.swap(position, snapshot.version)
                self._control.swapped(snapshot, seconds=0.0)
            nodes[position] = self._oracle.serves(snapshot.version, snapshot.tensors)
            # Read at each position: when the fault ends, its rollouts speed up.
            slowness = STRAGGLER_SLOWNESS if straggles and self._pace.stragglers else 1.0
            Worker.current().pause(self._pace.rollout_s * length * slowness / POSITIONS)
        self._control.ends()
        finished_at_s = self._clock.now_s()
        sample = Sample(
            tensors={
                "behavior_logprobs": np.zeros(POSITIONS, dtype=np.float32),
                NODES_TENSOR: nodes,
            },
            spans=marks.spans(POSITIONS),
            num_steps=POSITIONS,
            finish_reason="stop",
        )
        finished = [task for task in tasks if task.task_id not in self._control.cut]
        # The first samples of a group that may be stopped early are no finished rollouts: a drain releases its task.
        whole = [task.task_id for task in finished if task.num_samples >= self._group_size]
        self._oracle.finishes(self._actor, whole)
        return [Rollouts(task, _answered(sample, task), started_at_s, finished_at_s) for task in finished]

    def _newest(self) -> PolicySnapshot:
        newest = self._control.newest
        assert newest is not None, "no task starts before the first policy"
        return newest

    def complete(self, prompts: Sequence[str], sampler: Sampler) -> Completed:
        """Empty answers."""
        return Completed(version=self._newest().version, completions=[""] * len(prompts), num_tokens=0)

    def close(self) -> None:
        """Nothing to release."""


def _answered(sample: Sample, task: Task) -> tuple[Sample, ...]:
    """The samples of a task; about half are right, the same ones on each actor."""
    return tuple(
        msgspec.structs.replace(sample, completion=task.answer)
        if uniform_fraction(task.seed, "answer", task.num_samples, index) < RIGHT_SHARE
        else sample
        for index in range(task.num_samples)
    )


class PacedTrainer:
    """Updates that take time and report their trajectories to the oracle."""

    def __init__(self, pace: Pace, clock: Clock, oracle: Oracle) -> None:
        self._pace = pace
        self._clock = clock
        self._oracle = oracle
        self._node = oracle.root()
        # From a restore until its policy is published, updates are recomputed and are no new gradients.
        self._is_restoring = False

    def prepare(self, trajectories: Sequence[Trajectory]) -> Any:
        """The batch as it is."""
        return list(trajectories)

    def update(self, batch: Any, *, number: int, response: Response = FRESH) -> dict[str, float]:
        """One update."""
        if self._is_restoring:
            self._node = self._oracle.update_again(self._node, batch)
        else:
            self._node = self._oracle.update(self._node, batch, now_s=self._clock.now_s())
        Worker.current().pause(self._pace.update_s)
        return {"loss": 0.0}

    def policy(self) -> dict[str, Array]:
        """The policy: its node in the oracle's tree."""
        self._is_restoring = False
        return {NODE_TENSOR: np.array([self._node], dtype=np.float32)}

    def state(self) -> TrainerState:
        """No state beyond the policy."""
        return TrainerState(tensors={NODE_TENSOR: np.array([self._node], dtype=np.float32)}, values={})

    def restore(self, policy: Mapping[str, Array], state: TrainerState) -> None:
        """Continue from a checkpoint."""
        self._node = int(policy[NODE_TENSOR][0])
        self._oracle.head = self._node
        self._is_restoring = True
