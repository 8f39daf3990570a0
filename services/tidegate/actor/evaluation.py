"""Evaluations: one version answers the held-out problems, a verifier scores them, the share solved is an event.

Control work: an evaluation never becomes a trajectory.
"""

from pathlib import Path

from tidegate.actor.engines.port import Completed
from tidegate.actor.rollouts.heldout import HELDOUT_FILE, HeldOutProblem, read_problems
from tidegate.actor.rollouts.scoring import score_all
from tidegate.catalogue import actor as statistics
from tidegate.core.records import Sampler
from tidegate.runtime.service import ServiceContext
from tidegate.wire.clients.environment import Completion, EnvironmentClient

# A verifier gives 1 for a solved problem and less for anything else.
SOLVED_REWARD = 1.0
EVENT_KIND = "evaluation"


class Evaluator:
    """Reads the problems, has the answers scored, and publishes the result."""

    def __init__(self, context: ServiceContext, *, num_problems_max: int) -> None:
        """``num_problems_max`` bounds how long an evaluation keeps the engine."""
        self._context = context
        self._num_problems_max = num_problems_max
        self._environment = EnvironmentClient(context.channel("environment"))
        self._problems: list[HeldOutProblem] = []

    def problems(self) -> list[HeldOutProblem]:
        """The held-out problems, read once.

        Raises:
            ConfigError: there are none.
        """
        if not self._problems:
            folder = Path(self._context.settings.data_dir)
            self._problems = read_problems(folder / HELDOUT_FILE, num_max=self._num_problems_max)
        return self._problems

    async def judge(self, problems: list[HeldOutProblem], completed: Completed, *, sampler: Sampler) -> None:
        """Score the completions unless they have rewards, and publish the share solved.

        Raises:
            UnavailableError: no environment worker answers.
        """
        context = self._context
        rewards = completed.rewards
        if rewards is None:
            completions = [
                Completion(problem.prompt_id, problem.prompt, problem.answer, text, problem.bin)
                for problem, text in zip(problems, completed.completions, strict=True)
            ]
            scored = await score_all(self._environment, context.settings.workload.env, completions)
            rewards = [item.reward for item in scored]
        solved_share = sum(reward >= SOLVED_REWARD for reward in rewards) / len(rewards)
        context.stats.set(statistics.EVALUATION_SOLVED_SHARE, solved_share)
        context.stats.set(statistics.EVALUATION_MEAN_REWARD, sum(rewards) / len(rewards))
        context.stats.label(statistics.EVALUATION_VERSION, str(completed.version))
        context.stats.add(statistics.EVALUATIONS)
        context.log.info("evaluated", version=str(completed.version), solved_share=solved_share)
        await context.bus.event(
            EVENT_KIND,
            {
                "version": str(completed.version),
                "solved_share": solved_share,
                "mean_reward": sum(rewards) / len(rewards),
                "num_problems": len(rewards),
                "temperature": sampler.temperature,
                "at_s": context.clock.now_s(),
            },
        )
