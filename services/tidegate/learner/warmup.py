"""Supervised warm-up: the starting policy of a language-model run, trained on demonstrations.

Reinforcement learning needs reward differences inside a group, and a policy that solves nothing has none. The warm-up
stops as soon as it reproduces enough held-out demonstrations, which are never trained on. An episode of several turns
includes the environment's replies as context, without a loss on them.

Shapes: B demonstrations of a batch, T tokens of a completion.
"""

from collections.abc import Callable, Sequence
from itertools import chain

import msgspec
import numpy as np
import torch

from tidegate.algorithms.loss import Loss
from tidegate.core.errors import ConfigError, TidegateError
from tidegate.learner.optim.adam import AdamW
from tidegate.learner.optim.gradients import gradient_step
from tidegate.learner.warmup_settings import WarmupSettings
from tidegate.models.char_lm import CharLm
from tidegate.models.char_tokenizer import decode, encode, encode_completion, encode_prompt
from tidegate.models.completion_batch import completion_logprobs, pack_completions
from tidegate.models.sampling import generate


class WarmupError(TidegateError):
    """The warm-up ended without a policy that reinforcement learning could start from."""

    status = "FAILED_PRECONDITION"


class WarmupExample(msgspec.Struct, frozen=True):
    """A prompt with its target completion; ``exchanges``: each environment reply with the turn that follows."""

    prompt: str
    completion: str
    exchanges: tuple[tuple[str, str], ...] = ()

    def tokens(self) -> tuple[list[int], list[bool]]:
        """The tokens after the prompt, and which of them the policy chooses.

        Raises:
            RecordError: a text holds an unknown character.
        """
        tokens = encode_completion(self.completion)
        chosen = [True] * len(tokens)
        for reply, turn in self.exchanges:
            for part, is_chosen in ((encode(reply), False), (encode_completion(turn), True)):
                tokens += part
                chosen += [is_chosen] * len(part)
        return tokens, chosen

    def turns(self) -> list[tuple[list[int], str]]:
        """Each turn with its context.

        Raises:
            RecordError: a text holds an unknown character.
        """
        context = encode_prompt(self.prompt)
        turns = [(context, self.completion)]
        for reply, turn in self.exchanges:
            context = [*context, *encode_completion(turns[-1][1]), *encode(reply)]
            turns.append((context, turn))
        return turns


class WarmupProgress(msgspec.Struct, frozen=True):
    """One evaluation on the held-out problems: gradient steps, loss in nats per token, and the solved share."""

    steps: int
    loss: float
    solved: float


class WarmupResult(msgspec.Struct, frozen=True):
    """Solved share of the held-out problems at temperature 1 and greedily, and the number of steps."""

    solved: float
    greedy_solved: float
    steps: int


def solved_share(
    model: CharLm,
    problems: Sequence[WarmupExample],
    *,
    num_samples: int,
    temperature: float,
    generator: torch.Generator,
) -> float:
    """Share of samples that equal the demonstrations exactly, each turn sampled after the demonstrated ones.

    Raises:
        RecordError: a text holds an unknown character, or is longer than the model's context.
    """
    turns = [problem.turns() for problem in problems]
    expected = [turn for _, turn in chain.from_iterable(turns)]
    completions = generate(
        model,
        [context for context, _ in chain.from_iterable(turns)],
        num_samples=num_samples,
        max_new_tokens=max(len(encode_completion(turn)) for turn in expected),
        temperature=temperature,
        generator=generator,
    )
    # A truncated completion is longer than any answer, so it never counts as right.
    right = [
        decode(completion.tokens) == expected[row // num_samples]
        for row, completion in enumerate(completions)
    ]
    num_solved, first = 0, 0
    for of_problem in turns:
        rows = [
            right[(first + turn) * num_samples : (first + turn + 1) * num_samples]
            for turn in range(len(of_problem))
        ]
        num_solved += sum(map(all, zip(*rows, strict=True)))
        first += len(of_problem)
    return num_solved / (len(problems) * num_samples)


def supervised_warmup(
    model: CharLm,
    examples: Sequence[WarmupExample],
    heldout: Sequence[WarmupExample],
    settings: WarmupSettings,
    *,
    generator: torch.Generator,
    report: Callable[[WarmupProgress], None] = lambda _: None,
) -> WarmupResult:
    """Train ``model`` in place on demonstrations until it solves enough of the ``heldout`` ones.

    The same generator state, model and data give the same parameters. ``report`` receives every evaluation.

    Raises:
        ConfigError: there are no demonstrations, or none held out.
        RecordError: a text holds an unknown character, or is longer than the model's context.
        WarmupError: ``max_steps`` were not enough.
    """
    if not examples or not heldout:
        raise ConfigError(
            f"A warm-up needs demonstrations, and some held out; there are {len(examples)} and {len(heldout)}",
            why="demonstrations.jsonl of the run folder has too few different ones",
            fix="write more, or start in a new run folder to generate them again",
        )
    measured = heldout[: settings.heldout_problems]
    shown = [example.tokens() for example in examples]
    data = pack_completions(
        [encode_prompt(example.prompt) for example in examples],
        [tokens for tokens, _ in shown],
        group_index=range(len(examples)),
        chosen=[np.array(chosen, dtype=np.bool_) for _, chosen in shown],
    )
    optimizer = AdamW(
        dict(model.named_parameters()),
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
    )
    solved = 0.0
    for step in range(1, settings.max_steps + 1):
        rows_B = torch.randint(len(examples), (settings.batch_size,), generator=generator)
        batch = data.rows(rows_B).to(model.device)
        loss = -completion_logprobs(model, batch).sum() / batch.mask_BT.sum()
        optimizer.learning_rate = settings.learning_rate * min(1.0, step / settings.ramp_steps)
        metrics = gradient_step(Loss(total=loss, metrics={}), optimizer, max_grad_norm=settings.max_grad_norm)
        if step % settings.evaluate_every_steps == 0 or step == settings.max_steps:
            solved = solved_share(
                model, measured, num_samples=settings.heldout_samples, temperature=1.0, generator=generator
            )
            report(WarmupProgress(steps=step, loss=metrics["loss"], solved=solved))
            if solved >= settings.stop_at_solved:
                greedy = solved_share(model, measured, num_samples=1, temperature=0.0, generator=generator)
                return WarmupResult(solved=solved, greedy_solved=greedy, steps=step)
    raise WarmupError(
        f"After {settings.max_steps} steps of warm-up {solved:.0%} of the held-out demonstrations are reproduced, "
        f"not {settings.stop_at_solved:.0%}",
        why="too few steps or demonstrations, or a model too small for the task",
        fix="raise warmup.max_steps or lower warmup.stop_at_solved",
    )
