"""The OpenAI API's answers: chat completions, completions, their streams, models."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tidegate.actor.gateway.tool_text import Reply
from tidegate.actor.gateway.writing import Draft


class CallAnswer(msgspec.Struct, frozen=True):
    """One choice, done. ``prompt_ids``: the tokens of the whole context."""

    draft: Draft
    reply: Reply
    prompt_ids: tuple[int, ...]

    @property
    def finish_reason(self) -> str:
        """As the API defines it: ``tool_calls`` for a reply that calls tools."""
        return "tool_calls" if self.reply.calls else self.draft.finish_reason


class Envelope(msgspec.Struct, frozen=True):
    """The fields that all parts of an answer share."""

    answer_id: str
    model: str
    created_at_s: int

    def around(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """An object of the API."""
        return {
            "id": self.answer_id,
            "object": kind,
            "created": self.created_at_s,
            "model": self.model,
            "choices": choices,
        }


def usage_of(answers: Sequence[CallAnswer]) -> dict[str, int]:
    """Tokens read and written; a prompt is read once, however many choices follow it."""
    prompt = len(answers[0].prompt_ids)
    completion = sum(len(answer.draft.tokens) for answer in answers)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def chat_answer(
    envelope: Envelope,
    answers: Sequence[CallAnswer],
    *,
    piece_of: Callable[[int], str] | None,
    token_ids: bool = False,
) -> dict[str, Any]:
    """A chat completion; with ``piece_of`` (a token's text) it contains logprobs, with ``token_ids`` the tokens."""
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "refusal": None, **_said(answer.reply)},
            "logprobs": None if piece_of is None else {"content": _chat_logprobs(answer.draft, piece_of)},
            "finish_reason": answer.finish_reason,
            **({"token_ids": list(answer.draft.tokens)} if token_ids else {}),
        }
        for index, answer in enumerate(answers)
    ]
    prompt = {"prompt_token_ids": list(answers[0].prompt_ids)} if token_ids else {}
    return {**envelope.around("chat.completion", choices), "usage": usage_of(answers), **prompt}


def text_answer(
    envelope: Envelope,
    answers: Sequence[CallAnswer],
    *,
    piece_of: Callable[[int], str] | None,
    token_ids: bool = False,
) -> dict[str, Any]:
    """A completion; with ``piece_of`` it contains logprobs, with ``token_ids`` the tokens."""
    choices = [
        {
            "index": index,
            "text": answer.draft.text,
            "logprobs": None if piece_of is None else _text_logprobs(answer.draft, piece_of),
            "finish_reason": answer.draft.finish_reason,
            **({"token_ids": list(answer.draft.tokens)} if token_ids else {}),
            **({"prompt_token_ids": list(answer.prompt_ids)} if token_ids else {}),
        }
        for index, answer in enumerate(answers)
    ]
    return {**envelope.around("text_completion", choices), "usage": usage_of(answers)}


def chat_chunk(envelope: Envelope, delta: dict[str, Any], *, finish_reason: str = "") -> dict[str, Any]:
    """One piece of a stream."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason or None}
    return envelope.around("chat.completion.chunk", [choice])


def text_chunk(envelope: Envelope, text: str, *, finish_reason: str = "") -> dict[str, Any]:
    """One piece of a stream."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason or None}
    return envelope.around("text_completion", [choice])


def called_delta(reply: Reply) -> dict[str, Any]:
    """All calls of a reply in one piece: they are known when it is done."""
    return {"tool_calls": [{"index": index, **call} for index, call in enumerate(_calls(reply))]}


def models_answer(names: Sequence[str], *, created_at_s: int) -> dict[str, Any]:
    """The models that the gateway lists."""
    return {"object": "list", "data": [model_answer(name, created_at_s=created_at_s) for name in names]}


def model_answer(name: str, *, created_at_s: int) -> dict[str, Any]:
    """One model."""
    return {"id": name, "object": "model", "created": created_at_s, "owned_by": "tidegate"}


def _said(reply: Reply) -> dict[str, Any]:
    if not reply.calls:
        return {"content": reply.content}
    return {"content": reply.content if reply.content.strip() else None, "tool_calls": _calls(reply)}


def _calls(reply: Reply) -> list[dict[str, Any]]:
    return [
        {
            "id": call.call_id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in reply.calls
    ]


def _chat_logprobs(draft: Draft, piece_of: Callable[[int], str]) -> list[dict[str, Any]]:
    return [
        {
            "token": (piece := piece_of(token)),
            "logprob": logprob,
            "bytes": list(piece.encode(errors="replace")),
            "top_logprobs": [],
        }
        for token, logprob in zip(draft.tokens, draft.logprobs, strict=True)
    ]


def _text_logprobs(draft: Draft, piece_of: Callable[[int], str]) -> dict[str, Any]:
    pieces = [piece_of(token) for token in draft.tokens]
    offsets: list[int] = []
    offset = 0
    for piece in pieces:
        offsets.append(offset)
        offset += len(piece)
    return {
        "tokens": pieces,
        "token_logprobs": list(draft.logprobs),
        "top_logprobs": None,
        "text_offset": offsets,
    }
