from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.unit.models.tiny_llama import CONTEXT, VOCABULARY, library_model, make_folder, open_model
from tidegate.core.errors import ConfigError, RecordError
from tidegate.core.records import Array
from tidegate.models.completion_batch import CompletionBatch, completion_logprobs, pack_completions
from tidegate.models.transformers_lm import VALUE_HEAD_PREFIX, TransformersLm

PROMPTS = [[1, 5, 6, 7], [1, 9], [1, 4, 4, 4, 8, 10]]
# Rows of several groups, of unequal lengths, not in the order of their prompts.
COMPLETIONS = [[5, 2], [6, 63, 8, 2], [3], [9, 9, 9], [40, 2]]
GROUP_INDEX = [2, 0, 1, 1, 0]


@pytest.fixture(scope="module", params=["tied", "untied"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("llama"), tied=request.param == "tied")


def batch_of_all() -> CompletionBatch:
    return pack_completions(PROMPTS, COMPLETIONS, group_index=GROUP_INDEX, vocabulary_size=VOCABULARY)


def shake(model: TransformersLm, *, seed: int = 7) -> None:
    """Parameters as after training: a fresh adapter or critic says nothing."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.trainable().values():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)


def chosen(logits: Tensor, completion: Sequence[int]) -> Tensor:
    """Logprobs of a completion at the end of its text."""
    logprobs = logits[0, -len(completion) - 1 : -1].float().log_softmax(dim=-1)
    return logprobs[torch.arange(len(completion)), torch.tensor(completion)]


def separate_rows(model: TransformersLm) -> list[Tensor]:
    """The slow twin: the library's own forward, one row at a time, without cache or padding."""
    network: Any = model.network
    return [
        chosen(network(torch.tensor([PROMPTS[group] + completion])).logits, completion)
        for completion, group in zip(COMPLETIONS, GROUP_INDEX, strict=True)
    ]


def backward(loss: Tensor) -> None:
    loss.backward()  # pyright: ignore[reportUnknownMemberType] (torch)


def test_ragged_rows_behind_shared_prompts_equal_the_librarys_own_forward(folder: Path) -> None:
    library, model = library_model(folder), open_model(folder)
    logprobs_BT = completion_logprobs(model, batch_of_all())
    for row, (completion, group) in enumerate(zip(COMPLETIONS, GROUP_INDEX, strict=True)):
        expected = chosen(library(torch.tensor([PROMPTS[group] + completion])).logits, completion)
        torch.testing.assert_close(logprobs_BT[row, : len(completion)], expected, atol=1e-5, rtol=0)
        assert not logprobs_BT[row, len(completion) :].any()


@pytest.mark.parametrize(("lora_rank", "attention"), [(0, "auto"), (4, "eager")])
def test_shared_prompts_give_the_gradient_of_separate_rows(
    folder: Path, lora_rank: int, attention: str
) -> None:
    model = open_model(folder, lora_rank=lora_rank, attention=attention)
    twin = open_model(folder, lora_rank=lora_rank)
    shake(model)
    twin.load_arrays(model.to_arrays())
    backward(completion_logprobs(model, batch_of_all()).sum())
    for row in separate_rows(twin):
        backward(row.sum())
    for name, parameter in model.trainable().items():
        torch.testing.assert_close(parameter.grad, twin.trainable()[name].grad, atol=1e-4, rtol=1e-4)


def test_reading_in_pieces_equals_reading_at_once(folder: Path) -> None:
    model = open_model(folder)
    tokens = torch.randint(VOCABULARY, (3, 9), generator=torch.Generator().manual_seed(1))
    whole, _ = model(tokens)
    first, cache = model(tokens[:, :4])
    second, cache = model(tokens[:, 4:7], cache=cache)
    third, fourth = model(tokens[:, 7:8], cache=cache)
    last, _ = model(tokens[:, 8:], cache=fourth)
    torch.testing.assert_close(torch.cat([first, second, third, last], dim=1), whole, atol=1e-5, rtol=0)


def test_attention_with_additive_masks_equals_attention_with_boolean_ones(folder: Path) -> None:
    model, eager = open_model(folder), open_model(folder, attention="eager")
    torch.testing.assert_close(
        completion_logprobs(eager, batch_of_all()),
        completion_logprobs(model, batch_of_all()),
        atol=1e-5,
        rtol=0,
    )


def test_temperature_divides_the_logits(folder: Path) -> None:
    model = open_model(folder)
    hidden, _ = model(torch.tensor([PROMPTS[0]]))
    logits = library_model(folder)(torch.tensor([PROMPTS[0]])).logits
    torch.testing.assert_close(
        model.next_logprobs(hidden, temperature=2.0), (logits / 2.0).log_softmax(dim=-1), atol=1e-5, rtol=0
    )
    each = torch.tensor([[[0.5], [1.0], [2.0], [3.0]]])
    torch.testing.assert_close(
        model.next_logprobs(hidden, temperature=each), (logits / each).log_softmax(dim=-1), atol=1e-5, rtol=0
    )


def test_text_longer_than_the_context_is_refused(folder: Path) -> None:
    with pytest.raises(RecordError, match="9 tokens is longer than the model's context of 8"):
        open_model(folder, context_length=8)(torch.ones(1, 9, dtype=torch.int64))


def test_a_context_that_the_model_does_not_reach_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=f"longer than the {CONTEXT} tokens"):
        open_model(folder, context_length=CONTEXT + 1)


def test_full_training_publishes_all_weights_and_tied_ones_once(folder: Path) -> None:
    model = open_model(folder)
    arrays = model.to_arrays()
    tied = model.network.get_parameter("lm_head.weight") is model.network.get_parameter(
        "model.embed_tokens.weight"
    )
    assert tied == ("lm_head.weight" not in arrays)
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.float32)}
    assert all(parameter.requires_grad for parameter in model.trainable().values())


def test_parameters_survive_the_way_through_arrays_and_tied_ones_stay_tied(folder: Path) -> None:
    source, target = open_model(folder), open_model(folder, trains=False)
    shake(source)
    target.load_arrays(source.to_arrays())
    torch.testing.assert_close(
        completion_logprobs(target, batch_of_all()),
        completion_logprobs(source, batch_of_all()),
        atol=0,
        rtol=0,
    )
    for own, expected in zip(separate_rows(target), separate_rows(source), strict=True):
        torch.testing.assert_close(own, expected, atol=0, rtol=0)


def test_fresh_adapters_change_nothing_and_trained_ones_do(folder: Path) -> None:
    plain, model = open_model(folder), open_model(folder, lora_rank=4)
    expected = completion_logprobs(plain, batch_of_all())
    torch.testing.assert_close(completion_logprobs(model, batch_of_all()), expected, atol=0, rtol=0)
    shake(model)
    assert (completion_logprobs(model, batch_of_all()) - expected).abs().max() > 0.01


def test_the_reference_is_the_model_without_its_adapters(folder: Path) -> None:
    model = open_model(folder, lora_rank=4)
    before = completion_logprobs(model, batch_of_all())
    shake(model)
    trained = completion_logprobs(model, batch_of_all())
    reference = model.as_reference()
    assert reference is not None
    with reference:
        torch.testing.assert_close(completion_logprobs(model, batch_of_all()), before, atol=0, rtol=0)
    torch.testing.assert_close(completion_logprobs(model, batch_of_all()), trained, atol=0, rtol=0)
    assert all(parameter.requires_grad for parameter in model.trainable().values())


def test_a_fully_trained_model_has_no_reference_of_its_own(folder: Path) -> None:
    assert open_model(folder).as_reference() is None


def test_adapters_are_all_that_is_trained_and_published(folder: Path) -> None:
    model = open_model(folder, lora_rank=4)
    own = {id(parameter) for parameter in model.trainable().values()}
    assert {id(parameter) for parameter in model.parameters() if parameter.requires_grad} == own
    # Two layers with seven linear layers of two matrices each; the head has none.
    assert len(model.to_arrays()) == 28
    assert "model.layers.0.self_attn.q_proj.lora_A.weight" in model.to_arrays()


def test_adapters_are_scaled_by_alpha_over_rank(folder: Path) -> None:
    model = open_model(folder, lora_rank=4, lora_alpha=6.0, lora_targets=("q_proj",))
    shake(model)
    arrays, plain = model.to_arrays(), open_model(folder)
    assert len(arrays) == 4
    with torch.no_grad():
        for layer in range(2):
            name = f"model.layers.{layer}.self_attn.q_proj"
            product = arrays[f"{name}.lora_B.weight"] @ arrays[f"{name}.lora_A.weight"] * (6.0 / 4)
            plain.trainable()[f"{name}.weight"].add_(torch.tensor(product))
    torch.testing.assert_close(
        completion_logprobs(model, batch_of_all()),
        completion_logprobs(plain, batch_of_all()),
        atol=1e-4,
        rtol=0,
    )


def test_the_same_generator_gives_the_same_adapters(folder: Path) -> None:
    first, second, third = (open_model(folder, lora_rank=2, seed=seed).to_arrays() for seed in (5, 5, 6))
    name = "model.layers.1.mlp.up_proj.lora_A.weight"
    np.testing.assert_array_equal(first[name], second[name])
    assert (first[name] != third[name]).any()


def test_a_target_that_no_layer_has_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"'qproj'.*no linear layer.*q_proj"):
        open_model(folder, lora_rank=2, lora_targets=("k_proj", "qproj"))


def test_a_model_that_only_generates_has_no_gradients(folder: Path) -> None:
    for rank in (0, 2):
        model = open_model(folder, trains=False, lora_rank=rank, value_head=True)
        assert not any(parameter.requires_grad for parameter in model.parameters())


def test_a_critic_starts_at_nothing_and_is_published_with_the_rest(folder: Path) -> None:
    model = open_model(folder, lora_rank=2, value_head=True)
    hidden, _ = model(torch.tensor([PROMPTS[0]]))
    assert torch.equal(model.state_values(hidden), torch.zeros(1, 4))
    assert model.has_value_head
    assert {f"{VALUE_HEAD_PREFIX}weight", f"{VALUE_HEAD_PREFIX}bias"} < model.to_arrays().keys()
    assert not open_model(folder).has_value_head


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_engine_and_learner_compute_the_same_in_bfloat16(folder: Path, lora_rank: int) -> None:
    learner = open_model(folder, dtype="bfloat16", lora_rank=lora_rank)
    engine = open_model(folder, dtype="bfloat16", lora_rank=lora_rank, trains=False, seed=1)
    shake(learner)
    engine.load_arrays(learner.to_arrays())
    assert all(parameter.dtype == torch.float32 for parameter in learner.trainable().values())
    assert next(engine.network.parameters()).dtype == torch.bfloat16
    assert learner(torch.tensor([PROMPTS[0]]))[0].dtype == torch.bfloat16
    trained, served = (
        completion_logprobs(learner, batch_of_all()),
        completion_logprobs(engine, batch_of_all()),
    )
    assert trained.dtype == served.dtype == torch.float32
    torch.testing.assert_close(trained, served, atol=0, rtol=0)
    backward(trained.sum())
    assert all(parameter.grad is not None for parameter in learner.trainable().values())


def test_published_arrays_do_not_change_with_the_model(folder: Path) -> None:
    model = open_model(folder)
    arrays = model.to_arrays()
    before = {name: array.copy() for name, array in arrays.items()}
    shake(model)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, before[name])


def without(arrays: dict[str, Array], name: str) -> dict[str, Array]:
    return {key: array for key, array in arrays.items() if key != name}


def test_parameters_that_do_not_fit_are_named_and_change_nothing(folder: Path) -> None:
    model, other = open_model(folder, lora_rank=4), open_model(folder, lora_rank=4, seed=3)
    shake(other)
    before, arrays = model.to_arrays(), other.to_arrays()
    name = "model.layers.0.mlp.up_proj.lora_B.weight"
    for wrong, problem in (
        (without(arrays, name), f"tensor '{name}' is missing"),
        (arrays | {"tail": np.zeros(1, np.float32)}, "tensor 'tail' is unknown"),
        (arrays | {name: np.zeros((2, 4), np.float32)}, r"has the shape \(2, 4\), not \(48, 4\)"),
        (arrays | {name: arrays[name].astype(np.float64)}, "is float64, not float32"),
    ):
        with pytest.raises(RecordError, match=problem):
            model.load_arrays(wrong)
    for key, array in model.to_arrays().items():
        np.testing.assert_array_equal(array, before[key])
    model.check_arrays(arrays)
    with pytest.raises(RecordError, match="LoRA of rank 4"):
        model.check_arrays(open_model(folder, lora_rank=2).to_arrays())
