"""A response as server-sent events, in the order and with the names of the Responses API."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from aiohttp import web

from tidegate.actor.gateway.calls import Part
from tidegate.actor.gateway.errors import error_body
from tidegate.actor.gateway.responses import CallAnswer, Envelope
from tidegate.actor.gateway.responses_api import (
    Item,
    ResponsesRequest,
    message_item,
    output_items,
    response_answer,
    text_part,
)
from tidegate.actor.gateway.streams import Events
from tidegate.actor.gateway.tool_text import OPENINGS, ToolStyle
from tidegate.actor.gateway.writing import sure_length
from tidegate.core.errors import TidegateError


class _ResponseEvents:
    """Numbered events of one response; the message's item is opened with its first text."""

    def __init__(self, events: Events, envelope: Envelope) -> None:
        self._events = events
        self._envelope = envelope
        self._number = 0
        self._text = ""
        self.message_is_open = False

    async def send(self, kind: str, **fields: Any) -> None:
        await self._events.send({"type": kind, "sequence_number": self._number, **fields}, name=kind)
        self._number += 1

    def _place(self) -> dict[str, Any]:
        return {"item_id": f"msg_{self._envelope.answer_id}", "output_index": 0, "content_index": 0}

    async def say(self, text: str) -> None:
        if not self.message_is_open:
            self.message_is_open = True
            item = message_item(self._envelope, None, status="in_progress")
            await self.send("response.output_item.added", output_index=0, item=item)
            await self.send("response.content_part.added", **self._place(), part=text_part(""))
        if text:
            self._text += text
            await self.send("response.output_text.delta", **self._place(), delta=text, logprobs=[])

    async def close_message(self, item: Item) -> None:
        await self.send("response.output_text.done", **self._place(), text=self._text, logprobs=[])
        await self.send("response.content_part.done", **self._place(), part=text_part(self._text))
        await self.send("response.output_item.done", output_index=0, item=item)

    async def call(self, item: Item, *, output_index: int) -> None:
        started = {**item, "arguments": "", "status": "in_progress"}
        await self.send("response.output_item.added", output_index=output_index, item=started)
        place = {"item_id": item["id"], "output_index": output_index}
        arguments = item["arguments"]
        await self.send("response.function_call_arguments.delta", **place, delta=arguments)
        await self.send(
            "response.function_call_arguments.done", **place, arguments=arguments, name=item["name"]
        )
        await self.send("response.output_item.done", output_index=output_index, item=item)


async def send_response(
    http: web.Request,
    envelope: Envelope,
    request: ResponsesRequest,
    parts: AsyncGenerator[Part],
    *,
    style: ToolStyle | None,
    remember: Callable[[list[Item]], None],
) -> web.StreamResponse:
    """A response; ``style``: how the reply may call tools, None if it may not. ``remember`` gets its items.

    Raises:
        TidegateError: the engine's, before the first piece; later ones are an event.
    """
    events = Events(http)
    sender = _ResponseEvents(events, envelope)
    openings = () if style is None else (OPENINGS[style],)
    sent = 0
    try:
        async with aclosing(parts):
            async for part in parts:
                if not events.response.prepared:
                    started = response_answer(envelope, request)
                    await sender.send("response.created", response=started)
                    await sender.send("response.in_progress", response=started)
                if isinstance(part, CallAnswer):
                    items = output_items(envelope, part)
                    await _finish(sender, part, items, sent=sent)
                    remember(items)
                    ended = response_answer(envelope, request, answer=part, items=items)
                    await sender.send(f"response.{ended['status']}", response=ended)
                    continue
                sure = sure_length(part.text, openings=openings)
                # Space alone may turn out to stand before a call, and then is no message.
                if part.text[:sure].strip() and sure > sent:
                    await sender.say(part.text[sent:sure])
                    sent = sure
    except TidegateError as error:
        if not events.response.prepared:
            raise
        await sender.send("error", **error_body(error)["error"])
    return await events.end()


async def _finish(sender: _ResponseEvents, answer: CallAnswer, items: list[Item], *, sent: int) -> None:
    calls = items
    if items[0]["type"] == "message":
        await sender.say(answer.reply.content[sent:])
        await sender.close_message(items[0])
        calls = items[1:]
    for index, item in enumerate(calls, start=len(items) - len(calls)):
        await sender.call(item, output_index=index)
