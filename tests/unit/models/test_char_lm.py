import numpy as np
import pytest
import torch

from tidegate.core.errors import ConfigError, RecordError
from tidegate.core.records import Array
from tidegate.models.char_lm import CharLm, CharLmSpec
from tidegate.models.char_tokenizer import PAD, VOCABULARY_SIZE
from tidegate.models.completion_batch import completion_logprobs, pack_completions

SPEC = CharLmSpec(d_model=16, num_layers=2, num_heads=2, context_length=12)
PROMPTS = [[1, 5, 6, 7], [1, 9], [1, 4, 4, 4, 8, 10]]
# Rows of several groups, of unequal lengths, not in the order of their prompts.
COMPLETIONS = [[5, 2], [6, 7, 8, 2], [3], [9, 9, 9], [4, 2]]
GROUP_INDEX = [2, 0, 1, 1, 0]


def make_model(seed: int = 0) -> CharLm:
    model = CharLm(SPEC, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        # Embeddings as large as after training, so that positions and context show in the logprobs.
        model.token_embedding.weight.mul_(50.0)
        model.position_embedding.weight.mul_(50.0)
    return model


def logprobs_by_full_forward(model: CharLm, prompt: list[int], completion: list[int]) -> torch.Tensor:
    """The slow twin: one row, one pass, no cache and no padding."""
    hidden, _ = model(torch.tensor([prompt + completion]))
    logprobs = model.next_logprobs(hidden[0, len(prompt) - 1 : -1])
    return logprobs[torch.arange(len(completion)), torch.tensor(completion)]


def test_shared_prompts_and_padding_change_no_logprob() -> None:
    model = make_model()
    batch = pack_completions(PROMPTS, COMPLETIONS, group_index=GROUP_INDEX)
    logprobs_BT = completion_logprobs(model, batch)
    for row, (completion, group) in enumerate(zip(COMPLETIONS, GROUP_INDEX, strict=True)):
        expected = logprobs_by_full_forward(model, PROMPTS[group], completion)
        torch.testing.assert_close(logprobs_BT[row, : len(completion)], expected, atol=1e-5, rtol=0)
        assert not logprobs_BT[row, len(completion) :].any()


def test_shared_prompts_give_the_gradient_of_separate_rows() -> None:
    model, twin = make_model(), make_model()
    batch = pack_completions(PROMPTS, COMPLETIONS, group_index=GROUP_INDEX)
    completion_logprobs(model, batch).sum().backward()  # pyright: ignore[reportUnknownMemberType] (torch)
    for completion, group in zip(COMPLETIONS, GROUP_INDEX, strict=True):
        logprobs_by_full_forward(twin, PROMPTS[group], completion).sum().backward()  # pyright: ignore[reportUnknownMemberType] (torch)
    for own, expected in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own.grad, expected.grad, atol=1e-5, rtol=1e-4)


def test_reading_in_pieces_equals_reading_at_once() -> None:
    model = make_model()
    tokens = torch.randint(VOCABULARY_SIZE, (3, 9), generator=torch.Generator().manual_seed(1))
    whole, _ = model(tokens)
    first, cache = model(tokens[:, :4])
    second, cache = model(tokens[:, 4:7], cache=cache)
    third, _ = model(tokens[:, 7:], cache=cache)
    torch.testing.assert_close(torch.cat([first, second, third], dim=1), whole, atol=1e-5, rtol=0)


def test_temperature_flattens_what_is_compared() -> None:
    model = make_model()
    batch = pack_completions([PROMPTS[0]], [[5]], group_index=[0])
    hidden, _ = model(torch.tensor([PROMPTS[0]]))
    expected = torch.log_softmax(model.head(hidden[0, -1]) / 2.0, dim=-1)[5]
    torch.testing.assert_close(completion_logprobs(model, batch, temperature=2.0)[0, 0], expected)


def test_selected_rows_keep_their_prompts_and_are_renumbered() -> None:
    model = make_model()
    batch = pack_completions(PROMPTS, COMPLETIONS, group_index=GROUP_INDEX)
    everything = completion_logprobs(model, batch)
    part = batch.rows(torch.tensor([0, 2, 3]))
    assert torch.equal(part.group_index_B, torch.tensor([1, 0, 0]))
    assert tuple(part.prompts_QP.shape) == (2, 6)
    assert tuple(part.tokens_BT.shape) == (3, 3)
    torch.testing.assert_close(completion_logprobs(model, part), everything[[0, 2, 3], :3], atol=1e-5, rtol=0)


def test_text_longer_than_the_context_is_refused() -> None:
    model = make_model()
    batch = pack_completions([[1] * 6], [[3] * 8], group_index=[0])
    with pytest.raises(RecordError, match="13 tokens is longer than the model's context of 12"):
        completion_logprobs(model, batch)


def test_padding_takes_no_place_in_the_context() -> None:
    # Padded, the first row would need 10 + 11 tokens; what counts are its 11.
    prompts, completions = [[1] * 10, [1]], [[3], [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 2]]
    model = make_model()
    logprobs_BT = completion_logprobs(model, pack_completions(prompts, completions, group_index=[0, 1]))
    for row in range(2):
        expected = logprobs_by_full_forward(model, prompts[row], completions[row])
        torch.testing.assert_close(logprobs_BT[row, : len(expected)], expected, atol=1e-5, rtol=0)


MALFORMED: list[tuple[list[list[int]], list[list[int]], list[int]]] = [
    ([], [], []),
    ([[1]], [], []),
    ([[]], [[3]], [0]),
    ([[1]], [[]], [0]),
    ([[1]], [[VOCABULARY_SIZE]], [0]),
    ([[1]], [[-1]], [0]),
    ([[1]], [[3]], [1]),
    ([[1]], [[3]], []),
]


@pytest.mark.parametrize(("prompts", "completions", "group_index"), MALFORMED)
def test_malformed_batches_are_refused(
    prompts: list[list[int]], completions: list[list[int]], group_index: list[int]
) -> None:
    with pytest.raises(RecordError):
        pack_completions(prompts, completions, group_index=group_index)


def test_padding_is_no_part_of_a_batch() -> None:
    batch = pack_completions(PROMPTS, COMPLETIONS, group_index=GROUP_INDEX)
    assert torch.equal(batch.mask_BT.sum(dim=1), torch.tensor([2, 4, 1, 3, 2]))
    assert (batch.tokens_BT[~batch.mask_BT] == PAD).all()


def test_parameters_survive_the_way_through_arrays() -> None:
    source, target = make_model(seed=1), make_model(seed=2)
    arrays = source.to_arrays()
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.float32)}
    target.load_arrays(arrays)
    for own, loaded in zip(source.parameters(), target.parameters(), strict=True):
        assert torch.equal(own, loaded)


def test_published_arrays_do_not_change_with_the_model() -> None:
    model = make_model()
    arrays = model.to_arrays()
    before = arrays["head.weight"].copy()
    with torch.no_grad():
        model.head.weight.add_(1.0)
    np.testing.assert_array_equal(arrays["head.weight"], before)


def test_read_only_arrays_can_be_loaded() -> None:
    arrays = make_model(seed=1).to_arrays()
    for array in arrays.values():
        array.flags.writeable = False
    make_model(seed=2).load_arrays(arrays)


def without(arrays: dict[str, Array], name: str) -> dict[str, Array]:
    return {key: array for key, array in arrays.items() if key != name}


def test_parameters_that_do_not_fit_are_named_and_change_nothing() -> None:
    model = make_model()
    before = model.to_arrays()
    other = make_model(seed=3).to_arrays()
    for arrays, problem in (
        (without(other, "head.weight"), "tensor 'head.weight' is missing"),
        (other | {"tail.weight": np.zeros(1, np.float32)}, "tensor 'tail.weight' is unknown"),
        (other | {"head.weight": np.zeros((2, 16), np.float32)}, r"has the shape \(2, 16\), not \(58, 16\)"),
        (other | {"head.weight": other["head.weight"].astype(np.float64)}, "is float64, not float32"),
    ):
        with pytest.raises(RecordError, match=problem):
            model.load_arrays(arrays)
    for name, array in model.to_arrays().items():
        np.testing.assert_array_equal(array, before[name])
    model.check_arrays(other)


def test_sizes_that_no_model_can_have_are_refused() -> None:
    with pytest.raises(ConfigError, match="not a multiple"):
        CharLmSpec(d_model=65, num_heads=4)
    with pytest.raises(ConfigError, match="positive sizes"):
        CharLmSpec(num_layers=0)


def test_the_same_generator_gives_the_same_weights() -> None:
    first, second, third = make_model(seed=5), make_model(seed=5), make_model(seed=6)
    assert torch.equal(first.head.weight, second.head.weight)
    assert not torch.equal(first.head.weight, third.head.weight)
