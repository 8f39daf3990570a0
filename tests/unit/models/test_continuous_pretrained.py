"""A pretrained model is written continuously with the logprobs that a learner computes of it."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.unit.models.tiny_llama import VOCABULARY, make_folder, open_model
from tidegate.models.completion_batch import completion_logprobs, pack_completions
from tidegate.models.continuous import ContinuousBatch, GenerationRow


@pytest.mark.slow
def test_ragged_rows_over_a_swap_have_the_logprobs_of_their_versions(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", tied=True)
    old = open_model(folder, lora_rank=4)
    new = open_model(folder, lora_rank=4)
    with torch.no_grad():
        for adapter in new.trainable().values():
            adapter.normal_(std=0.2, generator=torch.Generator().manual_seed(1))
    model = open_model(folder, trains=False, lora_rank=4)
    batch = ContinuousBatch(model, slots=3, waiting_max=16, tokens_per_pass=8, cache_bytes_max=1 << 22)
    contexts = [(1, 5, 6), (1, *range(3, 17)), (1, 9, 9, 9, 9)]
    rows = [
        GenerationRow(contexts[index % 3], 6 + 3 * index, 1.0, frozenset({2}), seed=index)
        for index in range(8)
    ]
    ids = batch.add(rows)
    tokens: dict[int, list[int]] = {row: [] for row in ids}
    logprobs: dict[int, list[float]] = {row: [] for row in ids}
    of_new: dict[int, list[bool]] = {row: [] for row in ids}
    steps = 0
    while batch.num_rows:
        if steps == 9:
            model.load_arrays(new.to_arrays())
            batch.refresh_cache()
        stepped = batch.step()
        for row, token, logprob in zip(stepped.rows, stepped.tokens, stepped.logprobs, strict=True):
            tokens[row].append(token)
            logprobs[row].append(logprob)
            of_new[row].append(steps >= 9)
        steps += 1
    assert any(len(set(versions)) == 2 for versions in of_new.values()), "the swap meets live rows"
    packed = pack_completions(
        contexts,
        [tokens[row] for row in ids],
        group_index=[index % 3 for index in range(8)],
        vocabulary_size=VOCABULARY,
    )
    with torch.no_grad():
        by_version = [completion_logprobs(policy, packed).numpy() for policy in (old, new)]
    for index, row in enumerate(ids):
        versions = np.array(of_new[row], dtype=np.intp)
        expected = np.stack(by_version)[versions, index, np.arange(len(versions))]
        np.testing.assert_allclose(logprobs[row], expected, atol=1e-5)
