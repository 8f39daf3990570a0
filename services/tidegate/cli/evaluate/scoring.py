"""Verdicts on answers by the run's own tasks and verifiers, with the weights of the run file."""

import os
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

from tidegate.environment.judgements import Judgement
from tidegate.environment.opened_scoring import OpenedScoring, open_scoring
from tidegate.environment.rewards import Rewards
from tidegate.environment.state import AnsweredProblem
from tidegate.launch.run_plan import RunPlan

# Answers that are judged at once; the children of own code take one each.
AT_ONCE = 64


class _NoReports:
    """The verdicts themselves say what failed."""

    def judged(self, parts: Mapping[str, Sequence[Judgement]], answers: Sequence[AnsweredProblem]) -> None:
        del parts, answers


async def score_answers(plan: RunPlan, answers: Sequence[tuple[str, AnsweredProblem]]) -> list[Judgement]:
    """The verdict on each answer, which stands beside the name of its environment, in order.

    Raises:
        ConfigError: a task or a verifier cannot be loaded or opened.
    """
    indices_of: defaultdict[str, list[int]] = defaultdict(list)
    for index, (name, _) in enumerate(answers):
        indices_of[name].append(index)
    found: dict[int, Judgement] = {}
    async with open_rewards(plan) as (rewards, _):
        for name, indices in indices_of.items():
            for start in range(0, len(indices), AT_ONCE):
                chunk = indices[start : start + AT_ONCE]
                judged = await rewards.judge(name, [answers[index][1] for index in chunk])
                found |= zip(chunk, judged, strict=True)
    return [found[index] for index in range(len(answers))]


@asynccontextmanager
async def open_rewards(plan: RunPlan) -> AsyncGenerator[tuple[Rewards, OpenedScoring]]:
    """What makes rewards in a run, with what it asks.

    Raises:
        ConfigError: a task or a verifier cannot be loaded or opened.
    """
    file, config = plan.file, plan.services["environment"]
    async with open_scoring(
        file.workload,
        config,
        folder=file.files_dir,
        num_processes=os.cpu_count() or 1,
        attempts=config.score_attempts,
    ) as scoring:
        rewards = Rewards(
            scoring.scorer,
            scoring.verifiers,
            config,
            _NoReports(),
            seed=file.seed,
            problem_of=scoring.envs.problem_of,
        )
        yield rewards, scoring
