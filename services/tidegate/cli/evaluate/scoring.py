"""Scores of answers by the run's own task and verifiers."""

import asyncio
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from tidegate.environment.config import EnvironmentConfig
from tidegate.environment.state import AnsweredProblem, combined
from tidegate.environment.tasks.port import Score
from tidegate.environment.verdicts import open_verdicts
from tidegate.launch.run_plan import RunPlan

# Answers that are judged at once; the children of own code take one each.
AT_ONCE = 64


class ScoredAnswers(msgspec.Struct, frozen=True):
    """``rewards`` in the order of the answers, 0 for those that could not be scored; ``failures``: why not."""

    rewards: list[float]
    failures: list[str]


async def score_answers(
    parts: Mapping[str, RunPlan], answers: Sequence[tuple[str, AnsweredProblem]]
) -> ScoredAnswers:
    """Score answers, each with the name of its environment; ``parts``: the plan of each environment.

    Raises:
        ConfigError: a task or a verifier cannot be loaded or opened.
    """
    indices_of: defaultdict[str, list[int]] = defaultdict(list)
    for index, (name, _) in enumerate(answers):
        indices_of[name].append(index)
    rewards, failures = [0.0] * len(answers), list[str]()
    for name, indices in indices_of.items():
        file, config = parts[name].file, parts[name].services["environment"]
        async with open_verdicts(
            file.workload, config, folder=file.files_dir, num_processes=os.cpu_count() or 1
        ) as verdicts:
            for start in range(0, len(indices), AT_ONCE):
                chunk = indices[start : start + AT_ONCE]
                found = await asyncio.gather(*(verdicts.parts(answers[index][1]) for index in chunk))
                for index, judged in zip(chunk, found, strict=True):
                    whole = combined(judged, config.weights(), partial_credit=_credit(config))
                    if isinstance(whole, Score):
                        rewards[index] = whole.reward
                    else:
                        failures.append(whole.why)
    return ScoredAnswers(rewards, failures)


def _credit(config: EnvironmentConfig) -> float | None:
    return config.partial_credit if config.on_error == "partial" else None
