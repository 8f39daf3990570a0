"""Supervised warm-up: the starting policy of a language-model run, trained on demonstrations.

Reinforcement learning needs reward differences inside a group, and a policy that solves nothing has none. A small model
stops as soon as it reproduces enough held-out demonstrations, a pretrained one when its loss on them no longer falls;
they are never trained on.

Shapes: B demonstrations of a batch, T tokens of a completion.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain

import msgspec
import torch
from torch import Tensor

from tidegate.core.errors import ConfigError, TidegateError
from tidegate.core.records import Array
from tidegate.learner.optim.adam import AdamW
from tidegate.learner.optim.gradients import gradient_step_of_sum
from tidegate.learner.warmup_pairs import (
    EncodedExample,
    EpochDraws,
    WarmupExample,
    encode_example,
    packed,
    passes_of,
)
from tidegate.learner.warmup_settings import WarmupSettings
from tidegate.models.causal_lm import CausalLm
from tidegate.models.char_lm import CharLm
from tidegate.models.char_tokenizer import CharTokenizer, decode, encode, encode_completion, encode_prompt
from tidegate.models.completion_batch import CompletionBatch, completion_logprobs
from tidegate.models.sampling import generate

# Defaults of a ``char_lm``, and of a pretrained model with adapters and without.
SMALL_LEARNING_RATE, SMALL_BATCH_SIZE = 3e-3, 256
ADAPTERS_LEARNING_RATE, WHOLE_LEARNING_RATE, PRETRAINED_BATCH_SIZE = 1e-4, 1e-5, 16


class WarmupError(TidegateError):
    """The warm-up ended without a policy that reinforcement learning could start from."""

    status = "FAILED_PRECONDITION"


class WarmupProgress(msgspec.Struct, frozen=True):
    """One evaluation on the held-out demonstrations, after so many gradient steps.

    ``loss``: of the last step, in nats a token. ``solved``: share that a small model reproduces; ``heldout_loss``: of a
    pretrained model, in nats a token.
    """

    steps: int
    loss: float
    solved: float = 0.0
    heldout_loss: float | None = None


class WarmupResult(msgspec.Struct, frozen=True):
    """Solved share of the held-out problems at temperature 1, number of steps, tokens with a loss."""

    solved: float
    steps: int
    tokens: int


class FineTuned(msgspec.Struct, frozen=True):
    """A pretrained model's held-out loss in nats a token, before and after ``steps``, and their tokens with a loss."""

    loss_before: float
    loss_after: float
    steps: int
    tokens: int


class _StepDone(msgspec.Struct, frozen=True):
    """``is_due``: an evaluation follows it."""

    number: int
    loss: float
    tokens: int
    is_due: bool


def turns_of(example: WarmupExample) -> list[tuple[list[int], str]]:
    """Each turn of a small model with its context.

    Raises:
        RecordError: a text holds an unknown character.
    """
    context = encode_prompt(example.prompt)
    turns = [(context, example.completion)]
    for reply, turn in example.exchanges:
        context = [*context, *encode_completion(turns[-1][1]), *encode(reply)]
        turns.append((context, turn))
    return turns


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
    turns = [turns_of(problem) for problem in problems]
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


@torch.no_grad()
def mean_loss(
    model: CausalLm, passes: Sequence[CompletionBatch], *, between: Callable[[], None] = lambda: None
) -> float:
    """Loss in nats for each token that the policy chose. ``between`` is called before each pass."""
    total, num_tokens = 0.0, 0
    for batch in passes:
        between()
        total -= float(completion_logprobs(model, batch.to(model.device)).sum())
        num_tokens += int(batch.mask_BT.sum())
    return total / num_tokens


def supervised_warmup(
    model: CharLm,
    examples: Sequence[WarmupExample],
    heldout: Sequence[WarmupExample],
    settings: WarmupSettings,
    *,
    generator: torch.Generator,
    report: Callable[[WarmupProgress], None] = lambda _: None,
) -> WarmupResult:
    """Train a small ``model`` in place on demonstrations until it solves enough of the ``heldout`` ones.

    The same generator state, model and data give the same parameters. ``report`` receives every evaluation.

    Raises:
        ConfigError: there are no demonstrations, or none held out.
        RecordError: a text holds an unknown character, or is longer than the model's context.
        WarmupError: ``max_steps`` were not enough.
    """
    check_some(examples, heldout)
    measured = heldout[: settings.heldout_problems]
    tokenizer = CharTokenizer()
    data = packed(
        [encode_example(tokenizer, example) for example in examples], vocabulary_size=model.vocabulary_size
    )
    learning_rate = settings.learning_rate or SMALL_LEARNING_RATE
    batch_size = settings.batch_size or SMALL_BATCH_SIZE
    optimizer = AdamW(
        dict(model.named_parameters()), learning_rate=learning_rate, weight_decay=settings.weight_decay
    )

    def draw() -> list[CompletionBatch]:
        return [data.rows(torch.randint(len(examples), (batch_size,), generator=generator))]

    solved, tokens = 0.0, 0
    for step in _steps(model, optimizer, draw, settings, learning_rate=learning_rate):
        tokens += step.tokens
        if not step.is_due:
            continue
        solved = solved_share(
            model, measured, num_samples=settings.heldout_samples, temperature=1.0, generator=generator
        )
        report(WarmupProgress(steps=step.number, loss=step.loss, solved=solved))
        if solved >= settings.stop_at_solved:
            return WarmupResult(solved=solved, steps=step.number, tokens=tokens)
    raise WarmupError(
        f"After {settings.max_steps} steps of warm-up {solved:.0%} of the held-out demonstrations are reproduced, "
        f"not {settings.stop_at_solved:.0%}",
        why="too few steps or demonstrations, or a model too small for the task",
        fix="raise warmup.max_steps or lower warmup.stop_at_solved",
    )


def fine_tune(
    model: CausalLm,
    optimizer: AdamW,
    examples: Sequence[EncodedExample],
    heldout: Sequence[EncodedExample],
    settings: WarmupSettings,
    *,
    pass_tokens: int,
    generator: torch.Generator,
    report: Callable[[WarmupProgress], None] = lambda _: None,
    between: Callable[[int], None] = lambda _: None,
) -> FineTuned:
    """Train a pretrained ``model`` in place until its loss on ``heldout`` stops falling; it keeps the lowest's weights.

    ``optimizer``: of its trained parameters, with the learning rate to reach. ``pass_tokens``: tokens, padding
    included, whose activations are in memory at once. ``report`` receives every evaluation, one before the first step
    included; ``between`` is called before each pass with the number of steps done.

    Raises:
        ConfigError: there are no demonstrations, or none held out.
        RecordError: a token is outside of the vocabulary, or an example is longer than the model's context.
        WarmupError: the model's loss is no number before the first step.
    """
    check_some(examples, heldout)
    width, learning_rate = model.vocabulary_size, optimizer.learning_rate
    measured = passes_of(heldout[: settings.heldout_problems], tokens_max=pass_tokens, vocabulary_size=width)
    draws = EpochDraws(examples, batch_size=settings.batch_size or PRETRAINED_BATCH_SIZE, generator=generator)

    def draw() -> list[CompletionBatch]:
        return passes_of(draws.next(), tokens_max=pass_tokens, vocabulary_size=width)

    before = mean_loss(model, measured, between=partial(between, 0))
    if not math.isfinite(before):
        raise WarmupError(
            "The loss of the pretrained model on held-out demonstrations is no number",
            why="its weights or its activations are not finite",
            fix="check the folder of policy.path, or set policy.dtype to float32",
        )
    report(WarmupProgress(steps=0, loss=before, heldout_loss=before))
    best = FineTuned(loss_before=before, loss_after=before, steps=0, tokens=0)
    kept: dict[str, Array] = model.to_arrays()
    tokens, num_worse = 0, 0
    for step in _steps(model, optimizer, draw, settings, learning_rate=learning_rate, between=between):
        tokens += step.tokens
        if not step.is_due:
            continue
        loss = mean_loss(model, measured, between=partial(between, step.number))
        report(WarmupProgress(steps=step.number, loss=step.loss, heldout_loss=loss))
        if loss < best.loss_after:  # never of one that is no number
            best = msgspec.structs.replace(best, loss_after=loss, steps=step.number, tokens=tokens)
            kept, num_worse = model.to_arrays(), 0
        else:
            num_worse += 1
        if num_worse == settings.patience:
            break
    model.load_arrays(kept)
    return best


def check_some(examples: Sequence[object], heldout: Sequence[object]) -> None:
    """Refuse to train on nothing, or to measure on nothing.

    Raises:
        ConfigError: there are no demonstrations, or none held out.
    """
    if not examples or not heldout:
        raise ConfigError(
            f"A warm-up needs demonstrations, and some held out; there are {len(examples)} and {len(heldout)}",
            why="demonstrations.jsonl of the run folder has too few different ones",
            fix="write more, or start in a new run folder to generate them again",
        )


def _steps(
    model: CausalLm,
    optimizer: AdamW,
    draw: Callable[[], Sequence[CompletionBatch]],
    settings: WarmupSettings,
    *,
    learning_rate: float,
    between: Callable[[int], None] = lambda _: None,
) -> Iterator[_StepDone]:
    """At most ``max_steps`` gradient steps, each on the passes that ``draw`` returns."""
    for number in range(1, settings.max_steps + 1):
        passes = draw()
        tokens = sum(int(batch.mask_BT.sum()) for batch in passes)
        optimizer.learning_rate = learning_rate * min(1.0, number / settings.ramp_steps)
        metrics = gradient_step_of_sum(
            _losses(model, passes, num_tokens=tokens, between=partial(between, number - 1)),
            optimizer,
            max_grad_norm=settings.max_grad_norm,
        )
        is_due = number % settings.evaluate_every_steps == 0 or number == settings.max_steps
        yield _StepDone(number=number, loss=metrics["loss"], tokens=tokens, is_due=is_due)


def _losses(
    model: CausalLm, passes: Sequence[CompletionBatch], *, num_tokens: int, between: Callable[[], None]
) -> Iterable[Tensor]:
    """Each pass' part of the mean loss of all tokens that the policy chose."""
    for batch in passes:
        between()
        yield -completion_logprobs(model, batch.to(model.device)).sum() / num_tokens
