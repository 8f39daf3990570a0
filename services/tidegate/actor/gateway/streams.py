"""Answers as server-sent events: text as soon as it is final, tool calls once they are complete."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from aiohttp import web

from tidegate.actor.gateway.calls import Part
from tidegate.actor.gateway.errors import error_body
from tidegate.actor.gateway.requests import CallOptions
from tidegate.actor.gateway.responses import (
    CallAnswer,
    Envelope,
    called_delta,
    chat_chunk,
    text_chunk,
    usage_of,
)
from tidegate.actor.gateway.tool_text import OPENINGS, ToolStyle
from tidegate.actor.gateway.writing import sure_length
from tidegate.core.errors import TidegateError

_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


class Events:
    """One response; its headers are sent with the first event, so that an earlier error has its own status."""

    def __init__(self, http: web.Request) -> None:
        self._http = http
        self.response = web.StreamResponse(headers=_HEADERS)

    async def send(self, event: dict[str, Any], *, name: str = "") -> None:
        """One event, with a name where the API gives it one."""
        await self._write(msgspec.json.encode(event), name=name)

    async def end(self) -> web.StreamResponse:
        """The last event, and the end of the response."""
        await self._write(b"[DONE]")
        await self.response.write_eof()
        return self.response

    async def _write(self, data: bytes, *, name: str = "") -> None:
        if not self.response.prepared:
            await self.response.prepare(self._http)
        named = f"event: {name}\n".encode() if name else b""
        await self.response.write(named + b"data: " + data + b"\n\n")


async def send_chat(
    http: web.Request,
    envelope: Envelope,
    parts: AsyncGenerator[Part],
    options: CallOptions,
    *,
    style: ToolStyle | None,
) -> web.StreamResponse:
    """A chat completion; ``style``: how the reply may call tools, None if it may not.

    Raises:
        TidegateError: the engine's, before the first piece; later ones are an event.
    """
    events = Events(http)
    openings = (*options.stops, *(() if style is None else (OPENINGS[style],)))
    sent = 0
    try:
        async with aclosing(parts):
            async for part in parts:
                if not events.response.prepared:
                    await events.send(chat_chunk(envelope, {"role": "assistant", "content": ""}))
                if isinstance(part, CallAnswer):
                    await _finish_chat(events, envelope, part, options, sent=sent)
                    continue
                sure = sure_length(part.text, openings=openings)
                if sure > sent:
                    await events.send(chat_chunk(envelope, {"content": part.text[sent:sure]}))
                    sent = sure
    except TidegateError as error:
        return await _failed(events, error)
    return await events.end()


async def _finish_chat(
    events: Events, envelope: Envelope, answer: CallAnswer, options: CallOptions, *, sent: int
) -> None:
    if answer.reply.content[sent:]:
        await events.send(chat_chunk(envelope, {"content": answer.reply.content[sent:]}))
    if answer.reply.calls:
        await events.send(chat_chunk(envelope, called_delta(answer.reply)))
    await events.send(chat_chunk(envelope, {}, finish_reason=answer.finish_reason))
    if options.include_usage:
        await events.send({**envelope.around("chat.completion.chunk", []), "usage": usage_of([answer])})


async def send_text(
    http: web.Request, envelope: Envelope, parts: AsyncGenerator[Part], options: CallOptions
) -> web.StreamResponse:
    """A completion.

    Raises:
        TidegateError: the engine's, before the first piece; later ones are an event.
    """
    events = Events(http)
    sent = 0
    try:
        async with aclosing(parts):
            async for part in parts:
                done = isinstance(part, CallAnswer)
                text = part.draft.text if isinstance(part, CallAnswer) else part.text
                sure = len(text) if done else sure_length(text, openings=options.stops)
                if done or sure > sent:
                    reason = part.finish_reason if isinstance(part, CallAnswer) else ""
                    await events.send(text_chunk(envelope, text[sent:sure], finish_reason=reason))
                    sent = max(sent, sure)
                if isinstance(part, CallAnswer) and options.include_usage:
                    await events.send({**envelope.around("text_completion", []), "usage": usage_of([part])})
    except TidegateError as error:
        return await _failed(events, error)
    return await events.end()


async def _failed(events: Events, error: TidegateError) -> web.StreamResponse:
    if not events.response.prepared:
        raise error
    await events.send(error_body(error))
    return await events.end()
