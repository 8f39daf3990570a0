import math

import numpy as np
import pytest
import torch

from tidegate.core.errors import ConfigError, RecordError
from tidegate.models.char_lm import CharLm, CharLmSpec
from tidegate.models.char_tokenizer import EOS
from tidegate.models.completion_batch import completion_logprobs, pack_completions
from tidegate.models.sampling import Generation, SampledCompletion, generate

SPEC = CharLmSpec(d_model=16, num_layers=2, num_heads=2, context_length=16)
PROMPTS = [[1, 5, 6, 7], [1, 9], [1, 4, 4, 4, 8, 10]]
NUM_SAMPLES = 4


def make_model(seed: int, *, eos_bias: float = 0.0) -> CharLm:
    """A peaked random policy; ``eos_bias`` makes it end sooner."""
    model = CharLm(SPEC, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        model.token_embedding.weight.mul_(50.0)
        model.position_embedding.weight.mul_(50.0)
        model.final_norm.bias.fill_(1.0)
        model.head.weight[EOS] += eos_bias / SPEC.d_model
    return model


def begin(model: CharLm, *, seed: int = 0, max_new_tokens: int = 10, temperature: float = 1.0) -> Generation:
    return Generation(
        model,
        PROMPTS,
        num_samples=NUM_SAMPLES,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        generator=torch.Generator().manual_seed(seed),
    )


def finish(generation: Generation) -> list[SampledCompletion]:
    while not generation.done:
        generation.step()
    return generation.completions()


def recomputed_logprobs(
    model: CharLm, completions: list[SampledCompletion], *, temperature: float = 1.0
) -> list[np.ndarray[tuple[int], np.dtype[np.float32]]]:
    """What a learner computes of the same tokens, in one padded batch."""
    groups = [row // NUM_SAMPLES for row in range(len(completions))]
    batch = pack_completions(PROMPTS, [completion.tokens for completion in completions], group_index=groups)
    with torch.no_grad():
        logprobs_BT = completion_logprobs(model, batch, temperature=temperature).numpy()
    return [logprobs_BT[row, : len(completion.tokens)] for row, completion in enumerate(completions)]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_behavior_logprobs_equal_a_full_forward_pass(temperature: float) -> None:
    model = make_model(0, eos_bias=2.0)
    completions = finish(begin(model, temperature=temperature))
    # Rows must end at different steps, or compaction would go untested.
    assert len({len(completion.tokens) for completion in completions}) > 3
    for completion, expected in zip(
        completions, recomputed_logprobs(model, completions, temperature=temperature), strict=True
    ):
        np.testing.assert_allclose(completion.behavior_logprobs, expected, atol=1e-5)


def test_completions_end_at_eos_or_at_the_limit_and_nowhere_else() -> None:
    completions = finish(begin(make_model(0, eos_bias=2.0)))
    assert len(completions) == len(PROMPTS) * NUM_SAMPLES
    assert {completion.finish_reason for completion in completions} == {"stop", "length"}
    for completion in completions:
        tokens = completion.tokens.tolist()
        assert completion.tokens.dtype == np.int32
        assert completion.behavior_logprobs.dtype == np.float32
        assert len(tokens) == len(completion.behavior_logprobs)
        assert EOS not in tokens[:-1]
        assert (tokens[-1] == EOS) == (completion.finish_reason == "stop")
        assert completion.finish_reason == "stop" or len(tokens) == 10


def test_weights_swapped_between_tokens_give_each_token_the_logprob_of_its_own_version() -> None:
    old, new = make_model(0), make_model(1)
    serving = CharLm(SPEC)
    serving.load_arrays(old.to_arrays())
    generation = begin(serving)
    for _ in range(3):
        generation.step()
    serving.load_arrays(new.to_arrays())
    generation.refresh_cache()
    completions = finish(generation)
    by_old = recomputed_logprobs(old, completions)
    by_new = recomputed_logprobs(new, completions)
    longer = 0
    for completion, old_logprobs, new_logprobs in zip(completions, by_old, by_new, strict=True):
        expected = np.concatenate([old_logprobs[:3], new_logprobs[3:]])
        np.testing.assert_allclose(completion.behavior_logprobs, expected, atol=1e-5)
        longer += len(completion.tokens) > 4 and not np.allclose(
            old_logprobs[3:], new_logprobs[3:], atol=1e-2
        )
    assert longer > 0


def test_swap_without_refresh_keeps_the_cache_of_the_older_version() -> None:
    old, new = make_model(0), make_model(1)
    serving = CharLm(SPEC)
    serving.load_arrays(old.to_arrays())
    generation = begin(serving, max_new_tokens=4)
    for _ in range(2):
        generation.step()
    serving.load_arrays(new.to_arrays())
    completions = finish(generation)
    row = next(row for row, completion in enumerate(completions) if len(completion.tokens) == 4)
    tokens = torch.tensor(completions[row].tokens[None, :], dtype=torch.int64)
    with torch.no_grad():
        # The twin: old parameters read prompt and first token, new ones what follows, behind the old keys and values.
        _, cache = old(torch.tensor([PROMPTS[row // NUM_SAMPLES]]))
        _, cache = old(tokens[:, :1], cache=cache)
        hidden, _ = new(tokens[:, 1:3], cache=cache)
        expected = new.next_logprobs(hidden[0])[[0, 1], tokens[0, 2:]].numpy()
    np.testing.assert_allclose(completions[row].behavior_logprobs[2:], expected, atol=1e-5)
    by_new = recomputed_logprobs(new, completions)[row]
    assert not np.allclose(completions[row].behavior_logprobs[2:], by_new[2:], atol=1e-3)


def test_refresh_under_the_same_weights_changes_nothing() -> None:
    model = make_model(0, eos_bias=2.0)
    undisturbed = finish(begin(model))
    generation = begin(model)
    generation.refresh_cache()
    while not generation.done:
        generation.step()
        generation.refresh_cache()
    for completion, expected in zip(generation.completions(), undisturbed, strict=True):
        np.testing.assert_array_equal(completion.tokens, expected.tokens)
        np.testing.assert_allclose(completion.behavior_logprobs, expected.behavior_logprobs, atol=1e-5)


def test_first_swap_may_come_before_the_first_token() -> None:
    serving = make_model(0)
    generation = begin(serving)
    serving.load_arrays(make_model(1).to_arrays())
    completions = finish(generation)
    for completion, expected in zip(
        completions, recomputed_logprobs(make_model(1), completions), strict=True
    ):
        np.testing.assert_allclose(completion.behavior_logprobs, expected, atol=1e-5)


def test_greedy_takes_the_likeliest_token_of_each_prefix() -> None:
    model = make_model(0)
    completions = finish(begin(model, temperature=0.0, max_new_tokens=5))
    for row, completion in enumerate(completions):
        assert not completion.behavior_logprobs.any()
        prefix = list(PROMPTS[row // NUM_SAMPLES])
        for token in completion.tokens.tolist():
            with torch.no_grad():
                hidden, _ = model(torch.tensor([prefix]))
                assert token == int(model.next_logprobs(hidden[0, -1]).argmax())
            prefix.append(token)


def test_samples_follow_the_policy() -> None:
    model = make_model(0)
    completions = generate(
        model,
        PROMPTS[:1],
        num_samples=20_000,
        max_new_tokens=1,
        temperature=1.0,
        generator=torch.Generator().manual_seed(0),
    )
    with torch.no_grad():
        hidden, _ = model(torch.tensor(PROMPTS[:1]))
        probabilities = model.next_logprobs(hidden[0, -1]).exp().numpy()
    counts = np.bincount(
        [int(completion.tokens[0]) for completion in completions], minlength=len(probabilities)
    )
    # Five standard deviations of each count, and one for the rarest.
    allowed = 5.0 * np.sqrt(20_000 * probabilities * (1 - probabilities)) + 1.0
    assert (np.abs(counts - 20_000 * probabilities) <= allowed).all()


def test_same_seed_same_completions() -> None:
    model = make_model(0)
    first, second = finish(begin(model, seed=4)), finish(begin(model, seed=4))
    other = finish(begin(model, seed=5))
    assert [completion.tokens.tolist() for completion in first] == [c.tokens.tolist() for c in second]
    assert [completion.tokens.tolist() for completion in first] != [c.tokens.tolist() for c in other]


def test_steps_count_the_position_that_is_written_next() -> None:
    generation = begin(make_model(0, eos_bias=-100.0), max_new_tokens=3)
    assert (generation.num_steps, generation.num_unfinished, generation.done) == (0, 12, False)
    generation.step()
    assert (generation.num_steps, generation.num_unfinished, generation.done) == (1, 12, False)
    with pytest.raises(RecordError, match="12 completions are unfinished"):
        generation.completions()
    finish(generation)
    assert (generation.num_steps, generation.done) == (3, True)


@pytest.mark.parametrize(
    ("num_samples", "max_new_tokens", "temperature"),
    [(0, 1, 1.0), (1, 0, 1.0), (1, 1, -0.1), (1, 1, math.nan), (1, 1, math.inf)],
)
def test_senseless_requests_are_refused(num_samples: int, max_new_tokens: int, temperature: float) -> None:
    with pytest.raises(ConfigError):
        generate(
            make_model(0),
            PROMPTS,
            num_samples=num_samples,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            generator=torch.Generator(),
        )


def test_completion_that_could_outgrow_the_context_is_refused_before_it_starts() -> None:
    begin(make_model(0), max_new_tokens=10)
    with pytest.raises(RecordError, match="needs a context of 17 tokens"):
        begin(make_model(0), max_new_tokens=11)


@pytest.mark.parametrize("prompts", [[], [[]], [[1, 999]]])
def test_malformed_prompts_are_refused(prompts: list[list[int]]) -> None:
    with pytest.raises(RecordError):
        generate(
            make_model(0),
            prompts,
            num_samples=1,
            max_new_tokens=1,
            temperature=1.0,
            generator=torch.Generator(),
        )
