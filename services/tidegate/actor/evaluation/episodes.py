"""The evaluation of segments: one version plays whole episodes greedily, in copies that no segment uses.

Rewards are summed as the environment gives them; ``workload.reward`` applies to training alone.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tidegate.actor.engines.port import EngineControl
from tidegate.actor.evaluation.port import EvaluationResult
from tidegate.catalogue import actor as statistics
from tidegate.core.errors import DeadlineError, TidegateError, UnavailableError
from tidegate.core.records import PolicySnapshot, Task
from tidegate.models.policy_port import SegmentPolicy
from tidegate.runtime.service import ServiceContext
from tidegate.runtime.threads import DaemonThread
from tidegate.vector_envs.calls import EnvironmentCalls
from tidegate.vector_envs.episodes import BeforeStep, ReturnSummary, play_episodes, summarise_returns
from tidegate.vector_envs.faults import WHOLE_FORM, EnvironmentFailedError
from tidegate.vector_envs.opening import open_vector_env


class EpisodesEvaluator:
    """Plays in one worker thread, which steps nothing else; the actor makes no segments meanwhile."""

    def __init__(
        self,
        context: ServiceContext,
        control: EngineControl,
        policy: SegmentPolicy,
        newest: Callable[[], Awaitable[PolicySnapshot]],
        *,
        num_episodes: int,
        steps_max: int,
        deadline_s: float,
    ) -> None:
        """``newest`` gives the policy to measure, ``policy`` is its network; the rest as in the actor's settings."""
        self._context = context
        self._control = control
        self._policy = policy
        self._newest = newest
        self._num_episodes = num_episodes
        self._steps_max = steps_max
        self._deadline_s = deadline_s
        self._thread = DaemonThread("evaluation")
        self._calls = EnvironmentCalls(context.settings.workload.env)
        control.watched.append(self._calls)

    async def evaluate(self, task: Task) -> EvaluationResult:
        """The return of the served policy.

        Raises:
            DeadlineError: the episodes take longer than ``actor.evaluation_deadline_s``.
            UnavailableError: the actor drains; another actor plays them.
            TidegateError: the environment cannot be opened, or every episode failed.
        """
        snapshot = await self._newest()
        returns = await asyncio.get_running_loop().run_in_executor(
            self._thread, lambda: self._play(snapshot, seed=task.seed)
        )
        return EvaluationResult(
            version=snapshot.version,
            figures={
                statistics.EVALUATION_RETURN: returns.mean_return,
                statistics.EVALUATION_RETURN_STD: returns.std_return,
                statistics.EVALUATION_RETURN_MIN: returns.min_return,
                statistics.EVALUATION_RETURN_MAX: returns.max_return,
                statistics.EVALUATION_EPISODES: returns.num_episodes,
            },
            event=msgspec.structs.asdict(returns),
        )

    def _play(self, snapshot: PolicySnapshot, *, seed: int) -> ReturnSummary:
        """Open copies, play, close them; a version's result does not depend on the ones before."""
        workload = self._context.settings.workload
        clock, drain = self._context.clock, self._context.drain
        deadline_s = clock.monotonic_s() + self._deadline_s

        def check(running_N: NDArray[np.bool_], _observations: object) -> None:
            if drain.requested:
                raise UnavailableError("The actor is draining", fix="another actor takes the evaluation")
            if clock.monotonic_s() > deadline_s:
                raise DeadlineError(
                    f"{np.count_nonzero(running_N)} episodes of the evaluation were still running after"
                    f" {self._deadline_s:g} s",
                    why="counting only those that ended would count more short ones than there are",
                    fix="raise actor.evaluation_deadline_s, or lower evaluation_episodes or evaluation_steps_max",
                )

        num_envs = min(self._num_episodes, workload.num_envs)
        self._calls.use(None)
        self._calls.begin(lambda: f"an evaluation of {snapshot.version}")
        try:
            envs = open_vector_env(workload, num_envs=num_envs)
            self._calls.use(envs.unwrapped)
            return self._play_in(envs, snapshot, seed=seed, check=check)
        finally:
            self._calls.end()

    def _play_in(
        self,
        envs: Any,
        snapshot: PolicySnapshot,
        *,
        seed: int,
        check: BeforeStep,
    ) -> ReturnSummary:
        """Play in environments that were opened, and close them.

        Raises:
            EnvironmentFailedError: code around the copies failed.
            TidegateError: every episode failed.
        """
        try:
            episodes = play_episodes(
                envs,
                self._policy,
                snapshot.tensors,
                num_episodes=self._num_episodes,
                seed=seed,
                steps_max=self._steps_max,
                before_step=check,
            )
        except TidegateError:
            raise
        except Exception as error:  # wrappers are third-party code, and vector forms may break them
            fault = envs.unwrapped.faults.raised(WHOLE_FORM, "step", error)
            envs.unwrapped.faults.count(fault)
            raise EnvironmentFailedError(
                f"Environment {self._context.settings.workload.env!r} failed in an evaluation",
                why=str(fault),
                fix="correct the environment, or the wrappers of the run file",
            ) from error
        finally:
            newest = self._control.record_faults(envs.unwrapped.faults)
            envs.close()
        returns = summarise_returns(episodes)
        if returns is None:
            raise TidegateError(
                f"Each of the {len(episodes)} episodes of the evaluation failed",
                why=str(newest[-1]) if newest else "",
                fix="correct the environment",
            )
        return returns
