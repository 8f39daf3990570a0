"""The warm-up of a pretrained model, held against a plain loop of torch on the library's own model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)

from tests.unit.models.tiny_llama import VOCABULARY, library_model, make_folder, open_model
from tidegate.core.errors import ConfigError
from tidegate.learner.optim.adam import AdamW
from tidegate.learner.warmup import FineTuned, WarmupError, WarmupProgress, fine_tune, mean_loss
from tidegate.learner.warmup_pairs import EncodedExample, EpochDraws, passes_of
from tidegate.learner.warmup_settings import WarmupSettings
from tidegate.models.transformers_lm import TransformersLm

PASS_TOKENS = 64
SETTINGS = WarmupSettings(
    demonstrations="task", max_steps=8, batch_size=4, evaluate_every_steps=2, ramp_steps=4, weight_decay=0.1
)
LEARNING_RATE = 1e-3


def example(number: int) -> EncodedExample:
    """A prompt and an answer that repeats it, with a reply in between that is not trained on."""
    words = 3 + (np.arange(2 + number % 4) * (number + 5)) % 60
    tokens = np.concatenate([words, [7, 8], words])
    chosen = np.array([True] * len(words) + [False] * 2 + [True] * len(words))
    return EncodedExample(np.array([1, *words], np.int32), tokens.astype(np.int32), chosen)


EXAMPLES = [example(number) for number in range(10)]
HELDOUT = [example(number) for number in range(20, 23)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "llama", tied=False)


def tuned(
    model: TransformersLm, settings: WarmupSettings, *, learning_rate: float = LEARNING_RATE
) -> tuple[FineTuned, list[WarmupProgress]]:
    evaluations: list[WarmupProgress] = []
    result = fine_tune(
        model,
        AdamW(model.trainable(), learning_rate=learning_rate, weight_decay=settings.weight_decay),
        EXAMPLES,
        HELDOUT,
        settings,
        pass_tokens=PASS_TOKENS,
        generator=torch.Generator().manual_seed(3),
        report=evaluations.append,
    )
    return result, evaluations


def slow_loss(model: Any, examples: Sequence[EncodedExample]) -> torch.Tensor:
    """Mean cross-entropy of the chosen tokens, one text at a time."""
    losses: list[torch.Tensor] = []
    for each in examples:
        ids = torch.tensor(np.concatenate([each.prompt, each.tokens]).astype(np.int64))
        logits = model(input_ids=ids[None]).logits[0]
        first = len(each.prompt)
        lost = F.cross_entropy(logits[first - 1 : -1], ids[first:], reduction="none")
        losses.append(lost[torch.tensor(each.chosen)])
    return torch.cat(losses).mean()


def slow_tune(folder: Path) -> tuple[Any, list[float]]:
    model = library_model(folder)
    optimizer: Any = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, weight_decay=SETTINGS.weight_decay
    )
    generator = torch.Generator().manual_seed(3)
    heldout: list[float] = [float(slow_loss(model, HELDOUT))]
    left: list[int] = []
    for step in range(1, SETTINGS.max_steps + 1):
        left = left or [int(each) for each in torch.randperm(len(EXAMPLES), generator=generator)]
        drawn, left = left[:4], left[4:]
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * min(1.0, step / SETTINGS.ramp_steps)
        optimizer.zero_grad()
        slow_loss(model, [EXAMPLES[index] for index in drawn]).backward()  # pyright: ignore[reportUnknownMemberType]
        torch.nn.utils.clip_grad_norm_(model.parameters(), SETTINGS.max_grad_norm)
        optimizer.step()
        if step % SETTINGS.evaluate_every_steps == 0:
            heldout.append(float(slow_loss(model, HELDOUT)))
    return model, heldout


def test_all_weights_and_losses_are_those_of_a_plain_loop(folder: Path) -> None:
    twin, losses = slow_tune(folder)
    assert losses[-1] == min(losses), "the last weights are the ones that are kept"
    model = open_model(folder)
    result, evaluations = tuned(model, SETTINGS)
    assert [each.heldout_loss for each in evaluations] == pytest.approx(losses, abs=1e-5)
    assert result.loss_before == pytest.approx(losses[0], abs=1e-5)
    assert result.loss_after == pytest.approx(losses[-1], abs=1e-5)
    assert result.steps == evaluations[-1].steps == 8
    for name, parameter in twin.named_parameters():
        np.testing.assert_allclose(
            model.trainable()[name].detach(), parameter.detach(), atol=2e-5, err_msg=name
        )


def test_adapters_are_trained_alone(folder: Path) -> None:
    model = open_model(folder, lora_rank=4)
    base = {name: value.clone() for name, value in model.network.state_dict().items() if "lora" not in name}
    result, _ = tuned(model, SETTINGS, learning_rate=1e-2)
    assert result.loss_after < result.loss_before
    for name, value in model.network.state_dict().items():
        if "lora" not in name:
            assert torch.equal(value, base[name]), name


def test_it_ends_when_the_held_out_loss_stops_falling_and_keeps_the_lowest(folder: Path) -> None:
    model = open_model(folder)
    # So large that it never falls for long.
    settings = msgspec.structs.replace(SETTINGS, max_steps=400, patience=2, evaluate_every_steps=1)
    result, evaluations = tuned(model, settings, learning_rate=0.02)
    losses = [each.heldout_loss for each in evaluations if each.heldout_loss is not None]
    assert evaluations[-1].steps < 400
    assert result.loss_after == min(losses)
    assert losses.index(min(losses)) == result.steps == evaluations[-1].steps - 2
    kept = mean_loss(model, passes_of(HELDOUT, tokens_max=PASS_TOKENS, vocabulary_size=VOCABULARY))
    assert kept == pytest.approx(result.loss_after, abs=1e-6)


def test_a_loss_that_never_falls_leaves_the_model_as_it_was(folder: Path) -> None:
    model = open_model(folder)
    before = model.to_arrays()
    result, evaluations = tuned(model, msgspec.structs.replace(SETTINGS, ramp_steps=1), learning_rate=1.0)
    assert (result.steps, result.tokens, result.loss_after) == (0, 0, result.loss_before)
    assert evaluations[-1].steps == 6
    for name, array in model.to_arrays().items():
        np.testing.assert_array_equal(array, before[name])


def test_a_model_that_computes_no_numbers_is_refused(folder: Path) -> None:
    model = open_model(folder)
    with torch.no_grad():
        next(iter(model.trainable().values())).fill_(float("nan"))
    with pytest.raises(WarmupError, match="is no number"):
        tuned(model, SETTINGS)


@pytest.mark.parametrize(("examples", "heldout"), [([], HELDOUT), (EXAMPLES, [])])
def test_nothing_to_train_or_to_measure_on_is_refused(
    folder: Path, examples: list[EncodedExample], heldout: list[EncodedExample]
) -> None:
    model = open_model(folder)
    optimizer = AdamW(model.trainable(), learning_rate=LEARNING_RATE)
    with pytest.raises(ConfigError, match="needs demonstrations, and some held out"):
        fine_tune(model, optimizer, examples, heldout, SETTINGS, pass_tokens=64, generator=torch.Generator())


def test_passes_hold_each_example_once_within_their_tokens() -> None:
    passes = passes_of(EXAMPLES, tokens_max=PASS_TOKENS, vocabulary_size=VOCABULARY)
    assert sum(len(batch.lengths_B) for batch in passes) == len(EXAMPLES)
    assert len(passes) > 2
    for batch in passes:
        width = batch.prompts_QP.shape[1] + batch.tokens_BT.shape[1]
        assert len(batch.lengths_B) * width <= PASS_TOKENS
    alone = passes_of(EXAMPLES[:2], tokens_max=1, vocabulary_size=VOCABULARY)
    assert [len(batch.lengths_B) for batch in alone] == [1, 1]


def test_each_example_is_drawn_once_an_epoch() -> None:
    draws = EpochDraws(EXAMPLES, batch_size=4, generator=torch.Generator().manual_seed(0))
    epochs = [[id(each) for _ in range(3) for each in draws.next()] for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(id(each) for each in EXAMPLES)
    assert epochs[0] != epochs[1]
