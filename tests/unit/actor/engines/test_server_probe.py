"""The probe: the answers that it expects, and the errors that it detects."""

import math
from pathlib import Path

import pytest
import torch

from tests.unit.models.tiny_llama import CONTEXT, VOCABULARY, library_model, make_folder, open_model
from tidegate.actor.engines.server_port import ProbeAnswer
from tidegate.actor.engines.server_probe import (
    TEMPERATURE,
    TOLERANCES,
    Expected,
    LocalProbe,
    probe_error,
    probe_tokens,
)
from tidegate.core.errors import RecordError


def answer_of(folder: Path, *, temperature: float = TEMPERATURE) -> ProbeAnswer:
    """The answer of a server with this folder's weights, computed by the library."""
    tokens = torch.tensor([probe_tokens(VOCABULARY, context_length=CONTEXT)])
    with torch.no_grad():
        logits = library_model(folder)(tokens).logits[0]
    prompt = torch.log_softmax(logits[:-1], dim=-1).gather(1, tokens[0, 1:, None])[:, 0]
    return ProbeAnswer(
        tuple(float(logprob) for logprob in prompt),
        7,
        float(torch.log_softmax(logits[-1] / temperature, dim=-1)[7]),
    )


def test_the_same_weights_agree(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", tied=False)
    model = open_model(folder, trains=False)
    expected = LocalProbe(model).expect(model.to_arrays())
    assert probe_error(expected, answer_of(folder)) < TOLERANCES["float32"] / 10


def test_logprobs_of_another_temperature_than_was_drawn_at_do_not(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", tied=False)
    model = open_model(folder, trains=False)
    expected = LocalProbe(model).expect(model.to_arrays())
    assert probe_error(expected, answer_of(folder, temperature=1.0)) > TOLERANCES["float32"]


@pytest.mark.parametrize(
    "name",
    [
        "lm_head.weight",
        "model.embed_tokens.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.1.self_attn.k_proj.weight",
        "model.layers.1.mlp.down_proj.weight",
    ],
)
def test_any_tensor_in_the_wrong_order_is_detected(tmp_path: Path, name: str) -> None:
    folder = make_folder(tmp_path / "model", tied=False)
    model = open_model(folder, trains=False)
    arrays = model.to_arrays()
    expected = LocalProbe(model).expect(arrays | {name: arrays[name][::-1].copy()})
    assert probe_error(expected, answer_of(folder)) > 10 * TOLERANCES["float32"]


def test_the_prompt_fits_any_model_and_repeats_no_token() -> None:
    assert len(probe_tokens(64, context_length=8)) == 7
    tokens = probe_tokens(49152, context_length=4096)
    assert len(set(tokens)) == len(tokens)
    assert max(tokens) < 49152


def test_an_answer_about_something_else_is_refused() -> None:
    expected = Expected(torch.zeros(3), torch.zeros(5))
    with pytest.raises(RecordError):
        probe_error(expected, ProbeAnswer((0.0, 0.0), 1, 0.0))
    with pytest.raises(RecordError):
        probe_error(expected, ProbeAnswer((0.0, 0.0, 0.0), 5, 0.0))


@pytest.mark.parametrize("answer", [ProbeAnswer((math.nan,), 1, 0.0), ProbeAnswer((0.0,), 1, math.nan)])
def test_logprobs_that_are_no_numbers_are_no_agreement(answer: ProbeAnswer) -> None:
    expected = Expected(torch.zeros(1), torch.zeros(5))
    assert not probe_error(expected, answer) <= TOLERANCES["bfloat16"]
