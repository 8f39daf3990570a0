"""Vectorised environments with a local policy, in numpy alone: an actor of segments never loads torch.

Environments are Gymnasium's by id and continue from segment to segment. Each vector step checks for a newer policy, one
attribute read, and records its first step. The layout is Gymnasium's NEXT_STEP autoreset: after a step that ends an
episode ``observations[t+1]`` is its true last observation, and the step t+1 is a dummy with ``valid`` 0.

Shapes: T steps, N environments; K components of an action, where it has any.
"""

import importlib
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate.actor.engines.port import Completed, EngineControl, Rollouts, Sample
from tidegate.actor.engines.registry import EngineSetting
from tidegate.actor.engines.version_marks import VersionMarks
from tidegate.core.errors import ConfigError, NotFoundError, RecordError, TidegateError
from tidegate.core.records import Array, EpisodeEnd, PolicySnapshot, Sampler, Task
from tidegate.core.spaces import DiscreteSpace, EnvironmentDescription
from tidegate.models.policies import build_policy
from tidegate.models.registry import describe
from tidegate.runtime.clock import Clock
from tidegate.vector_envs.observations import recorded_observations

UNROLL_LENGTH_MAX = 65_536


class VectorEnv:
    """N copies of one environment, their observations, and the returns of their running episodes."""

    def __init__(self, description: EnvironmentDescription, *, num_envs: int, seed: int) -> None:
        """Make and reset them.

        Raises:
            NotFoundError: Gymnasium has no such environment, or what it needs is not installed.
            ConfigError: its spaces are not those of the policy, or it resets in another way.
        """
        self.space = description.observation_space
        self.envs: Any = _make(description.env_id, num_envs=num_envs)
        _check_spaces(description, self.envs)
        observations, _ = self.envs.reset(seed=seed)
        self.observations: dict[str, Array] = recorded_observations(self.space, observations)
        self.done_N: NDArray[np.bool_] = np.zeros(num_envs, np.bool_)
        self.returns_N: NDArray[np.float64] = np.zeros(num_envs)
        self.lengths_N: NDArray[np.int64] = np.zeros(num_envs, np.int64)

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()


class VectorEnvEngine:
    """Runs ``segment`` tasks, one after the other."""

    def __init__(self, setting: EngineSetting, control: EngineControl, clock: Clock) -> None:
        """Environments are made at the first task, when Gymnasium is imported."""
        workload = setting.workload
        self._env_id = workload.env
        self._num_envs = workload.num_envs
        self._policy = build_policy(describe(workload.env), setting.policy)
        self._control = control
        self._clock = clock
        # The clock's part prevents a restarted actor from playing the same episodes again.
        self._rng = np.random.default_rng([setting.seed, setting.actor_index, int(clock.now_s() * 1e3)])
        self._vector: VectorEnv | None = None

    def check_policy(self, snapshot: PolicySnapshot) -> None:
        """Check that the tensors are this network's parameters, and finite.

        Raises:
            RecordError: a name, shape or dtype does not fit, or a value is not finite.
        """
        self._policy.check_params(snapshot.tensors)
        for name, tensor in snapshot.tensors.items():
            if not np.isfinite(tensor).all():
                raise RecordError(
                    f"Policy {snapshot.version} holds values in {name!r} that are not finite",
                    why="its update diverged",
                    fix="lower the learning rate and start from an earlier checkpoint",
                )

    def check_task(self, task: Task) -> None:
        """Check that this is a segment of this actor's environment; creates the environment if there is none yet.

        Raises:
            RecordError: the task is of another kind or environment, or has no usable length.
            NotFoundError: there is no such environment.
            ConfigError: the environment does not fit the policy.
        """
        if task.kind != "segment" or task.env_id != self._env_id:
            raise RecordError(
                f"Task {task.task_id} is a {task.kind} of {task.env_id!r}",
                why=f"this actor steps {self._env_id!r}",
            )
        if not 0 < task.unroll_length <= UNROLL_LENGTH_MAX:
            raise RecordError(f"Task {task.task_id} asks for {task.unroll_length} steps")
        if self._vector is None:
            seed = int(self._rng.integers(2**31))
            self._vector = VectorEnv(self._policy.description, num_envs=self._num_envs, seed=seed)

    def generate(self, tasks: Sequence[Task]) -> list[Rollouts]:
        """One segment per task, each continues where the previous one stopped.

        Raises:
            TidegateError: the environment failed; the next task recreates it.
        """
        finished: list[Rollouts] = []
        for task in tasks:
            if self._control.stop:
                break
            vector = self._vector
            assert vector is not None, "check_task has created the environments"
            started_at_s = self._clock.now_s()
            try:
                sample = self._unroll(vector, task, now_s=started_at_s)
            except (
                Exception
            ) as error:  # an environment is third-party code: its exceptions cost only its episodes
                self._vector = None
                raise TidegateError(
                    f"Environment {self._env_id!r} failed in a step",
                    why=repr(error),
                    fix="it is recreated",
                ) from error
            finally:
                self._control.ends()
            if sample is not None:
                finished.append(Rollouts(task, (sample,), started_at_s, self._clock.now_s()))
        return finished

    def _unroll(self, vector: VectorEnv, task: Task, *, now_s: float) -> Sample | None:
        """Step all environments a segment's length. The hot loop of an actor.

        None when the task was cut; the environments stay where they stopped, and the next segment continues there.
        """
        control, rng, envs = self._control, self._rng, vector.envs
        policy, distribution = self._policy, self._policy.actions
        num_steps = task.unroll_length
        shape = (num_steps, self._num_envs)
        rows = {
            name: np.empty((num_steps + 1, *array.shape), array.dtype)
            for name, array in vector.observations.items()
        }
        actions_TNK = np.empty((*shape, *distribution.action_shape), distribution.action_dtype)
        logprobs_TN = np.empty(shape, np.float32)
        rewards_TN = np.empty(shape, np.float32)
        terminated_TN = np.empty(shape, np.bool_)
        truncated_TN = np.empty(shape, np.bool_)
        snapshot = self._serve_newest()
        params = snapshot.tensors
        marks = VersionMarks(snapshot.version)
        control.begins([task], snapshot.version, now_s=now_s)
        observations = vector.observations
        num_made = num_steps
        for step in range(num_steps):
            if task.task_id in control.cut:
                num_made = step
                break
            control.position = step
            if control.newest is not snapshot:
                snapshot = self._serve_newest()
                params = snapshot.tensors
                marks.swap(step, snapshot.version)
            for name, array in observations.items():
                rows[name][step] = array
            outputs_NP = policy.action_outputs(params, observations, np)
            actions, logprobs_TN[step] = distribution.sample(outputs_NP, rng)
            actions_TNK[step] = actions
            seen, rewards_TN[step], terminated_TN[step], truncated_TN[step], _ = envs.step(
                distribution.environment_actions(actions)
            )
            observations = recorded_observations(vector.space, seen)
        if num_made == 0:
            return None
        for name, array in observations.items():
            rows[name][num_made] = array
        vector.observations = {name: array[num_made].copy() for name, array in rows.items()}
        done_TN = (terminated_TN | truncated_TN)[:num_made]
        valid_TN = np.empty_like(done_TN)
        np.logical_not(vector.done_N, out=valid_TN[0])
        np.logical_not(done_TN[:-1], out=valid_TN[1:])
        vector.done_N = done_TN[-1].copy()
        episodes = end_episodes(vector, rewards_TN[:num_made], done_TN, valid_TN)
        if num_made < num_steps:
            return None
        return Sample(
            tensors={
                **rows,
                "actions": actions_TNK,
                "behavior_logprobs": logprobs_TN,
                "rewards": rewards_TN,
                "terminated": terminated_TN,
                "truncated": truncated_TN,
                "valid": valid_TN,
            },
            spans=marks.spans(num_steps),
            num_steps=int(np.count_nonzero(valid_TN)),
            episodes=episodes,
        )

    def _serve_newest(self) -> PolicySnapshot:
        newest = self._control.newest
        assert newest is not None, "tasks start once there is a policy"
        if newest is not self._control.serving:
            self._control.swapped(newest, seconds=0.0)  # the arrays are used without a copy
        return newest

    def complete(self, prompts: Sequence[str], sampler: Sampler) -> Completed:
        """Refuse: environments have no prompts.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("The vector_env engine answers no prompts", fix="evaluate a text workload")

    def close(self) -> None:
        """Release the environments."""
        if self._vector is not None:
            self._vector.close()


def end_episodes(
    vector: VectorEnv,
    rewards_TN: NDArray[np.float32],
    done_TN: NDArray[np.bool_],
    valid_TN: NDArray[np.bool_],
) -> tuple[EpisodeEnd, ...]:
    """The episodes that ended in this segment, in order; the running ones' returns stay with ``vector``.

    A position counts the segment's steps up to and with the one that ended the episode.
    """
    ends: list[EpisodeEnd] = []
    steps, columns = np.nonzero(done_TN)
    begins_N: dict[int, int] = {}
    for step, column in zip(steps.tolist(), columns.tolist(), strict=True):
        window = slice(begins_N.get(column, 0), step + 1)
        ends.append(
            EpisodeEnd(
                episode_return=float(
                    vector.returns_N[column] + rewards_TN[window, column].sum(dtype=np.float64)
                ),
                length=int(vector.lengths_N[column] + np.count_nonzero(valid_TN[window, column])),
                position=step + 1,
            )
        )
        begins_N[column] = step + 1
        vector.returns_N[column] = 0.0
        vector.lengths_N[column] = 0
    # Steps after the last end of each column belong to episodes that continue.
    running_TN = valid_TN.copy()
    for column, begin in begins_N.items():
        running_TN[:begin, column] = False
    vector.returns_N += (rewards_TN * running_TN).sum(axis=0, dtype=np.float64)
    vector.lengths_N += running_TN.sum(axis=0)
    return tuple(ends)


def _make(env_id: str, *, num_envs: int) -> Any:
    gymnasium: Any = importlib.import_module("gymnasium")
    try:
        with warnings.catch_warnings():
            # Gymnasium warns of unusual spaces; ``_check_spaces`` checks what this engine requires.
            warnings.simplefilter("ignore")
            # Without a mode Gymnasium takes the environment's vectorised form where it has one, else copies in a loop.
            return gymnasium.make_vec(env_id, num_envs=num_envs)
    except (gymnasium.error.Error, ImportError) as error:
        raise NotFoundError(
            f"Environment {env_id!r} cannot be made",
            why=str(error),
            fix="set workload.env to one of Gymnasium's ids, such as CartPole-v1, or to module:EnvId",
        ) from error


def _check_spaces(description: EnvironmentDescription, envs: Any) -> None:
    observations, actions = envs.single_observation_space, envs.single_action_space
    env_id, expected = description.env_id, description.action_space
    num_actions = int(getattr(actions, "n", 0))
    shape = getattr(description.observation_space, "shape", ())
    if observations.shape != shape or (
        isinstance(expected, DiscreteSpace) and num_actions != expected.num_values
    ):
        raise ConfigError(
            f"Environment {env_id!r} observes {observations} and takes {actions}",
            why=f"it was described as {description.observation_space} and {expected}",
            fix="correct its line in models/registry.py",
        )
    mode = str(getattr(envs.metadata.get("autoreset_mode"), "value", "unknown"))
    if mode != "NextStep":
        raise ConfigError(
            f"Environment {env_id!r} resets by {mode}",
            why="segments are recorded with Gymnasium's NEXT_STEP autoreset: no final observation is lost then",
            fix="make its vector form with autoreset_mode NEXT_STEP",
        )


def open_engine(setting: EngineSetting, control: EngineControl, clock: Clock) -> VectorEnvEngine:
    """Open the engine for the registry."""
    return VectorEnvEngine(setting, control, clock)
