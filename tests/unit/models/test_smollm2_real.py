"""The model that the package carries, for real: half a minute to make its folder, once a checkout."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.models.tiny_llama import library_model
from tidegate.models.char_tokenizer import PAD
from tidegate.models.completion_batch import completion_logprobs, pack_completions
from tidegate.models.model_folder import CACHE_DIR
from tidegate.models.smollm2 import make_smollm2_folder
from tidegate.models.transformers_lm import TransformersLm, TransformersLmSpec
from tidegate.models.transformers_tokenizer import TransformersTokenizer

pytestmark = [pytest.mark.extended, pytest.mark.timeout(600)]

CHECKOUT = Path(__file__).parents[3]
QUESTION = "What is the capital of France? Answer in one short sentence."
NUM_TOKENS = 16


@pytest.fixture(scope="session")
def folder() -> Path:
    return make_smollm2_folder(CHECKOUT / CACHE_DIR)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> TransformersTokenizer:
    return TransformersTokenizer(folder)


@pytest.fixture(scope="module")
def library(folder: Path) -> Any:
    return library_model(folder)


def greedy(model: TransformersLm, prompt: list[int], stop_ids: frozenset[int]) -> list[int]:
    tokens: list[int] = []
    with torch.no_grad():
        hidden, cache = model(torch.tensor([prompt]))
        while len(tokens) < NUM_TOKENS and not (tokens and tokens[-1] in stop_ids):
            tokens.append(int(model.next_logprobs(hidden[0, -1]).argmax()))
            hidden, cache = model(torch.tensor([tokens[-1:]]), cache=cache)
    return tokens


def test_it_answers_and_scores_as_the_library_does(
    folder: Path, tokenizer: TransformersTokenizer, library: Any
) -> None:
    model = TransformersLm(TransformersLmSpec(folder=str(folder), context_length=256), trains=False)
    prompt = tokenizer.encode_prompt(QUESTION)
    generated = library.generate(
        torch.tensor([prompt]), max_new_tokens=NUM_TOKENS, do_sample=False, pad_token_id=PAD
    )
    answer = generated[0, len(prompt) :].tolist()
    assert greedy(model, prompt, tokenizer.stop_ids) == answer
    assert "Paris" in tokenizer.decode(answer)

    rows = [answer, answer[:4], tokenizer.encode_reply("Are you sure?")]
    batch = pack_completions([prompt], rows, group_index=[0, 0, 0], vocabulary_size=model.vocabulary_size)
    with torch.no_grad():
        own = completion_logprobs(model, batch)
        for row, completion in enumerate(rows):
            logits = library(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
            expected = logits.log_softmax(dim=-1)[torch.arange(len(completion)), torch.tensor(completion)]
            assert float((own[row, : len(completion)] - expected).abs().mean()) <= 1e-4


def test_its_conversations_are_encoded_piece_by_piece(tokenizer: TransformersTokenizer) -> None:
    messages = (
        '[{"role": "user", "content": "What is 2+2?"}, {"role": "assistant", "content": "It is 4."},'
        ' {"role": "user", "content": "\\nAnd 3+3? "}]'
    )
    # The bytes of an answer between markup are those that the policy writes.
    answer = tokenizer.encode_reply("It is 4.")
    user = tokenizer.encode_reply("")
    start, end = user.index(1) + 3, len(user) - user.index(1) - 3
    written = [*answer[start : len(answer) - end], 2]
    assert tokenizer.decode(written) == "It is 4."
    pieces = tokenizer.encode_prompt("What is 2+2?") + written + tokenizer.encode_reply("\nAnd 3+3? ")
    assert pieces == tokenizer.encode_prompt(messages)
    assert tokenizer.stop_ids == {2}


def test_adapters_train_it(folder: Path, tokenizer: TransformersTokenizer) -> None:
    spec = TransformersLmSpec(folder=str(folder), context_length=256, dtype="bfloat16", lora_rank=4)
    model = TransformersLm(spec, trains=True, generator=torch.Generator().manual_seed(0))
    prompt, wanted = tokenizer.encode_prompt("What is 2+2?"), tokenizer.encode_reply("85")[3:6]
    batch = pack_completions([prompt], [wanted], group_index=[0], vocabulary_size=model.vocabulary_size)
    optimizer = torch.optim.Adam(model.trainable().values(), lr=1e-3)
    losses: list[float] = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = -completion_logprobs(model, batch).sum()
        loss.backward()  # pyright: ignore[reportUnknownMemberType] (torch)
        optimizer.step()  # pyright: ignore[reportUnknownMemberType] (torch)
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
