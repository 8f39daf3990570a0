"""The held-out problems of a run, and their evaluation under one policy."""

from codecs import BOM_UTF8
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path

import msgspec

from tidegate.actor.engines.port import Completed, Sample
from tidegate.actor.rollouts.served_policy import ServedPolicy
from tidegate.core.cut_off import as_judged
from tidegate.core.errors import ConfigError, UnavailableError
from tidegate.core.ids import PromptId
from tidegate.core.records import Task

HELDOUT_FILE = Path("data") / "heldout.jsonl"
# Attempts at an evaluation whose policy was swapped despite the hold.
ROUNDS_MAX = 3


class HeldOutProblem(msgspec.Struct, frozen=True):
    """One row of the held-out file. ``env``: the environment that it is of, where a run has several."""

    prompt_id: str
    prompt: str
    answer: str
    bin: str = "all"
    env: str = ""


def read_problems(path: Path, *, num_max: int) -> list[HeldOutProblem]:
    """The first ``num_max`` rows of a JSONL file of problems.

    Raises:
        ConfigError: the file is missing, empty, or a row is no problem; the message names the row.
    """
    try:
        lines = [line for line in path.read_bytes().removeprefix(BOM_UTF8).splitlines() if line.strip()]
    except OSError as error:
        raise ConfigError(
            f"There are no held-out problems in {path.name}",
            why=str(error),
            fix="`tidegate up` writes it before the services start; without it nothing can be evaluated",
        ) from error
    decoder = msgspec.json.Decoder(HeldOutProblem)
    problems: list[HeldOutProblem] = []
    for number, line in enumerate(lines[:num_max], start=1):
        try:
            problems.append(decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"Row {number} of {path.name} is no problem", why=str(error)) from error
    if not problems:
        raise ConfigError(f"{path.name} is empty", fix="an evaluation needs at least one problem")
    return problems


def check_envs_of(problems: Sequence[HeldOutProblem], envs: Collection[str]) -> None:
    """Refuse a problem of none of several environments.

    Raises:
        ConfigError: there is one; the message names it.
    """
    wrong = next((problem for problem in problems if problem.env not in envs), None)
    if wrong is not None:
        raise ConfigError(
            f"Held-out problem {wrong.prompt_id[:64]!r} is of the environment {wrong.env[:64]!r}",
            why=f"workload.envs names {', '.join(envs)}",
            fix="write each row of heldout.jsonl with one of these names as `env`",
        )


def asked(task: Task, problem: HeldOutProblem) -> Task:
    """The evaluation's task with one of its problems."""
    return msgspec.structs.replace(
        task,
        prompt_id=PromptId(problem.prompt_id),
        prompt=problem.prompt,
        answer=problem.answer,
        curriculum_bin=problem.bin,
        env_id=problem.env or task.env_id,
    )


async def complete_under_one_version(
    served_policy: ServedPolicy, play: Callable[[], Awaitable[Sequence[Sample] | None]]
) -> Completed:
    """The result of ``play`` under one policy, which is held meanwhile; ``play`` returns None while the actor drains.

    Raises:
        UnavailableError: the actor drains, or the engine changed its policy; another actor will answer.
    """
    with served_policy.hold():
        for _ in range(ROUNDS_MAX):
            samples = await play()
            if samples is None:
                raise UnavailableError("The actor is draining", fix="another actor takes the evaluation")
            versions = {span.version for sample in samples for span in sample.spans}
            if len(versions) == 1:
                rewards = [sample.reward for sample in samples if sample.reward is not None]
                return Completed(
                    version=versions.pop(),
                    completions=[
                        as_judged(sample.completion, finish_reason=sample.finish_reason) for sample in samples
                    ],
                    num_tokens=sum(sample.num_steps for sample in samples),
                    rewards=rewards if len(rewards) == len(samples) else None,
                )
    raise UnavailableError("The engine swapped its policy while it was held")
