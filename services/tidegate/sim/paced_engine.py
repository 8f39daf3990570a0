"""An actor's engine and a learner's trainer that take time and compute nothing.

Both run in worker threads of the simulation, and swap policies and stop where the real ones do.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from tidegate.actor.engines.acting import Actions
from tidegate.actor.engines.port import Completed, EngineControl, Rollouts, Sample
from tidegate.actor.engines.version_marks import VersionMarks
from tidegate.core.curriculum import uniform_fraction
from tidegate.core.ids import PolicyVersion
from tidegate.core.records import Array, PolicySnapshot, Sampler, Task, Trajectory
from tidegate.core.response import FRESH, Response
from tidegate.core.spaces import OBSERVATIONS
from tidegate.learner.optim.port import TrainerState
from tidegate.runtime.clock import Clock
from tidegate.sim.oracle import NODE_TENSOR, NODES_TENSOR, Oracle
from tidegate.sim.process import Worker

# Positions of a rollout; before each, the engine checks for a new policy and whether it must stop.
POSITIONS = 4
STRAGGLER_SLOWNESS = 10.0
RIGHT_SHARE = 0.5
# Of one environment, for who acts.
NOTHING_SEEN: Mapping[str, Array] = {OBSERVATIONS: np.zeros((1, 1), np.float32)}
NO_MEMORY: Array = np.zeros((1, 0), np.float32)


class Pace(msgspec.Struct):
    """How long work takes now, in seconds; faults change it during a run.

    A rollout takes ``rollout_s`` times a draw from [0.5, 1.5]; the share ``stragglers`` takes much longer.
    ``call_s``: a call of the inference service's network.
    """

    rollout_s: float = 0.0
    update_s: float = 0.0
    stragglers: float = 0.0
    call_s: float = 0.0


class Acts(Protocol):
    """Who acts: what a rollout without environments needs of ``engines.acting.Acting``."""

    def begin(self, task: Task) -> PolicyVersion:
        """See ``Acting``."""
        ...

    def act(
        self, observations: Mapping[str, Array], memory_NM: Array, rng: np.random.Generator
    ) -> Actions | None:
        """See ``Acting``; the action is the node of the policy that chose it."""
        ...


class NewestActing:
    """The newest policy of ``EngineControl``, swapped between two positions."""

    def __init__(self, control: EngineControl) -> None:
        self._control = control
        self._serving: PolicySnapshot | None = None

    def begin(self, task: Task) -> PolicyVersion:
        """See ``Acts``."""
        del task
        self._serving = _newest(self._control)
        return self._serving.version

    def act(self, observations: Mapping[str, Array], memory_NM: Array, rng: np.random.Generator) -> Actions:
        """See ``Acts``; it never ends a rollout."""
        del observations, rng
        serving, newest = self._serving, _newest(self._control)
        if serving is None or newest.version != serving.version:
            serving = self._serving = newest
            self._control.swapped(serving, seconds=0.0)
        return Actions(serving.tensors[NODE_TENSOR], np.zeros(1, np.float32), memory_NM, serving.version)


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
        acting: Acts | None = None,
    ) -> None:
        """``clock`` and ``rng`` are this actor's own; ``actor`` is its instance; ``group_size``: samples of a task.

        ``acting``: who acts; the newest policy of ``control`` unless given.
        """
        self._acting = acting or NewestActing(control)
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
        version = self._acting.begin(tasks[0])
        marks = VersionMarks(version)
        self._control.begins(tasks, version, now_s=started_at_s)
        chance = np.random.default_rng(tasks[0].seed)
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
            acted = self._acting.act(NOTHING_SEEN, NO_MEMORY, chance)
            if acted is None:
                self._control.ends()
                return []
            if acted.version != version:
                version = acted.version
                marks.swap(position, version)
            nodes[position] = self._oracle.serves(version, {NODE_TENSOR: acted.actions})
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

    def complete(self, prompts: Sequence[str], sampler: Sampler) -> Completed:
        """Empty answers."""
        return Completed(
            version=_newest(self._control).version, completions=[""] * len(prompts), num_tokens=0
        )

    def close(self) -> None:
        """Nothing to release."""


def _newest(control: EngineControl) -> PolicySnapshot:
    newest = control.newest
    assert newest is not None, "no task starts before the first policy"
    return newest


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
        # The number of its lineage, from the first call of ``policy``: the learner calls it when it has opened one.
        self._branch = 0

    def prepare(self, trajectories: Sequence[Trajectory]) -> Any:
        """The batch as it is."""
        return list(trajectories)

    def update(self, batch: Any, *, number: int, response: Response = FRESH) -> dict[str, float]:
        """One update."""
        if self._is_restoring:
            self._node = self._oracle.update_again(self._node, batch)
        else:
            self._node = self._oracle.update(
                self._node, batch, now_s=self._clock.now_s(), branch=self._branch
            )
        Worker.current().pause(self._pace.update_s)
        return {"loss": 0.0}

    def policy(self) -> dict[str, Array]:
        """The policy: its node in the oracle's tree."""
        self._is_restoring = False
        self._branch = self._branch or self._oracle.opens_branch()
        return {NODE_TENSOR: np.array([self._node], dtype=np.float32)}

    def state(self) -> TrainerState:
        """No state beyond the policy."""
        return TrainerState(tensors={NODE_TENSOR: np.array([self._node], dtype=np.float32)}, values={})

    def restore(self, policy: Mapping[str, Array], state: TrainerState) -> None:
        """Continue from a checkpoint."""
        self._node = int(policy[NODE_TENSOR][0])
        self._oracle.head = self._node
        self._is_restoring = True
        self._branch = 0
