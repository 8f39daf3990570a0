"""``tidegate evaluate``."""

import asyncio
import sys
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.progress import Progress
from rich.table import Table

from tidegate.actor.evaluation.held_out_figures import SOLVED_REWARD
from tidegate.actor.rollouts.heldout import HELDOUT_FILE, HeldOutProblem, read_problems
from tidegate.cli.console import open_console
from tidegate.cli.evaluate.asked import Asked, OnProgress, seed_of
from tidegate.cli.evaluate.passing import Figures, figures_of
from tidegate.cli.evaluate.scoring import score_answers
from tidegate.cli.json_output import write_json
from tidegate.cli.policy.command import VersionOption
from tidegate.cli.run_argument import RunArgument, RunOption, named_run
from tidegate.core.errors import ConfigError
from tidegate.environment.judgements import Judgement, VerifierFailed
from tidegate.environment.state import AnsweredProblem
from tidegate.environment.tasks.port import Problem, Score
from tidegate.launch.named_version import NEWEST
from tidegate.launch.run_folder import read_plan
from tidegate.launch.run_plan import RunPlan
from tidegate.launch.stored_policy import StoredPolicy, stored_version
from tidegate.runtime.loading import load

HELD_OUT = "held out"


class SetFigures(msgspec.Struct, frozen=True):
    """One set of problems: answered greedily, and at the run's temperature."""

    name: str
    greedy: Figures
    sampled: Figures


def evaluate(
    run: RunArgument = None,
    folder: RunOption = None,
    version: VersionOption = NEWEST,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data",
            help="JSON lines of problems (prompt_id, prompt, answer), instead of the run's; repeatable.",
        ),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, max=1024, help="Sampled answers to each problem.")] = 8,
    problems: Annotated[int, typer.Option(min=1, max=1_000_000, help="The most problems of a set.")] = 512,
    temperature: Annotated[
        float | None, typer.Option(min=0.01, max=10.0, help="Of the sampled answers (default: the run's).")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the sampled answers.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Let a version of a language model answer held-out problems: greedily, sampled, and pass@k.

    The model is opened here; the run may have ended. Start it where the run was started.
    """
    stored = stored_version(named_run(run, folder), version)
    plan = scored_plan(stored)
    read = _of_files(data, num_max=problems) if data else _held_out(stored, num_max=problems)
    chosen = stored.file.workload.sampler.temperature if temperature is None else temperature
    quiet = json or not sys.stderr.isatty()
    found = evaluated(stored, plan, read, num_samples=samples, temperature=chosen, seed=seed, quiet=quiet)
    if json:
        write_json(_document(stored, found, temperature=chosen, seed=seed))
    else:
        _print(stored, found)


def _of_files(data: Sequence[Path], *, num_max: int) -> dict[str, list[HeldOutProblem]]:
    sets = {path.stem: path for path in data}
    if len(sets) < len(data):
        raise ConfigError(
            "Two files of --data have the same name", fix="rename one: a set is named by its file"
        )
    return {name: read_problems(path, num_max=num_max) for name, path in sets.items()}


def _held_out(stored: StoredPolicy, *, num_max: int) -> dict[str, list[HeldOutProblem]]:
    """The run's own held-out problems; of several environments each has a set by its name."""
    path, envs = stored.folder / HELDOUT_FILE, stored.file.workload.mixture
    if not envs:
        return {HELD_OUT: read_problems(path, num_max=num_max)}
    # They take turns in the file, so these are enough for each.
    found = read_problems(path, num_max=num_max * len(envs))
    sets = {env: [problem for problem in found if problem.env == env] for env in envs}
    return {name: problems[:num_max] for name, problems in sets.items() if problems}


def scored_plan(stored: StoredPolicy) -> RunPlan:
    """The plan of a run whose answers can be scored here.

    Raises:
        ConfigError: they cannot: it has no language model, or an agent plays its episodes.
    """
    workload = stored.file.workload
    if workload.kind == "segments":
        raise ConfigError(
            "Only language models answer problems",
            why=f"the policy of {stored.run} acts in {workload.env}",
            fix="use `tidegate play`, which prints the returns of greedy episodes",
        )
    plan = read_plan(stored.folder)[1]
    if plan.services["actor"].gateway is not None or workload.of_verifiers():
        raise ConfigError(
            f"The answers of {stored.run} cannot be scored here",
            why=f"an agent plays the episodes of {workload.title}",
            fix="use its evaluations while it trains (task_queue.evaluation_every_versions)",
        )
    return plan


def evaluated(
    stored: StoredPolicy,
    plan: RunPlan,
    sets: dict[str, list[HeldOutProblem]],
    *,
    num_samples: int,
    temperature: float,
    seed: int,
    quiet: bool,
) -> list[SetFigures]:
    """The figures of each set. A problem names its environment, which it need not if the run has one.

    ``quiet``: show no progress.

    Raises:
        ConfigError: the model or a verifier cannot be opened, or a problem names none of several environments.
        RecordError: a prompt does not fit the model.
    """
    names = list(plan.file.workload.by_name())
    only = names[0] if len(names) == 1 else None
    nowhere = [
        each for problems in sets.values() for each in problems if only is None and each.env not in names
    ]
    if nowhere:
        raise ConfigError(
            f"Problem {nowhere[0].prompt_id} names the environment {nowhere[0].env!r}",
            why=f"the run has several: {', '.join(names)}",
            fix="add the field `env` with one of them to each problem",
        )
    kinds = ((1, 0.0), (num_samples, temperature))
    asked = [
        Asked(only or problem.env, problem, heat, seed_of(seed, number, sample))
        for problems in sets.values()
        for count, heat in kinds
        for number, problem in enumerate(problems)
        for sample in range(count)
    ]
    with Progress(console=open_console(stderr=True), transient=True, disable=quiet) as progress:
        bar = progress.add_task("answers", total=len(asked))
        judged = iter(_judged(stored, plan, asked, on_progress=partial(progress.advance, bar)))
    ks = [2**power for power in range(num_samples.bit_length())]

    def figures(problems: Sequence[HeldOutProblem], count: int) -> Figures:
        found = [list(islice(judged, count)) for _ in problems]
        return figures_of(
            [[each.reward if isinstance(each, Score) else 0.0 for each in of_one] for of_one in found],
            solved_at=SOLVED_REWARD,
            ks=ks,
            failures=[each.why for of_one in found for each in of_one if isinstance(each, VerifierFailed)],
        )

    return [
        SetFigures(name=name, greedy=figures(problems, 1), sampled=figures(problems, num_samples))
        for name, problems in sets.items()
    ]


def _judged(
    stored: StoredPolicy, plan: RunPlan, asked: Sequence[Asked], *, on_progress: OnProgress
) -> list[Judgement]:
    """The verdict on each answer or episode; all at once, as a verifier may take a while to open."""
    if plan.file.workload.turns_max > 1:
        return load("tidegate.cli.evaluate.conversing:play_episodes")(
            stored, plan, asked, on_progress=on_progress
        )
    answers = load("tidegate.cli.evaluate.answering:Answering")(stored).answers(
        asked, on_progress=on_progress
    )
    pairs = zip(asked, answers, strict=True)
    return asyncio.run(score_answers(plan, [(each.env, _answered(each, answer)) for each, answer in pairs]))


def _answered(asked: Asked, answer: str) -> AnsweredProblem:
    problem = asked.problem
    return AnsweredProblem(
        Problem(prompt_id=problem.prompt_id, prompt=problem.prompt, answer=problem.answer, bin=problem.bin),
        answer,
    )


def _document(
    stored: StoredPolicy, found: Sequence[SetFigures], *, temperature: float, seed: int
) -> dict[str, Any]:
    return {
        "run": stored.run,
        "version": str(stored.version),
        "temperature": temperature,
        "seed": seed,
        "sets": found,
    }


def _print(stored: StoredPolicy, found: Sequence[SetFigures]) -> None:
    table = Table(title=f"version {stored.version} of {stored.run}", title_justify="left", box=None)
    ks = list(found[0].sampled.pass_at)
    for column in ("set", "problems", "greedy", "sampled", *(f"pass@{k}" for k in ks), "mean reward"):
        table.add_column(column, justify="left" if column == "set" else "right")
    for each in found:
        table.add_row(
            each.name,
            f"{each.greedy.num_problems:,}",
            f"{each.greedy.solved_share:.1%}",
            f"{each.sampled.solved_share:.1%}",
            *(f"{share:.1%}" for share in each.sampled.pass_at.values()),
            f"{each.sampled.mean_reward:.3f}",
        )
    console = open_console()
    console.print(table)
    for each in found:
        failures = [*each.greedy.failures, *each.sampled.failures]
        if failures:
            console.print(
                f"{each.name}: {len(failures):,} answers could not be scored and count as 0. The first: {failures[0]}",
                markup=False,
                soft_wrap=True,
            )
