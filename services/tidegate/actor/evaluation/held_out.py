"""The evaluation of text: one version answers the held-out problems, and a verifier scores the answers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tidegate.actor.engines.port import Completed
from tidegate.actor.evaluation.held_out_figures import held_out_figures
from tidegate.actor.evaluation.port import EvaluationResult
from tidegate.actor.rollouts.heldout import HELDOUT_FILE, HeldOutProblem, check_envs_of, read_problems
from tidegate.actor.rollouts.scoring import any_worker, score_all
from tidegate.catalogue import actor as statistics
from tidegate.core.errors import TidegateError
from tidegate.core.records import Task
from tidegate.runtime.service import ServiceContext
from tidegate.wire.clients.environment import Completion


class AnswersProblems(Protocol):
    """A runner of text."""

    async def complete(self, task: Task, problems: Sequence[HeldOutProblem]) -> Completed:
        """Answer the held-out problems of an evaluation under one policy.

        Raises:
            TidegateError: the engine cannot, or must stop.
        """
        ...


class HeldOutEvaluator:
    """Reads the problems and has the runner's answers scored."""

    def __init__(self, context: ServiceContext, runner: AnswersProblems, *, num_problems_max: int) -> None:
        """``num_problems_max`` bounds how long an evaluation keeps the engine."""
        self._context = context
        self._runner = runner
        self._num_problems_max = num_problems_max
        self._environment = any_worker(context)
        self._problems: list[HeldOutProblem] = []
        self._weights = context.settings.workload.mixture

    async def evaluate(self, task: Task) -> EvaluationResult:
        """The share of the problems that the served policy solves.

        Raises:
            ConfigError: there are no problems.
            UnavailableError: no environment worker answers, or the actor drains.
            TidegateError: verifiers failed on every answer; else failed ones are left out.
        """
        problems = self._read_problems()
        completed = await self._runner.complete(task, problems)
        rewards = list(completed.rewards or [None] * len(problems))
        waiting = [place for place, reward in enumerate(rewards) if reward is None]
        if waiting:
            asked = [(problems[place], completed.completions[place]) for place in waiting]
            completions = [
                Completion(problem.prompt_id, problem.prompt, problem.answer, text, problem.bin)
                for problem, text in asked
            ]
            env_ids = [problem.env or task.env_id for problem, _ in asked]
            scored = await score_all(self._environment, env_ids, completions)
            for place, item in zip(waiting, scored, strict=True):
                rewards[place] = None if item.failed else item.reward
            if all(item.failed for item in scored):
                raise TidegateError(
                    f"No verifier gave a verdict on any of {len(scored)} held-out answers",
                    why=scored[0].log,
                    fix="correct the verifier",
                )
        found = held_out_figures(
            [(problem.env, reward) for problem, reward in zip(problems, rewards, strict=True)],
            self._weights,
        )
        return EvaluationResult(
            version=completed.version,
            figures={
                statistics.EVALUATION_SOLVED_SHARE: found["solved_share"],
                statistics.EVALUATION_MEAN_REWARD: found["mean_reward"],
            },
            event={**found, "temperature": task.sampler.temperature},
        )

    def _read_problems(self) -> list[HeldOutProblem]:
        """The held-out problems, read once.

        Raises:
            ConfigError: there are none, or one is of no environment of the run.
        """
        if not self._problems:
            folder = Path(self._context.settings.data_dir)
            problems = read_problems(folder / HELDOUT_FILE, num_max=self._num_problems_max)
            if self._weights:
                check_envs_of(problems, self._weights)
            self._problems = problems
        return self._problems
