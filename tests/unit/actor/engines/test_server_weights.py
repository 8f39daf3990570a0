"""Policies as checkpoints for servers: untied, merged, whole, and not too many of them."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from tests.unit.models.tiny_llama import library_model, make_folder, open_model
from tidegate.actor.engines.server_weights import HEAD, ServerWeights, read_untied, write_folder
from tidegate.core.errors import RecordError
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.core.records import Array, PolicySnapshot
from tidegate.runtime.config import LoraConfig

TOKENS = torch.tensor([[1, 5, 9, 2, 33, 60]])


def snapshot(step: int, arrays: dict[str, Array]) -> PolicySnapshot:
    return PolicySnapshot(PolicyVersion(LineageName("0-a"), step), arrays)


def changed(arrays: dict[str, Array]) -> dict[str, Array]:
    noise = np.random.default_rng(3)
    return {
        name: (array + 0.1 * noise.standard_normal(array.shape)).astype(np.float32)
        for name, array in arrays.items()
    }


def open_weights(
    tmp_path: Path, *, tied: bool, rank: int = 0, dtype: Literal["float32", "bfloat16"] = "float32"
) -> tuple[Path, ServerWeights]:
    model = make_folder(tmp_path / "model", tied=tied)
    lora = LoraConfig(rank=rank, alpha=8.0)
    return model, ServerWeights(model, tmp_path / "weights", lora=lora, dtype=dtype)


def logits(folder: Path) -> Any:
    with torch.no_grad():
        return library_model(folder)(TOKENS).logits


@pytest.mark.parametrize("tied", [True, False])
def test_the_folder_to_start_from_is_the_model_with_a_head_of_its_own(tmp_path: Path, *, tied: bool) -> None:
    model, weights = open_weights(tmp_path, tied=tied)
    loaded = library_model(weights.start)
    assert not loaded.config.tie_word_embeddings
    assert loaded.lm_head.weight is not loaded.model.embed_tokens.weight
    torch.testing.assert_close(logits(weights.start), logits(model))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_written_version_computes_the_policys_logits(tmp_path: Path, *, tied: bool, rank: int) -> None:
    model, weights = open_weights(tmp_path, tied=tied, rank=rank)
    policy = open_model(model, trains=False, lora_rank=rank, lora_alpha=8.0, value_head=True)
    arrays = changed(policy.to_arrays())
    policy.load_arrays(arrays)
    weights.check(snapshot(1, arrays))
    folder = weights.write(snapshot(1, arrays))
    with torch.no_grad():
        hidden, _ = policy(TOKENS)
        expected = policy.next_logprobs(hidden)
    torch.testing.assert_close(torch.log_softmax(logits(folder), dim=-1), expected, atol=1e-4, rtol=1e-4)


def test_weights_are_of_the_policys_dtype(tmp_path: Path) -> None:
    _, weights = open_weights(tmp_path, tied=True, dtype="bfloat16")
    assert {tensor.dtype for tensor in read_untied(weights.start).values()} == {torch.bfloat16}


def test_only_the_folders_in_use_are_kept(tmp_path: Path) -> None:
    model, weights = open_weights(tmp_path, tied=True)
    arrays = open_model(model).to_arrays()
    folders = [weights.write(snapshot(step, arrays)) for step in range(3)]
    weights.drop_all_but(folders[2])
    assert sorted(path.name for path in (tmp_path / "weights").iterdir()) == ["0-a@2", "start"]


def test_folders_of_a_previous_actor_are_removed(tmp_path: Path) -> None:
    left = tmp_path / "weights" / "0-z@9"
    left.mkdir(parents=True)
    open_weights(tmp_path, tied=True)
    assert not left.exists()


def test_a_folder_is_written_atomically(tmp_path: Path) -> None:
    model = make_folder(tmp_path / "model", tied=True)
    tensors = read_untied(model) | {"spoilt": torch.zeros(2).expand(3, 2).to("meta")}
    with pytest.raises((NotImplementedError, RuntimeError)):
        write_folder(tmp_path / "folder", tensors, model=model, dtype="float32")
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model.layers.0.self_attn.q_proj.weight", (3, 3)),
        ("model.layers.9.self_attn.q_proj.weight", (32, 32)),
        ("model.layers.0.self_attn.q_proj.lora_A.weight", (5, 32)),
        ("model.layers.0.self_attn.q_proj.lora_B.weight", (32, 5)),
    ],
)
def test_tensors_of_another_model_are_refused(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    _, weights = open_weights(tmp_path, tied=True, rank=2)
    with pytest.raises(RecordError, match=name.rsplit(".", 2)[0]):
        weights.check(snapshot(1, {name: np.zeros(shape, dtype=np.float32)}))


def test_values_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    model, weights = open_weights(tmp_path, tied=False)
    arrays = open_model(model).to_arrays()
    arrays[HEAD][0, 0] = np.nan
    with pytest.raises(RecordError, match="not finite"):
        weights.check(snapshot(1, arrays))
