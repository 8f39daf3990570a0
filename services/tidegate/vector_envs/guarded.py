"""Vector environments whose faults cost what they touch: a copy that fails ends its episode and is made again.

Both classes are Gymnasium vector environments with NEXT_STEP autoreset, so that vector wrappers go around them.
``GuardedCopies`` steps copies one by one, ``GuardedForm`` a vector form that steps all of its environments in one call
(then a fault touches all of them). A fault is an exception, or an observation or reward that is not finite.

At a step that fails nothing is known of the transition. The step therefore returns the observation before it, reward
0 and ``truncated``, and marks the copy in ``faulted_N``; the next step resets the new copy. The caller records the
failed step as no step and truncates the episode at the step before (``algorithms.segments``), which bootstraps from
the last true observation: no value of a failed step reaches a target.

Shapes: N copies.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from tidegate.core.errors import ConfigError
from tidegate.vector_envs.batches import ObservationBatches
from tidegate.vector_envs.faults import WHOLE_FORM, Call, Fault, FaultLog
from tidegate.vector_envs.guarded_port import SEED_MAX

Step: TypeAlias = tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]


def guard(env_id: str, make: Callable[[], Any]) -> "GuardedCopies | GuardedForm":
    """The vector environment that ``make`` makes, behind a guard: each copy, or a vector form as a whole."""
    envs = make()
    if type(envs) is SyncVectorEnv:
        return GuardedCopies(env_id, envs.env_fns, envs.envs)
    return GuardedForm(env_id, make, envs)


class GuardedCopies(VectorEnv[Any, Any, Any]):
    """Copies of an environment, stepped one after the other.

    Unlike Gymnasium's ``SyncVectorEnv`` it draws its resets from a generator that is given, and returns no infos.
    """

    def __init__(self, env_id: str, make_copies: Sequence[Callable[[], Any]], copies: Sequence[Any]) -> None:
        """``copies`` are made; ``make_copies`` makes each of them again."""
        self._make_copies = make_copies
        self._copies: list[Any] = list(copies)
        first = self._copies[0]
        self.num_envs = len(self._copies)
        self.metadata = {**first.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.render_mode = first.render_mode
        self.spec = first.spec
        observation_space: Any = first.observation_space
        action_space: Any = first.action_space
        self.single_observation_space = observation_space
        self.single_action_space = action_space
        self.observation_space = batch_space(observation_space, self.num_envs)
        self.action_space = batch_space(action_space, self.num_envs)
        self.faulted_N = np.zeros(self.num_envs, np.bool_)
        self.any_faulted = False
        self.faults = FaultLog(env_id, num_units=self.num_envs)
        self.call: Call = "make"
        self.copy = 0
        self._batches = ObservationBatches(observation_space, num_envs=self.num_envs)
        self._last = self._batches.zeros()
        self._resets_next = [True] * self.num_envs
        self._pauses = [0] * self.num_envs
        self.num_calls = 0
        self._rng = np.random.default_rng()
        self._to_seed = [True] * self.num_envs

    def draw_resets(self, rng: np.random.Generator) -> None:
        """Seed the next reset of each copy from ``rng``; its later resets continue its own generator.

        Seeding takes 30 µs, as much as several steps of a small environment whose episodes are short.
        """
        self._rng = rng
        self._to_seed = [True] * self.num_envs

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset every copy.

        Raises:
            ConfigError: every copy failed, so the environment cannot be used.
        """
        del options
        if seed is not None:
            self.draw_resets(np.random.default_rng(seed))
        self._resets_next = [True] * self.num_envs
        self._pauses = [0] * self.num_envs
        observations, *_ = self.step([None] * self.num_envs)
        if self.faulted_N.all():
            raise _cannot_reset(self.faults)
        return observations, {}

    def step(self, actions: Any) -> Step:
        """Step or reset each copy.

        Raises:
            EnvironmentFailedError: every copy keeps failing.
        """
        self.num_calls += 1
        batch = self._batches.empty()
        rewards_N = np.zeros(self.num_envs)
        terminated_N, truncated_N, faulted_N = np.zeros((3, self.num_envs), np.bool_)
        if all(self._pauses):  # waiting would gain nothing
            shortest = min(self._pauses)
            self._pauses = [pause - shortest for pause in self._pauses]
        resets = list(self._resets_next)
        faults: list[Fault] = []
        left_out = False
        for index in range(self.num_envs):
            self.copy = index
            if self._pauses[index]:
                self._pauses[index] -= 1
                batch.repeat(self._last, index)
                truncated_N[index] = faulted_N[index] = left_out = True
                continue
            try:
                observation, reward, terminated, truncated = self._advance(index, actions[index])
                batch.write(index, observation)
                rewards_N[index], terminated_N[index], truncated_N[index] = reward, terminated, truncated
                self._resets_next[index] = bool(terminated or truncated)
            except (Exception, SystemExit) as error:  # third-party code raises anything
                faults.append(self.faults.raised(index, self.call, error))
                rewards_N[index] = 0.0
                batch.repeat(self._last, index)
        finite = self._batches.are_finite(batch.observations, rewards_N)
        for found in () if finite else batch.not_finite(rewards_N):
            call: Call = "reset" if resets[found.copy] else "step"
            faults.append(self.faults.not_finite(found.copy, call, found.component))
            rewards_N[found.copy] = 0.0
            batch.repeat(self._last, found.copy)
        for fault in faults:
            terminated_N[fault.copy] = False
            truncated_N[fault.copy] = faulted_N[fault.copy] = True
            self._replace(fault)
        self.faulted_N = faulted_N
        self.any_faulted = bool(faults) or left_out
        self._last = batch
        return batch.observations, rewards_N, terminated_N, truncated_N, {}

    def _advance(self, index: int, action: Any) -> tuple[Any, float, bool, bool]:
        if not self._resets_next[index]:
            self.call = "step"
            observation, reward, terminated, truncated, _ = self._copies[index].step(action)
            return observation, reward, terminated, truncated
        if self._copies[index] is None:
            self.call = "make"
            self._copies[index] = self._make_copies[index]()
            self._to_seed[index] = True  # its generator is new
        self.call = "reset"
        seed = int(self._rng.integers(SEED_MAX)) if self._to_seed[index] else None
        observation, _ = self._copies[index].reset(seed=seed)
        self._to_seed[index] = False
        return observation, 0.0, False, False

    def _replace(self, fault: Fault) -> None:
        """Record a fault and make the copy again; it is reset by the next step that does not leave it out."""
        index = fault.copy
        env, self._copies[index] = self._copies[index], None
        self._resets_next[index] = True
        self._pauses[index] = self.faults.add(fault, unit=index, step=self.num_calls)
        _close(env)

    def render(self) -> tuple[Any, ...] | None:
        """One picture of each copy."""
        return tuple(None if env is None else env.render() for env in self._copies)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the copies."""
        for env in self._copies:
            _close(env)


class GuardedForm(VectorEnv[Any, Any, Any]):
    """A vector form of an environment's own, which steps all copies in one call; a fault ends all of their episodes."""

    def __init__(self, env_id: str, make: Callable[[], Any], form: Any) -> None:
        """``form`` is made; ``make`` makes it again."""
        self._make = make
        self._form: Any = form
        self.num_envs = form.num_envs
        self.metadata = form.metadata
        self.render_mode = form.render_mode
        self.spec = form.spec
        self.single_observation_space = form.single_observation_space
        self.single_action_space = form.single_action_space
        self.observation_space = form.observation_space
        self.action_space = form.action_space
        self._none_N = np.zeros(self.num_envs, np.bool_)
        self.faulted_N = self._none_N
        self.any_faulted = False
        self.faults = FaultLog(env_id, num_units=1)
        self.call: Call = "make"
        self.copy = WHOLE_FORM
        self._batches = ObservationBatches(form.single_observation_space, num_envs=self.num_envs)
        self._last: Any = self._batches.zeros().observations
        self._resets_next = False
        self.num_calls = 0
        self._rng = np.random.default_rng()

    def draw_resets(self, rng: np.random.Generator) -> None:
        """Let the form draw from ``rng``; one with a generator of its own keeps it."""
        self._rng = rng
        if self._form is not None:
            self._form.unwrapped.np_random = rng

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the form.

        Raises:
            ConfigError: it failed, so the environment cannot be used.
        """
        del options
        if seed is not None:
            self.draw_resets(np.random.default_rng(seed))
        self._resets_next = True
        observations, *_ = self.step(None)
        if self.faulted_N.all():
            raise _cannot_reset(self.faults)
        return observations, {}

    def step(self, actions: Any) -> Step:
        """Step the form, or reset it after a fault.

        Raises:
            EnvironmentFailedError: it keeps failing.
        """
        self.num_calls += 1
        try:
            result = self._reset() if self._resets_next else self._form.step(actions)
            finite = self._batches.are_finite(result[0], result[1])
        except (Exception, SystemExit) as error:  # third-party code raises anything
            return self._failed(self.faults.raised(WHOLE_FORM, self.call, error))
        if not finite and (found := self._batches.adopt(result[0]).not_finite(result[1])):
            return self._failed(self.faults.not_finite(found[0].copy, self.call, found[0].component))
        self.call = "step"
        self._last = result[0]
        self.faulted_N, self.any_faulted = self._none_N, False
        return result

    def _reset(self) -> Step:
        if self._form is None:
            self.call = "make"
            self._form = self._make()
        self.call = "reset"
        observations, infos = self._form.reset(seed=int(self._rng.integers(SEED_MAX)))
        self._resets_next = False
        return observations, np.zeros(self.num_envs), self._none_N, self._none_N, infos

    def _failed(self, fault: Fault) -> Step:
        form, self._form = self._form, None
        self._resets_next = True
        self.faults.add(fault, unit=0, step=self.num_calls)
        _close(form)
        self.faulted_N, self.any_faulted = ~self._none_N, True
        self._last = self._batches.copied(self._batches.adopt(self._last)).observations
        return self._last, np.zeros(self.num_envs), self._none_N, self.faulted_N, {}

    def render(self) -> tuple[Any, ...] | None:
        """One picture of each environment."""
        return None if self._form is None else self._form.render()

    def close_extras(self, **kwargs: Any) -> None:
        """Close the form."""
        _close(self._form)


def _cannot_reset(faults: FaultLog) -> ConfigError:
    report = faults.take()
    return ConfigError(
        f"Environment {faults.env_id!r} cannot be used",
        why=str(report.newest[-1]) if report is not None else "",
        fix="correct the environment",
    )


def _close(env: Any) -> None:
    """Close an environment that failed, whatever state it is in."""
    if env is not None:
        with contextlib.suppress(Exception, SystemExit):
            env.close()
