"""Evaluations: one version answers the held-out problems, the environment judges, the share solved is an event.

Control work: an evaluation never becomes a trajectory, and while it runs the engine makes none.
"""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec

from tidegate.actor.engines.port import Completed, Sample
from tidegate.actor.policy import PolicyHolder
from tidegate.core.errors import ConfigError, UnavailableError
from tidegate.core.ids import PromptId
from tidegate.core.records import Sampler, Task
from tidegate.runtime.service import ServiceContext
from tidegate.wire.clients.environment import Completion, EnvironmentClient, RewardedCompletion

HELDOUT_FILE = Path("data") / "heldout.jsonl"
SCORES_PER_CALL = 512
# A verifier gives 1 for a solved problem and less for anything else.
SOLVED_REWARD = 1.0
EVENT_KIND = "evaluation"
# An evaluation whose policy was swapped despite the hold is repeated; once should do.
ROUNDS_MAX = 3


class Problem(msgspec.Struct, frozen=True):
    """One row of the held-out file."""

    prompt_id: str
    prompt: str
    answer: str
    bin: str = "all"


def read_problems(path: Path, *, num_max: int) -> list[Problem]:
    """The first ``num_max`` rows of a JSONL file of problems.

    Raises:
        ConfigError: the file is missing, empty, or a row is no problem; the message names the row.
    """
    try:
        lines = [line for line in path.read_bytes().splitlines() if line.strip()]
    except OSError as error:
        raise ConfigError(
            f"There are no held-out problems in {path.name}",
            why=str(error),
            fix="`tidegate up` writes it before the services start; without it nothing can be evaluated",
        ) from error
    decoder = msgspec.json.Decoder(Problem)
    problems: list[Problem] = []
    for number, line in enumerate(lines[:num_max], start=1):
        try:
            problems.append(decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"Row {number} of {path.name} is no problem", why=str(error)) from error
    if not problems:
        raise ConfigError(f"{path.name} is empty", fix="an evaluation needs at least one problem")
    return problems


def asked(task: Task, problem: Problem) -> Task:
    """The evaluation's task with one of its problems."""
    return msgspec.structs.replace(
        task,
        prompt_id=PromptId(problem.prompt_id),
        prompt=problem.prompt,
        answer=problem.answer,
        curriculum_bin=problem.bin,
    )


async def complete_under_one_version(
    holder: PolicyHolder, play: Callable[[], Awaitable[Sequence[Sample] | None]]
) -> Completed:
    """What ``play`` gives under one policy, which is held meanwhile; ``play`` gives None where the actor drains.

    Raises:
        UnavailableError: the actor drains, or the engine did not keep to one policy; another actor will answer.
    """
    with holder.hold():
        for _ in range(ROUNDS_MAX):
            samples = await play()
            if samples is None:
                raise UnavailableError("The actor is draining", fix="another actor takes the evaluation")
            versions = {span.version for sample in samples for span in sample.spans}
            if len(versions) == 1:
                rewards = [sample.reward for sample in samples if sample.reward is not None]
                return Completed(
                    version=versions.pop(),
                    completions=[sample.completion for sample in samples],
                    num_tokens=sum(sample.num_steps for sample in samples),
                    rewards=rewards if len(rewards) == len(samples) else None,
                )
    raise UnavailableError("The engine swapped its policy while it was held")


class Evaluator:
    """Reads the problems, has the answers judged, tells the result."""

    def __init__(self, context: ServiceContext, *, num_problems_max: int) -> None:
        """``num_problems_max`` bounds how long an evaluation keeps the engine."""
        self._context = context
        self._num_problems_max = num_problems_max
        self._environment = EnvironmentClient(context.channel("environment"))
        self._problems: list[Problem] = []

    def problems(self) -> list[Problem]:
        """The held-out problems, read once.

        Raises:
            ConfigError: there are none.
        """
        if not self._problems:
            folder = Path(self._context.settings.data_dir)
            self._problems = read_problems(folder / HELDOUT_FILE, num_max=self._num_problems_max)
        return self._problems

    async def judge(self, problems: list[Problem], completed: Completed, *, sampler: Sampler) -> None:
        """Score the completions, unless they are, and tell operators the share solved.

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
        context.stats.set("evaluation_solved_share", solved_share)
        context.stats.set("evaluation_mean_reward", sum(rewards) / len(rewards))
        context.stats.label("evaluation_version", str(completed.version))
        context.stats.add("evaluations_total")
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


async def score_all(
    environment: EnvironmentClient, env_id: str, completions: Sequence[Completion]
) -> list[RewardedCompletion]:
    """The verdicts on any number of completions, in order, a bounded number a call.

    Raises:
        UnavailableError: no environment worker answers.
    """
    scored: list[RewardedCompletion] = []
    for start in range(0, len(completions), SCORES_PER_CALL):
        scored += await environment.score(env_id, completions[start : start + SCORES_PER_CALL])
    return scored
