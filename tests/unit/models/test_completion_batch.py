import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from tidegate.core.errors import RecordError
from tidegate.models import completion_batch
from tidegate.models.char_lm import CharLm, CharLmSpec
from tidegate.models.completion_batch import (
    BatchConversation,
    CompletionBatch,
    completion_logprobs,
    completion_outputs,
    pack_completions,
)

PROMPTS = [[1, 5, 6, 7], [1, 9]]
COMPLETIONS = [[5, 2], [6, 7, 2, 30, 31, 8, 2], [9, 9, 9]]
GROUP_INDEX = [0, 1, 1]
# The second row: a turn of three tokens, a reply of two, a turn of two.
CHOSEN: list[ArrayLike | None] = [None, np.array([1, 1, 1, 0, 0, 1, 1], dtype=np.bool_), None]


def make_model(*, value_head: bool = False) -> CharLm:
    spec = CharLmSpec(d_model=16, num_layers=2, num_heads=2, context_length=12, value_head=value_head)
    model = CharLm(spec, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embedding" in name:
                parameter.mul_(50.0)
            if name.startswith("value_head"):
                parameter.normal_(generator=generator)
    return model


def packed() -> CompletionBatch:
    return pack_completions(PROMPTS, COMPLETIONS, group_index=GROUP_INDEX, chosen=CHOSEN)


def backward(loss: Tensor) -> None:
    loss.backward()  # pyright: ignore[reportUnknownMemberType] (torch)


def test_replies_are_read_and_not_trained() -> None:
    model, batch = make_model(), packed()
    everything = completion_logprobs(model, pack_completions(PROMPTS, COMPLETIONS, group_index=GROUP_INDEX))
    holes = completion_logprobs(model, batch)
    torch.testing.assert_close(holes[batch.mask_BT], everything[batch.mask_BT], atol=1e-6, rtol=0)
    assert torch.equal(holes[1, 3:5], torch.zeros(2))
    assert torch.equal(batch.mask_BT.sum(dim=1), torch.tensor([2, 5, 3]))
    assert torch.equal(batch.lengths_B, torch.tensor([2, 7, 3]))


def test_chosen_rows_keep_their_holes() -> None:
    model, batch = make_model(), packed()
    part = batch.rows(torch.tensor([1]))
    torch.testing.assert_close(
        completion_logprobs(model, part), completion_logprobs(model, batch)[1:2], atol=1e-6, rtol=0
    )


def test_logits_in_parts_give_the_same_logprobs_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = make_model(value_head=True), make_model(value_head=True)
    expected = completion_outputs(whole, packed(), temperature=0.7)
    backward(expected.square().sum())
    # Three tokens at a time, of ten.
    monkeypatch.setattr(completion_batch, "LOGITS_MAX", 3 * parts.vocabulary_size + 1)
    computed = completion_outputs(parts, packed(), temperature=0.7)
    backward(computed.square().sum())
    torch.testing.assert_close(computed, expected, atol=1e-6, rtol=0)
    for own, other in zip(parts.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, atol=1e-5, rtol=1e-5)


def test_no_more_logits_exist_at_once_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    sizes: list[int] = []
    next_logprobs = model.next_logprobs

    def counted(hidden: Tensor, *, temperature: float | Tensor = 1.0) -> Tensor:
        sizes.append(hidden.shape[:-1].numel() * model.vocabulary_size)
        return next_logprobs(hidden, temperature=temperature)

    monkeypatch.setattr(model, "next_logprobs", counted)
    monkeypatch.setattr(completion_batch, "LOGITS_MAX", 4 * model.vocabulary_size)
    completion_logprobs(model, packed())
    assert sizes == [4 * model.vocabulary_size, 4 * model.vocabulary_size, 2 * model.vocabulary_size]


def test_values_are_those_before_each_chosen_token() -> None:
    model, batch = make_model(value_head=True), packed()
    outputs = completion_outputs(model, batch)
    assert tuple(outputs.shape) == (3, 7, 3)
    hidden, _ = model(torch.tensor([PROMPTS[1] + COMPLETIONS[1]]))
    expected = model.state_values(hidden)[0, len(PROMPTS[1]) - 1 : -1]
    torch.testing.assert_close(
        outputs[1, :, 2], expected.masked_fill(~batch.mask_BT[1], 0.0), atol=1e-5, rtol=0
    )
    assert not outputs[0, 2:, 2].any()


def test_a_model_without_a_critic_has_no_column_of_values() -> None:
    assert tuple(completion_outputs(make_model(), packed()).shape) == (3, 7, 2)


@pytest.mark.parametrize("wrong", [[True], [1, 1], np.ones((2, 1), np.bool_)])
def test_what_was_chosen_is_one_bool_a_token(wrong: ArrayLike) -> None:
    with pytest.raises(RecordError, match="one bool per token"):
        pack_completions([[1]], [[3, 4]], group_index=[0], chosen=[wrong])


def test_ids_are_held_to_the_models_own_vocabulary() -> None:
    assert pack_completions([[1]], [[4000]], group_index=[0], vocabulary_size=4001).tokens_BT.max() == 4000
    with pytest.raises(RecordError, match="vocabulary of 4000"):
        pack_completions([[1]], [[4000]], group_index=[0], vocabulary_size=4000)


def test_what_prompts_begin_with_is_read_once_for_the_same_logprobs_and_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = [1, 5, 6, 7, 8]
    batch = pack_completions(
        [[*shared, 9], [*shared, 10, 11, 12], shared, [*shared, 9, 9]],
        [[5, 2], [6, 7, 2], [9, 2], [3]],
        group_index=[0, 1, 2, 3],
    )
    found: list[tuple[Tensor, dict[str, Tensor]]] = []
    for stem_tokens_min in (4, 1000):
        monkeypatch.setattr(completion_batch, "STEM_TOKENS_MIN", stem_tokens_min)
        model = make_model()
        logprobs = completion_logprobs(model, batch)
        backward(logprobs.square().sum())
        gradients = {name: value.grad for name, value in model.trainable().items() if value.grad is not None}
        found.append((logprobs.detach(), gradients))
    torch.testing.assert_close(found[0][0], found[1][0], atol=1e-6, rtol=0)
    for name, gradient in found[0][1].items():
        torch.testing.assert_close(gradient, found[1][1][name], atol=2e-5, rtol=1e-4, msg=name)


def test_entropies_are_those_of_the_distributions_that_tokens_were_drawn_from() -> None:
    model, batch = make_model(), packed()
    outputs = completion_outputs(model, batch, temperature=0.7)
    hidden, _ = model(torch.tensor([PROMPTS[1] + COMPLETIONS[1]]))
    logprobs = model.next_logprobs(hidden[0, len(PROMPTS[1]) - 1 : -1], temperature=0.7)
    expected = torch.distributions.Categorical(logits=logprobs).entropy()
    expected = expected.masked_fill(~batch.mask_BT[1], completion_batch.NOT_MEASURED)
    torch.testing.assert_close(outputs[1, :, 1], expected, atol=1e-5, rtol=0)
    (gradient,) = torch.autograd.grad(outputs[..., 1].sum(), [model.head.weight])
    assert not gradient.any(), "entropy is measured, not trained"


def test_a_large_vocabulary_measures_the_entropy_of_some_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = make_model(), packed()
    every = completion_outputs(model, batch)[..., 1][batch.mask_BT]
    monkeypatch.setattr(completion_batch, "ENTROPY_WORDS", -(-model.vocabulary_size // 3))
    some = completion_outputs(model, batch)[..., 1][batch.mask_BT]
    assert (some[::3] == every[::3]).all()
    assert (some[1::3] == completion_batch.NOT_MEASURED).all()


def of_one_conversation(model: CharLm, prompt: list[int], tokens: list[int]) -> Tensor:
    return completion_outputs(model, pack_completions([prompt], [tokens], group_index=[0]))[0]


# The first completion has two conversations, whose prompts differ; the third continues another prompt than the second.
SPLIT_PROMPTS = [[1, 5, 6, 7], [1, 9], [1, 9, 4, 4, 8]]
SPLIT_COMPLETIONS = [[5, 2, 6, 7, 2, 30], [6, 2, 3], [9, 9, 9, 4]]
SPLIT = [
    [BatchConversation(0, 2), BatchConversation(2, 4)],
    [BatchConversation(1, 3)],
    [BatchConversation(2, 4)],
]


def split() -> CompletionBatch:
    return pack_completions(SPLIT_PROMPTS, SPLIT_COMPLETIONS, group_index=[0, 1, 1], conversations=SPLIT)


def assert_each_token_has_the_outputs_of_its_conversation(
    model: CharLm, batch: CompletionBatch, rows: list[int]
) -> None:
    outputs = completion_outputs(model, batch)
    for place, row in enumerate(rows):
        start = 0
        for prompt, num_tokens in SPLIT[row]:
            tokens = SPLIT_COMPLETIONS[row][start : start + num_tokens]
            expected = of_one_conversation(model, SPLIT_PROMPTS[prompt], tokens)
            found = outputs[place, start : start + num_tokens]
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
            start += num_tokens
        assert not outputs[place, start:, 0].any()


@pytest.mark.parametrize("rows", [[0, 1, 2], [0], [2, 0], [1, 2], [1, 0, 0, 2, 0]])
def test_conversations_of_a_completion_do_not_see_each_other(rows: list[int]) -> None:
    model = make_model(value_head=True)
    part = split() if rows == [0, 1, 2] else split().rows(torch.tensor(rows))
    assert_each_token_has_the_outputs_of_its_conversation(model, part, rows)


def test_gradient_of_split_completions_is_that_of_their_conversations() -> None:
    together, alone = make_model(), make_model()
    backward(completion_logprobs(together, split()).sum())
    for row, parts in enumerate(SPLIT):
        start = 0
        for prompt, num_tokens in parts:
            tokens = SPLIT_COMPLETIONS[row][start : start + num_tokens]
            packed_alone = pack_completions([SPLIT_PROMPTS[prompt]], [tokens], group_index=[0])
            backward(completion_logprobs(alone, packed_alone).sum())
            start += num_tokens
    for ours, expected in zip(together.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, expected.grad, atol=1e-4, rtol=1e-4)


NOT_THEIRS: list[tuple[list[list[BatchConversation]], str]] = [
    ([[BatchConversation(0, 1)]], "have others"),
    ([[BatchConversation(0, 2), BatchConversation(0, 0)]], "have others"),
    ([[BatchConversation(1, 2)]], "none of the 1 prompts"),
    ([], "as many groups"),
    ([[]], "have others"),
]


@pytest.mark.parametrize(("conversations", "message"), NOT_THEIRS)
def test_conversations_that_are_not_a_completions_tokens_are_refused(
    conversations: list[list[BatchConversation]], message: str
) -> None:
    with pytest.raises(RecordError, match=message):
        pack_completions([[1]], [[3, 4]], group_index=[0], conversations=conversations)
