"""One process of the staleness bench: trains the character model at an exact lag, once for each request.

Reads one ``Cell`` a line from standard input and answers each with one ``CellResult``. Every completion comes from the
policy exactly ``lag`` versions before the update it takes part in, which is the worst that a budget of that size allows
and what a busy asynchronous run shows (``make bench ARGS=lag``). Generation, verifier, trainer and objectives are
the platform's own; only the services between them are left out, so that runs are exact, repeatable and short.
"""

import sys
import time
from collections import deque
from collections.abc import Mapping
from functools import cache

import msgspec
import numpy as np
import torch

from benchmarks.cells import Cell, CellResult
from tidegate.core.ids import GroupId, LineageName, PolicyVersion, RunId, TaskId, trajectory_id
from tidegate.core.records import Array, Sampler, Trajectory, VersionSpan
from tidegate.environment.tasks.arithmetic import Arithmetic
from tidegate.environment.tasks.port import Problem
from tidegate.learner.optim.language_model import LanguageModelTrainer
from tidegate.learner.warmup import WarmupExample, solved_share, supervised_warmup
from tidegate.learner.warmup_settings import WarmupSettings
from tidegate.models.char_lm import CharLm, CharLmSpec
from tidegate.models.char_tokenizer import decode, encode_prompt
from tidegate.models.sampling import generate

SPEC = CharLmSpec(d_model=64, num_layers=2, num_heads=4, context_length=16)
SAMPLER = Sampler(temperature=1.0, max_new_tokens=4)
NUM_PROMPTS = 32
NUM_SAMPLES = 8
NUM_DEMONSTRATIONS = 8_192
HELDOUT_SAMPLES = 2
RUN = RunId("fixed-lag")
TASK = Arithmetic()


def train(cell: Cell) -> CellResult:
    """The run of a cell; the same cell gives the same result."""
    started_s, started_cpu_s = time.monotonic(), time.process_time()
    model = CharLm(SPEC)
    trainer = LanguageModelTrainer(model, cell.settings, seed=cell.seed, device=torch.device("cpu"))
    trainer.begin_from(_warmed_up(cell.seed))
    behavior = CharLm(SPEC)
    generator = torch.Generator().manual_seed(1_000 + cell.seed)
    rng = np.random.default_rng(cell.seed)
    problems = TASK.problems("train", seed=cell.seed)
    policies: deque[Mapping[str, Array]] = deque([trainer.policy()], maxlen=cell.lag + 1)
    solved = [(0, _solved(model, cell.seed))]
    measured: list[dict[str, float]] = []
    for number in range(1, cell.updates + 1):
        # At the start there is no policy that old yet: the oldest there is.
        behavior.load_arrays(policies[0])
        indices: list[int] = rng.choice(len(problems), NUM_PROMPTS, replace=False).tolist()
        chosen = [problems[index] for index in indices]
        batch = _rollouts(behavior, chosen, number=number, lag=len(policies) - 1, generator=generator)
        measured.append(trainer.update(trainer.prepare(batch), number=number))
        policies.append(trainer.policy())
        if number % cell.look_every == 0 or number == cell.updates:
            solved.append((number, _solved(model, cell.seed)))
    return CellResult(
        name=cell.name,
        lag=cell.lag,
        seed=cell.seed,
        solved=solved,
        ess_mean=_mean(measured, "ess"),
        clipped_mean=_mean(measured, "clipped_fraction"),
        mismatch_kl_mean=_mean(measured, "mismatch_kl"),
        wall_s=time.monotonic() - started_s,
        cpu_s=time.process_time() - started_cpu_s,
    )


@cache
def _warmed_up(seed: int) -> dict[str, Array]:
    """The starting policy of a seed, the same for all of its cells."""
    model = CharLm(SPEC, generator=torch.Generator().manual_seed(seed))
    demonstrations = TASK.demonstrations(seed=seed, count=NUM_DEMONSTRATIONS)
    supervised_warmup(
        model,
        [WarmupExample(each.prompt, each.completion) for each in demonstrations],
        _heldout(seed),
        WarmupSettings(),
        generator=torch.Generator().manual_seed(seed),
    )
    return model.to_arrays()


@cache
def _heldout(seed: int) -> list[WarmupExample]:
    return [WarmupExample(each.prompt, each.answer) for each in TASK.problems("heldout", seed=seed)]


def _solved(model: CharLm, seed: int) -> float:
    return solved_share(
        model,
        _heldout(seed),
        num_samples=HELDOUT_SAMPLES,
        temperature=1.0,
        generator=torch.Generator().manual_seed(seed),
    )


def _rollouts(
    model: CharLm, problems: list[Problem], *, number: int, lag: int, generator: torch.Generator
) -> list[Trajectory]:
    """A batch for update ``number``, scored, as environments publish it."""
    prompts = [encode_prompt(problem.prompt) for problem in problems]
    completions = generate(
        model,
        prompts,
        num_samples=NUM_SAMPLES,
        max_new_tokens=SAMPLER.max_new_tokens,
        temperature=SAMPLER.temperature,
        generator=generator,
    )
    version = PolicyVersion(LineageName("0"), number - 1 - lag)
    batch: list[Trajectory] = []
    for row, completion in enumerate(completions):
        group, sample_index = divmod(row, NUM_SAMPLES)
        task_id = TaskId(f"{number}-{group}")
        text = decode(completion.tokens)
        batch.append(
            Trajectory(
                trajectory_id=trajectory_id(task_id, sample_index=sample_index),
                run_id=RUN,
                task_id=task_id,
                group_id=GroupId(task_id),
                group_size=NUM_SAMPLES,
                spans=(VersionSpan(version, 0, len(completion.tokens)),),
                tensors={
                    "prompt_tokens": np.array(prompts[group], np.int32),
                    "tokens": completion.tokens,
                    "behavior_logprobs": completion.behavior_logprobs,
                },
                num_steps=len(completion.tokens),
                reward=TASK.score(problems[group], text).reward,
                sampler=SAMPLER,
            )
        )
    return batch


def _mean(measured: list[dict[str, float]], key: str) -> float:
    """Over the updates that had something to learn from."""
    found = [step[key] for step in measured if key in step]
    return sum(found) / len(found) if found else 0.0


def main() -> None:
    """Answer lines until there are no more."""
    torch.set_num_threads(1)
    for line in sys.stdin.buffer:
        result = train(msgspec.json.decode(line, type=Cell))
        sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
