"""Vectorised environments, in numpy alone: an actor of segments never loads torch.

Environments are Gymnasium's by id and continue from segment to segment. Before each vector step ``acting`` is asked for
actions; the version that it names is recorded from there on. The layout is Gymnasium's NEXT_STEP autoreset: after
a step that ends an episode ``observations[t+1]`` is its true last observation, and the step t+1 is a dummy with
``valid`` 0. A step that failed is no step either (``vector_envs.guarded``, ``running_episodes``).

Actions and resets of a segment are drawn from its task's seed, so that a run with one actor repeats itself.

Shapes: T steps, N environments; K components of an action, where it has any.
"""

import secrets
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tidegate.actor.engines.acting import Acting, LocalActing
from tidegate.actor.engines.episode_memory import EpisodeMemory
from tidegate.actor.engines.observation_rows import ObservationRows
from tidegate.actor.engines.port import Completed, EngineControl, Rollouts, Sample
from tidegate.actor.engines.q_acting import q_acting
from tidegate.actor.engines.registry import EngineSetting
from tidegate.actor.engines.running_episodes import RunningEpisodes
from tidegate.actor.engines.version_marks import VersionMarks
from tidegate.core.errors import ConfigError, RecordError
from tidegate.core.records import Array, PolicySnapshot, Sampler, Task
from tidegate.core.spaces import MEMORY, EnvironmentDescription, observation_leaves
from tidegate.models.distributions import ActionDistribution
from tidegate.models.policies import build_policy
from tidegate.models.policy_port import SegmentPolicy
from tidegate.runtime.clock import Clock
from tidegate.runtime.config import WorkloadConfig
from tidegate.runtime.loading import load
from tidegate.runtime.own_policy import load_policy_code
from tidegate.vector_envs.calls import EnvironmentCalls
from tidegate.vector_envs.faults import WHOLE_FORM, EnvironmentFailedError
from tidegate.vector_envs.guarded_port import SEED_MAX, Guarded
from tidegate.vector_envs.observations import recorded_observations
from tidegate.vector_envs.opening import open_vector_env

UNROLL_LENGTH_MAX = 65_536
# Segments in a row in which the code around the copies fails (a wrapper, a vector form) before the actor ends.
FAILED_SEGMENTS_MAX = 3
# No two streams of a run share an id: random, as actors come and go.
STREAM_ID_BYTES = 8


class VectorEnv:
    """N copies of one environment, their observations, and their running episodes."""

    def __init__(self, workload: WorkloadConfig, description: EnvironmentDescription) -> None:
        """Make them.

        Raises:
            NotFoundError: there is no such environment, or what it needs is not installed.
            ConfigError: its spaces are not those of the policy, or the run file's settings do not fit it.
        """
        self.space = description.observation_space
        self.leaves = observation_leaves(self.space)
        self.envs: Any = open_vector_env(workload, num_envs=workload.num_envs)
        self.guarded: Guarded = self.envs.unwrapped
        # Only here, because it imports Gymnasium.
        load("tidegate.vector_envs.spaces:check_described")(self.envs, description)

    def reset(self, *, seed: int, memory_size: int) -> None:
        """Begin the first episodes. ``memory_size``: of the policy's state.

        Raises:
            ConfigError: every copy failed.
        """
        observations, _ = self.envs.reset(seed=seed)
        self.observations: dict[str, Array] = recorded_observations(self.space, observations)
        self.episodes = RunningEpisodes(faulted_N=self.guarded.faulted_N)
        self.memory = EpisodeMemory(memory_size=memory_size, faulted_N=self.guarded.faulted_N)
        self.stream_id = secrets.token_hex(STREAM_ID_BYTES)
        self.num_segments = 0

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()


class _Rows:
    """The rows of a segment as they are made."""

    def __init__(
        self, vector: VectorEnv, actions: ActionDistribution, *, num_steps: int, num_envs: int
    ) -> None:
        shape = (num_steps, num_envs)
        self.observations = ObservationRows(vector.leaves, num_steps=num_steps, num_envs=num_envs)
        self.actions_TNK: Array = np.empty((*shape, *actions.action_shape), actions.action_dtype)
        self.logprobs_TN: NDArray[np.float32] = np.empty(shape, np.float32)
        self.rewards_TN: NDArray[np.float32] = np.empty(shape, np.float32)
        self.terminated_TN: NDArray[np.bool_] = np.empty(shape, np.bool_)
        self.truncated_TN: NDArray[np.bool_] = np.empty(shape, np.bool_)
        self.faulted_TN: NDArray[np.bool_] | None = None
        self._memory: dict[str, Array] = (
            {MEMORY: vector.memory.state_NM} if vector.memory.state_NM.shape[1] else {}
        )

    def fault(self, step: int, faulted_N: NDArray[np.bool_]) -> None:
        """Mark environments whose step failed."""
        if self.faulted_TN is None:
            self.faulted_TN = np.zeros(self.rewards_TN.shape, np.bool_)
        self.faulted_TN[step] = faulted_N

    def sample(self, vector: VectorEnv, marks: VersionMarks, *, num_made: int) -> Sample | None:
        """The segment; None if it was cut after ``num_made`` steps. The next one continues from there."""
        faulted_TN = self.faulted_TN
        # One that is not sent takes a position as well, so that no other follows directly on the one before it.
        stream_position = vector.num_segments
        vector.num_segments += 1
        valid_TN, episodes = vector.episodes.close_segment(
            rewards_TN=self.rewards_TN[:num_made],
            terminated_TN=self.terminated_TN[:num_made],
            truncated_TN=self.truncated_TN[:num_made],
            faulted_TN=None if faulted_TN is None else faulted_TN[:num_made],
        )
        if num_made < len(self.rewards_TN):
            return None
        return Sample(
            tensors={
                **self.observations.tensors(),
                "actions": self.actions_TNK,
                "behavior_logprobs": self.logprobs_TN,
                "rewards": self.rewards_TN,
                "terminated": self.terminated_TN,
                "truncated": self.truncated_TN,
                "valid": valid_TN,
                **self._memory,
            },
            spans=marks.spans(num_made),
            num_steps=int(np.count_nonzero(valid_TN)),
            episodes=episodes,
            stream_id=vector.stream_id,
            stream_position=stream_position,
        )


class VectorEnvEngine:
    """Runs ``segment`` tasks, one after the other."""

    def __init__(
        self, setting: EngineSetting, control: EngineControl, clock: Clock, *, acting: Acting | None = None
    ) -> None:
        """Environments are made at the first task, when Gymnasium is imported.

        ``acting``: who acts in them; the policy in this process unless given.
        """
        self._workload = setting.workload
        assert setting.description is not None, (
            "an actor of segments has asked for its environment's description"
        )
        self._policy = build_policy(
            setting.description,
            setting.policy,
            code=load_policy_code(setting.policy, folder=setting.files_dir),
        )
        self._acting = acting or _local_acting(self._policy, setting, control)
        self._control = control
        self._clock = clock
        self._vector: VectorEnv | None = None
        self._calls = EnvironmentCalls(setting.workload.env)
        self._failed_segments = 0
        control.watched.append(self._calls)

    @property
    def policy(self) -> SegmentPolicy:
        """The policy that acts."""
        return self._policy

    def check_policy(self, snapshot: PolicySnapshot) -> None:
        """See ``Acting.check_policy``."""
        self._acting.check_policy(snapshot)

    def check_task(self, task: Task) -> None:
        """Check that this is a segment of this actor's environment; creates the environment if there is none yet.

        Raises:
            RecordError: the task is of another kind or environment, or has no usable length.
            NotFoundError: there is no such environment.
            ConfigError: the environment does not fit the policy.
        """
        if task.kind != "segment" or task.env_id != self._workload.env:
            raise RecordError(
                f"Task {task.task_id} is a {task.kind} of {task.env_id!r}",
                why=f"this actor steps {self._workload.env!r}",
            )
        if not 0 < task.unroll_length <= UNROLL_LENGTH_MAX:
            raise RecordError(f"Task {task.task_id} asks for {task.unroll_length} steps")
        if self._vector is None:
            self._calls.begin(lambda: f"the first reset (task {task.task_id})")
            try:
                self._open(task)
            finally:
                self._calls.end()

    def generate(self, tasks: Sequence[Task]) -> list[Rollouts]:
        """One segment per task, each continues where the previous one stopped.

        A task whose segment failed as a whole has no rollouts; the next task makes the environments again.

        Raises:
            EnvironmentFailedError: the environment keeps failing.
        """
        finished: list[Rollouts] = []
        for task in tasks:
            vector = self._vector
            if self._control.stop or vector is None:
                break
            started_at_s = self._clock.now_s()
            self._calls.begin(partial(self._place, task))
            try:
                sample = self._segment(vector, task, now_s=started_at_s)
            except EnvironmentFailedError:
                raise
            except Exception as error:  # wrappers are third-party code, and vector forms may break them
                self._replace(vector, error)
            else:
                self._failed_segments = 0
                if sample is not None:
                    finished.append(Rollouts(task, (sample,), started_at_s, self._clock.now_s()))
            finally:
                self._calls.end()
                self._control.ends()
                self._control.record_faults(vector.guarded.faults)
        return finished

    def _place(self, task: Task) -> str:
        return f"step {self._control.position + 1} of the segment of task {task.task_id}"

    # -- making segments -------------------------------------------------------------------------------------------

    def _open(self, task: Task) -> None:
        self._calls.use(None)
        vector = VectorEnv(self._workload, self._policy.description)
        self._calls.use(vector.guarded)
        try:
            # Another stream than that of the segment's actions.
            vector.reset(
                seed=int(np.random.default_rng([task.seed, 1]).integers(SEED_MAX)),
                memory_size=self._policy.memory_size,
            )
        except BaseException:
            vector.close()
            raise
        self._vector = vector

    def _replace(self, vector: VectorEnv, error: Exception) -> None:
        """Drop the environments after a failure outside of their guard; the next task makes others.

        Raises:
            EnvironmentFailedError: this happens in each segment.
        """
        faults = vector.guarded.faults
        fault = faults.raised(WHOLE_FORM, "step", error)
        faults.count(fault)
        self._vector = None
        vector.close()
        self._failed_segments += 1
        if self._failed_segments >= FAILED_SEGMENTS_MAX:
            raise EnvironmentFailedError(
                f"Environment {self._workload.env!r} failed in {FAILED_SEGMENTS_MAX} segments in a row",
                why=str(fault),
                fix="correct the environment, or the wrappers of the run file",
            ) from error

    def _segment(self, vector: VectorEnv, task: Task, *, now_s: float) -> Sample | None:
        """A segment with at least one valid step where faults leave any; None when the task was cut."""
        rng = np.random.default_rng(task.seed)
        while True:
            vector.guarded.draw_resets(rng)
            rows = _Rows(
                vector, self._policy.actions, num_steps=task.unroll_length, num_envs=self._workload.num_envs
            )
            sample = self._unroll(vector, task, rows, rng, now_s=now_s)
            # A short segment may consist of faults. That ends: the guard gives up an environment that only fails.
            if sample is None or sample.num_steps or rows.faulted_TN is None:
                return sample

    def _unroll(
        self, vector: VectorEnv, task: Task, rows: _Rows, rng: np.random.Generator, *, now_s: float
    ) -> Sample | None:
        """Step all environments a segment's length. The hot loop of an actor.

        None when the task was cut; the environments stay where they stopped, and the next segment continues there.
        """
        control, envs, guarded, acting = self._control, vector.envs, vector.guarded, self._acting
        environment_actions = self._policy.actions.environment_actions
        num_steps = task.unroll_length
        version = acting.begin(task)
        marks = VersionMarks(version)
        control.begins([task], version, now_s=now_s)
        observations, recorded, memory = vector.observations, rows.observations, vector.memory
        actions_TNK, logprobs_TN, rewards_TN = rows.actions_TNK, rows.logprobs_TN, rows.rewards_TN
        terminated_TN, truncated_TN = rows.terminated_TN, rows.truncated_TN
        has_memory = self._policy.memory_size > 0
        num_made = num_steps
        for step in range(num_steps):
            control.position = step
            acted = None if task.task_id in control.cut else acting.act(observations, memory.state_NM, rng)
            if acted is None:
                num_made = step
                break
            if acted.version is not version:
                version = acted.version
                marks.swap(step, version)
            recorded.append(observations)
            actions_TNK[step], logprobs_TN[step] = acted.actions, acted.logprobs
            seen, rewards_TN[step], terminated_TN[step], truncated_TN[step], _ = envs.step(
                environment_actions(acted.actions)
            )
            if guarded.any_faulted:
                rows.fault(step, guarded.faulted_N)
            if has_memory:
                memory.advance(
                    acted.memory,
                    ended_N=terminated_TN[step] | truncated_TN[step],
                    faulted_N=guarded.faulted_N if guarded.any_faulted else None,
                )
            observations = recorded_observations(vector.space, seen)
        if num_made == 0:
            return None
        recorded.append(observations)
        vector.observations = {name: array.copy() for name, array in observations.items()}
        sample = rows.sample(vector, marks, num_made=num_made)
        if sample is None:
            return None
        further = acting.further_tensors(vector.observations, memory.state_NM, sample.tensors)
        if further is None:
            return None
        return msgspec.structs.replace(sample, tensors={**sample.tensors, **further})

    def complete(self, prompts: Sequence[str], sampler: Sampler) -> Completed:
        """Refuse: environments have no prompts.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("The vector_env engine answers no prompts", fix="evaluate a text workload")

    def close(self) -> None:
        """Release the environments, unless a call into them has not returned."""
        if self._vector is not None and not self._calls.running:
            self._vector.close()


def _local_acting(policy: SegmentPolicy, setting: EngineSetting, control: EngineControl) -> Acting:
    local = LocalActing(policy, control, threads=setting.threads, one_version=setting.one_version)
    return q_acting(local, policy, setting) or local


def open_engine(setting: EngineSetting, control: EngineControl, clock: Clock) -> VectorEnvEngine:
    """Open the engine for the registry."""
    return VectorEnvEngine(setting, control, clock)
