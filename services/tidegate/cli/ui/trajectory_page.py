"""What the page shows of one trajectory: its history, its texts, its group, and its tokens."""

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tidegate.cli.accounting import ledger_path
from tidegate.cli.token_gaps import gaps_of
from tidegate.cli.trajectory_history import read_trajectory_history, sentence
from tidegate.cli.ui.run_page import STORE_FOLDER
from tidegate.core.conversations import CONVERSATIONS, conversations_of
from tidegate.core.errors import ConfigError, RecordError
from tidegate.core.records import Array
from tidegate.launch.run_folder import read_plan
from tidegate.runtime.loading import load
from tidegate.trajectory_store import reading
from tidegate.trajectory_store.browsing import group_of
from tidegate.trajectory_store.exporting import held_tensors

# Tokens of one trajectory that the page draws; the rest is counted.
TOKENS_MAX = 8_000


def trajectory_of(folder: Path, trajectory_id: str) -> dict[str, Any]:
    """The history with its sentence, prompt, answer, completion, verdict, tool calls, and its group's completions.

    Raises:
        NotFoundError: the run never admitted it, or its row was folded.
        StaleFolderError, CorruptionError: the ledger cannot be read.
    """
    history = read_trajectory_history(folder, trajectory_id)
    answer: dict[str, Any] = {**msgspec.to_builtins(history), "sentence": sentence(history), "group": []}
    if history.state == "admitted":
        return answer
    record = reading.trajectory(ledger_path(folder), trajectory_id).trajectory
    group = group_of(folder / STORE_FOLDER, record.task_id) if record.group_size > 1 else []
    return {
        **answer,
        "prompt_id": record.prompt_id,
        "prompt": record.prompt,
        "answer": record.answer,
        "reward_components": record.reward_components,
        "verifier_log": record.verifier_log,
        "tool_calls": record.tool_calls,
        "sampler": record.sampler,
        "actor_id": record.actor_id,
        "finish_reason": record.finish_reason,
        "length_tokens": record.length_tokens,
        "group": group,
    }


def tokens_of(folder: Path, trajectory_id: str) -> dict[str, Any]:
    """The tokens of a completion: text, version's place among the spans, log-probability, whether the policy chose it.

    ``gap``: of the learner's log-probability from it, in nats, where the update that made ``gaps_version`` kept them;
    None without. A token that ``begins`` a further conversation of an agent's episode continues another prompt than the
    one before.
    ``tokens`` is empty where the payload is not kept any more or holds no tokens, and ``why`` says so.

    Raises:
        NotFoundError: the ledger has no such trajectory.
        ConfigError: the tokenizer of the run's model cannot be opened here.
    """
    tensors = held_tensors(folder / STORE_FOLDER, trajectory_id)
    if tensors is None:
        return {
            "tokens": [],
            "more": 0,
            "why": "the payload is no longer kept (trajectory_store.retain_bytes_max)",
        }
    if "tokens" not in tensors:
        return {"tokens": [], "more": 0, "why": "this trajectory is a segment of environment steps"}
    record = reading.trajectory(ledger_path(folder), trajectory_id).trajectory
    tokens: list[int] = tensors["tokens"].tolist()
    chosen = _per_token(tensors, "chosen", default=True, count=len(tokens))
    logprobs = _per_token(tensors, "behavior_logprobs", default=0.0, count=len(tokens))
    versions = np.zeros(len(tokens), np.int32)
    for place, span in enumerate(record.spans):
        versions[span.start : span.stop] = place
    texts = _texts(folder, tokens[:TOKENS_MAX])
    found = gaps_of(folder, trajectory_id)
    gaps = found.gaps if found is not None and len(found.gaps) <= len(tokens) else []
    gaps += [None] * (len(tokens) - len(gaps))
    begins = (
        {part.tokens.start for part in conversations_of(tensors)[1:]}
        if CONVERSATIONS in tensors
        else set[int]()
    )
    return {
        "tokens": [
            {
                "text": text,
                "span": int(versions[index]),
                "logprob": _finite(logprobs[index]),
                "gap": gaps[index],
                "chosen": bool(chosen[index]),
                "begins": index in begins,
            }
            for index, text in enumerate(texts)
        ],
        "spans": [str(span.version) for span in record.spans],
        "gaps_version": found.version if found is not None else "",
        "more": max(0, len(tokens) - TOKENS_MAX),
        "why": "",
    }


def _per_token(tensors: dict[str, Array], name: str, *, default: float, count: int) -> list[float]:
    tensor = tensors.get(name)
    return [default] * count if tensor is None or len(tensor) != count else tensor.tolist()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _texts(folder: Path, tokens: list[int]) -> list[str]:
    """Each token's own text. A token that is part of a character has a replacement character for it."""
    _, plan = read_plan(folder)
    # It imports torch, which nothing else of the page needs.
    tokenizer = load("tidegate.models.language_models:open_tokenizer")(plan.file.policy)
    return [_text(tokenizer, token) for token in tokens]


def _text(tokenizer: Any, token: int) -> str:
    if token in tokenizer.stop_ids:
        return "⏎end"
    try:
        return tokenizer.decode([token])
    except (RecordError, ConfigError):
        return f"<{token}>"
