"""What the names of a run's environments stand for, and what the environments themselves see of their problems."""

import asyncio

import pytest
import structlog

from tidegate.core.errors import NotFoundError
from tidegate.environment.config import EnvironmentConfig
from tidegate.environment.failures import FailureReports
from tidegate.environment.own_code.pool import OwnCodeSettings
from tidegate.environment.own_code.tasks import OwnTasks
from tidegate.environment.rewards import Rewards
from tidegate.environment.run_environments import RunEnvironments
from tidegate.environment.scoring import Scorer
from tidegate.environment.state import AnsweredProblem, ScoreCache
from tidegate.environment.tasks.port import Problem, Score
from tidegate.environment.verifiers.settings import ClassifierSettings
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.config import WorkloadConfig
from tidegate.runtime.prompt_sources import EnvShare
from tidegate.runtime.stats_board import StatsBoard

BOUNDS = OwnCodeSettings(num_processes=1, deadline_s=1.0, start_deadline_s=1.0, memory_bytes=0)
SEVERAL = WorkloadConfig(
    kind="text", envs=(EnvShare("sums"), EnvShare("arithmetic", 2.0, "plus"), EnvShare("grid", 0.0))
)
ALONE = WorkloadConfig(kind="text", env="arithmetic")
# A bin of `plus` whose own name begins as the names of bins of the run do.
PROBLEM = Problem("47+38", "47+38=", "085", "plus/plus/carries-1")


class BinSeen:
    """A verifier that notes which bins its problems have."""

    def __init__(self) -> None:
        self.bins: list[str] = []

    async def start(self) -> None:
        """Ready."""

    async def score(self, problem: Problem, completion: str) -> Score:
        del completion
        self.bins.append(problem.bin)
        return Score(0.5, {}, "")

    async def close(self) -> None:
        """Nothing is held."""


def judged(workload: WorkloadConfig, env_id: str) -> tuple[list[str], float]:
    """The bins that a verifier saw, and the reward of the right answer with half of the verifier's."""
    envs, seen = RunEnvironments(workload, folder=""), BinSeen()
    tasks = OwnTasks(BOUNDS, own=envs.own, env_of=envs.env_of)
    scorer = Scorer(tasks.task_of, ScoreCache(num_max=4), SystemClock(), deadline_s=5.0, own=tasks)
    config = EnvironmentConfig(
        rewards={"task": 1.0, "seen": 1.0}, verifiers={"seen": ClassifierSettings(path="unused")}
    )
    stats = StatsBoard(service="environment", instance="environment-0", started_at_s=0.0)
    reports = FailureReports(stats, structlog.get_logger("test"), on_error=config.on_error)
    rewards = Rewards(scorer, {"seen": seen}, config, reports, seed=0, problem_of=envs.problem_of)
    [score] = asyncio.run(rewards.judge(env_id, [AnsweredProblem(PROBLEM, "085")]))
    assert isinstance(score, Score)
    return seen.bins, score.reward


def test_task_with_a_name_of_its_own_is_scored_and_sees_its_own_bins() -> None:
    assert judged(SEVERAL, "plus") == (["plus/carries-1"], 1.5)


def test_problem_of_a_run_of_one_environment_stays_as_it_is() -> None:
    assert judged(ALONE, "arithmetic") == ([PROBLEM.bin], 1.5)


def test_name_that_the_run_does_not_have_stands_for_a_task_of_this_package_or_nothing() -> None:
    envs = RunEnvironments(SEVERAL, folder="")
    tasks = OwnTasks(BOUNDS, own=envs.own, env_of=envs.env_of)
    assert type(tasks.task_of("plus")).__name__ == "Arithmetic"
    assert type(tasks.task_of("countdown")).__name__ == "Countdown"
    with pytest.raises(NotFoundError, match="There is no text task 'minus'"):
        tasks.task_of("minus")
    assert not RunEnvironments(WorkloadConfig(kind="segments", env="CartPole-v1"), folder="").env_of
