import msgspec
import pytest
import torch

from tidegate.core.errors import ConfigError, RecordError
from tidegate.learner.warmup import (
    WarmupError,
    WarmupProgress,
    solved_share,
    supervised_warmup,
    turns_of,
)
from tidegate.learner.warmup_pairs import WarmupExample, encode_example
from tidegate.learner.warmup_settings import WarmupSettings
from tidegate.models.char_lm import CharLm, CharLmSpec
from tidegate.models.char_tokenizer import EOS, CharTokenizer, encode

# Repeat a two-letter text: learned in some dozen steps, also for texts that were never shown.
LETTERS = "abcd"
TEXTS = [first + second for first in LETTERS for second in LETTERS]
EXAMPLES = [WarmupExample(prompt=f"{text}=", completion=text) for text in TEXTS if text not in ("ab", "dc")]
HELDOUT = [WarmupExample(prompt=f"{text}=", completion=text) for text in ("ab", "dc")]
SETTINGS = WarmupSettings(
    stop_at_solved=0.6, max_steps=400, batch_size=32, learning_rate=1e-2, heldout_samples=20
)


def make_model() -> CharLm:
    spec = CharLmSpec(d_model=16, num_layers=1, num_heads=2, context_length=8)
    return CharLm(spec, generator=torch.Generator().manual_seed(0))


def share(model: CharLm, problems: list[WarmupExample]) -> float:
    return solved_share(model, problems, num_samples=1, temperature=0.0, generator=torch.Generator())


def test_warmup_stops_once_enough_is_solved_on_problems_it_was_not_shown() -> None:
    model = make_model()
    evaluations: list[WarmupProgress] = []
    result = supervised_warmup(
        model,
        EXAMPLES,
        HELDOUT,
        SETTINGS,
        generator=torch.Generator().manual_seed(0),
        report=evaluations.append,
    )
    assert result.solved >= 0.6
    assert result.steps == evaluations[-1].steps < 400
    assert all(evaluation.solved < 0.6 for evaluation in evaluations[:-1])
    assert [evaluation.steps for evaluation in evaluations] == list(range(10, result.steps + 1, 10))
    assert evaluations[-1].loss < evaluations[0].loss


def test_same_seed_makes_the_same_policy() -> None:
    models = [make_model(), make_model()]
    for model in models:
        supervised_warmup(model, EXAMPLES, HELDOUT, SETTINGS, generator=torch.Generator().manual_seed(1))
    first, second = (model.to_arrays() for model in models)
    assert all((first[name] == second[name]).all() for name in first)


def test_warmup_that_misses_its_target_fails() -> None:
    hopeless = msgspec.structs.replace(SETTINGS, max_steps=3)
    with pytest.raises(WarmupError, match=r"After 3 steps .* not 60%"):
        supervised_warmup(make_model(), EXAMPLES, HELDOUT, hopeless, generator=torch.Generator())


@pytest.mark.parametrize(("examples", "heldout"), [([], HELDOUT), (EXAMPLES, [])])
def test_empty_dataset_is_refused(examples: list[WarmupExample], heldout: list[WarmupExample]) -> None:
    with pytest.raises(ConfigError, match="needs demonstrations, and some held out"):
        supervised_warmup(make_model(), examples, heldout, SETTINGS, generator=torch.Generator())


def test_demonstration_longer_than_the_context_is_refused() -> None:
    long = [WarmupExample(prompt="aaaaaa=", completion="aaaaaa")]
    with pytest.raises(RecordError, match="longer than the model's context"):
        supervised_warmup(make_model(), long, HELDOUT, SETTINGS, generator=torch.Generator())


def test_right_text_that_does_not_end_is_not_solved() -> None:
    model = make_model()
    with torch.no_grad():
        model.final_norm.weight.zero_()
        model.final_norm.bias.fill_(1.0)
        model.head.weight[encode("a")[0]] = 10.0
    assert share(model, [WarmupExample(prompt="=", completion="a")]) == 0.0
    with torch.no_grad():
        model.head.weight[EOS] = 20.0
    assert share(model, [WarmupExample(prompt="=", completion="")]) == 1.0


def conversation(text: str) -> WarmupExample:
    """Say the first letter, hear the second, say both."""
    return WarmupExample(prompt=f"{text[0]}=", completion=text[0], exchanges=((text[1], text),))


def test_replies_of_an_episode_are_context_without_a_loss() -> None:
    encoded = encode_example(CharTokenizer(), conversation("ab"))
    assert encoded.tokens.tolist() == [*encode("a"), EOS, *encode("b"), *encode("ab"), EOS]
    assert encoded.chosen.tolist() == [True, True, False, True, True, True]
    contexts = [(len(context), turn) for context, turn in turns_of(conversation("ab"))]
    assert contexts == [(3, "a"), (6, "ab")]


def test_an_episode_is_solved_when_every_turn_of_it_is() -> None:
    spec = CharLmSpec(d_model=16, num_layers=1, num_heads=2, context_length=12)
    model = CharLm(spec, generator=torch.Generator().manual_seed(0))
    examples = [conversation(text) for text in TEXTS if text not in ("ab", "dc")]
    heldout = [conversation("ab"), conversation("dc")]
    before = solved_share(
        model, heldout, num_samples=20, temperature=1.0, generator=torch.Generator().manual_seed(0)
    )
    result = supervised_warmup(model, examples, heldout, SETTINGS, generator=torch.Generator().manual_seed(0))
    assert before < 0.1
    assert result.solved >= 0.6
    first_turns = [WarmupExample(each.prompt, each.completion) for each in heldout]
    assert share(model, first_turns) >= share(model, heldout)
