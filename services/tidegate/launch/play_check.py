"""One episode of a run's environment or task before the run: `tidegate check --play`.

Segments are played with random actions. Of text one training problem is answered twice: as its demonstration or its
answer says, and by a text that means nothing, so that a reward which tells the two apart is seen to do so.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.environment.libraries.names import is_verifiers
from tidegate.environment.libraries.verifiers_settings import (
    PlayedVerifiers,
    VerifiersQuestion,
    named_environment,
)
from tidegate.environment.one_episode import PlayedText, play_text
from tidegate.environment.tasks.port import Demonstration, Problem
from tidegate.launch.inherited_environment import inherited
from tidegate.launch.play_child import PLAYED_S_MAX, PlayedSegments, PlayQuestion
from tidegate.launch.preparation import write_datasets
from tidegate.launch.run_plan import RunPlan, parts_of
from tidegate.learner.warmup_settings import DEMONSTRATIONS_FILE
from tidegate.runtime.child_question import ChildEndedError, ChildTimeoutError, ask
from tidegate.task_queue.dataset import TRAIN_FILE

CHILD = "tidegate.launch.play_child"
VERIFIERS_CHILD = "tidegate.environment.libraries.verifiers_play"
# Besides the time to load the environment.
EPISODE_S = 150.0
DEADLINE_S = PLAYED_S_MAX + 60.0
# The completion of an untrained policy.
STUB = "?"


async def play_run(plan: RunPlan) -> PlayedSegments | list[PlayedText]:
    """What one episode of the run's workload gave; of several environments one of each.

    Raises:
        ConfigError: the environment, the task or a verifier failed; with file and line of the user's code.
    """
    file = plan.file
    if file.workload.kind == "segments":
        return _play_segments(plan)
    if file.workload.envs:
        return [
            msgspec.structs.replace(played, env=name)
            for name, part in parts_of(plan).items()
            for played in await _play_text(part)
        ]
    return await _play_text(plan)


async def _play_text(plan: RunPlan) -> list[PlayedText]:
    file = plan.file
    with TemporaryDirectory(prefix="tidegate-play-") as folder:
        write_datasets(plan, Path(folder))
        problem = _first(Path(folder) / TRAIN_FILE, Problem)
        if problem is None:
            raise ConfigError(f"{file.workload.env} has no training problems", fix="see workload.dataset")
        if is_verifiers(file.workload.env):
            return [_play_verifiers(plan, problem)]
        scripts = [*_shown(Path(folder) / DEMONSTRATIONS_FILE, problem), [STUB]]
        return await play_text(
            file.workload, plan.services["environment"], problem, scripts, folder=file.files_dir
        )


def _shown(path: Path, problem: Problem) -> Sequence[list[str]]:
    """The turns of the problem's demonstration, or its answer; nothing where it has neither."""
    if path.is_file():
        with path.open("rb") as lines:
            for line in lines:
                found = msgspec.json.decode(line, type=Demonstration)
                if found.prompt == problem.prompt:
                    return [[found.completion, *(turn for _, turn in found.exchanges)]]
    return [[problem.answer]] if problem.answer else []


def _first(path: Path, kind: type[Problem]) -> Problem | None:
    with path.open("rb") as lines:
        line = lines.readline()
    return msgspec.json.decode(line, type=kind) if line.strip() else None


def _play_verifiers(plan: RunPlan, problem: Problem) -> PlayedText:
    """By the environment itself, whose model gives every call the stub."""
    file = plan.file
    settings = named_environment(file.workload.env, file.workload.env_kwargs)
    question = VerifiersQuestion(settings, problem.prompt_id, STUB, file.files_dir)
    environ = inherited(os.environ, (*file.pass_env, *plan.services["actor"].gateway.pass_env))
    start_s = plan.services["environment"].verifier_start_deadline_s
    try:
        played = ask(
            VERIFIERS_CHILD, question, PlayedVerifiers, deadline_s=start_s + EPISODE_S, environ=environ
        )
    except ChildTimeoutError as error:
        raise ConfigError(
            f"{file.workload.env} did not play one episode within {start_s + EPISODE_S:g} s",
            fix="correct what it waits for",
        ) from error
    except ChildEndedError as error:
        raise ConfigError(
            f"{file.workload.env} ended the process that played it, with exit code {error.exit_code}",
            why=error.reason,
            fix="see its package",
        ) from error
    verdict = played.verdict
    end = f"{verdict.log or 'ended'} after {played.num_calls} calls of the model"
    parts = {"task": verdict.reward}
    turns = [(STUB, "")] * min(1, played.num_calls)
    return PlayedText(problem.prompt, turns, end, verdict.reward, verdict.components, parts, played.took_s)


def _play_segments(plan: RunPlan) -> PlayedSegments:
    file = plan.file
    question = PlayQuestion(file.workload, file.files_dir, file.seed)
    environ = inherited(os.environ, file.pass_env)
    try:
        return ask(CHILD, question, PlayedSegments, deadline_s=DEADLINE_S, environ=environ)
    except ChildTimeoutError as error:
        raise ConfigError(
            f"Environment {file.workload.env!r} did not play one episode within {DEADLINE_S:g} s",
            fix="correct what its step waits for",
        ) from error
    except ChildEndedError as error:
        raise ConfigError(
            f"Environment {file.workload.env!r} ended the process that played it, with exit code {error.exit_code}",
            why=error.reason,
            fix="correct its code",
        ) from error
