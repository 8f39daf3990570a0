"""One call of an agent: messages to context, generation, record, answer."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TypeAlias

import msgspec

from tidegate.actor.engines.token_port import TokenEngine, TokenRequest
from tidegate.actor.gateway.chains import RecordedTurn
from tidegate.actor.gateway.config import GatewayConfig
from tidegate.actor.gateway.episodes import AgentEpisode, derived_seed
from tidegate.actor.gateway.errors import RefusedCallError
from tidegate.actor.gateway.formats import ChatFormat
from tidegate.actor.gateway.messages import ChatMessage, Tool, conversation_digests, read_messages, read_tools
from tidegate.actor.gateway.requests import CallOptions, ChatRequest, CompletionRequest
from tidegate.actor.gateway.responses import CallAnswer
from tidegate.actor.gateway.tool_text import Reply, read_reply
from tidegate.actor.gateway.writing import Draft, write
from tidegate.runtime.clock import Clock

Part: TypeAlias = Draft | CallAnswer


class Prepared(msgspec.Struct, frozen=True, eq=False):
    """A validated call: ``given`` after ``parent`` (or as the whole prompt) makes ``context``.

    ``callable_tools``: what the reply may call. ``ends_with``: the conversation that ends with a reply to it, from the
    reply and the text of all of its tokens; of a raw prompt also the one with the stop string that ended the reply, as
    agents write it again and the policy has written it already.
    """

    parent: RecordedTurn | None
    given: tuple[int, ...]
    context: tuple[int, ...]
    callable_tools: tuple[Tool, ...]
    ends_with: Callable[[Reply, str], Sequence[bytes | str]]


class Caller:
    """Answers the calls of all episodes; stateless."""

    def __init__(
        self, engine: TokenEngine, chat_format: ChatFormat, config: GatewayConfig, clock: Clock
    ) -> None:
        """``chat_format`` is that of the engine's tokenizer."""
        self._engine = engine
        self._format = chat_format
        self._config = config
        self._clock = clock

    def piece_of(self, token: int) -> str:
        """The text of one token."""
        return self._engine.tokenizer.decode([token])

    def prepare_chat(self, episode: AgentEpisode, request: ChatRequest) -> Prepared:
        """Find the conversation that a call extends, and tokenise what is new.

        Raises:
            RecordError: the call is invalid, or does not fit the model's context.
        """
        messages = read_messages(request.messages)
        tools = read_tools(request.tools or ())
        digests = conversation_digests(messages, tools)
        parent, num_known = episode.recorder.extended_by(digests)
        if parent is None:
            given = self._format.opening(messages, tools)
        else:
            ended = parent.tokens[-1] in self._engine.tokenizer.stop_ids
            given = self._format.continuation(messages, tools, num_known=num_known, ended=ended)

        def ends_with(reply: Reply, _written: str) -> list[bytes]:
            return [ChatMessage("assistant", reply.content, reply.calls).digest(digests[-1])]

        callable_tools = () if request.tool_choice == "none" else tools
        prepared = self._prepared(parent, given, callable_tools, ends_with)
        episode.answered(messages, now_s=self._clock.now_s())
        return prepared

    def prepare_text(self, episode: AgentEpisode, request: CompletionRequest) -> Prepared:
        """The same for a raw prompt, which extends the longest recorded text that it begins with.

        Raises:
            RecordError: the prompt is no text, invalid, or does not fit the model's context.
        """
        prompt = request.prompt
        if not isinstance(prompt, str):
            raise RefusedCallError("prompt is no text", param="prompt", fix="send one string")
        parent, num_known = episode.recorder.extended_by_text(prompt)
        read = self._format.opening_text if parent is None else self._format.continuation_text

        def ends_with(reply: Reply, written: str) -> list[str]:
            return [prompt + reply.content, prompt + written]

        return self._prepared(parent, read(prompt[num_known:]), (), ends_with)

    def _prepared(
        self,
        parent: RecordedTurn | None,
        given: list[int],
        callable_tools: tuple[Tool, ...],
        ends_with: Callable[[Reply, str], Sequence[bytes | str]],
    ) -> Prepared:
        context = (*(() if parent is None else parent.context()), *given)
        if len(context) >= self._engine.context_length:
            raise RefusedCallError(
                f"This conversation is {len(context)} tokens, and the model's context holds "
                f"{self._engine.context_length} with the reply",
                param="messages",
                code="context_length_exceeded",
                fix="send less, or raise policy.context_length",
            )
        return Prepared(parent, tuple(given), context, callable_tools, ends_with)

    async def answers(
        self, episode: AgentEpisode, prepared: Prepared, options: CallOptions, *, number: int
    ) -> list[CallAnswer]:
        """All choices of a call, recorded.

        Raises:
            TidegateError: the engine's; nothing is recorded then.
        """
        writing = [
            asyncio.create_task(self._written(episode, prepared, options, number=number, choice=choice))
            for choice in range(options.num_choices)
        ]
        try:
            drafts = await asyncio.gather(*writing)
        finally:
            for task in writing:
                task.cancel()
            await asyncio.gather(*writing, return_exceptions=True)
        return [self._recorded(episode, prepared, draft) for draft in drafts]

    async def parts(
        self, episode: AgentEpisode, prepared: Prepared, options: CallOptions, *, number: int
    ) -> AsyncGenerator[Part]:
        """Yield drafts of a call's one choice, then record and yield the answer.

        A call that its agent cancels is not recorded.
        """
        drafts = write(
            self._engine,
            self._request(episode, prepared, options, number=number, choice=0),
            stops=options.stops,
            watched=True,
        )
        async with aclosing(drafts):
            async for draft in drafts:
                yield self._recorded(episode, prepared, draft) if draft.finish_reason else draft

    async def _written(
        self, episode: AgentEpisode, prepared: Prepared, options: CallOptions, *, number: int, choice: int
    ) -> Draft:
        request = self._request(episode, prepared, options, number=number, choice=choice)
        async with aclosing(write(self._engine, request, stops=options.stops)) as drafts:
            async for draft in drafts:
                if draft.finish_reason:
                    return draft
        raise AssertionError("the last draft has a finish reason")

    def _request(
        self, episode: AgentEpisode, prepared: Prepared, options: CallOptions, *, number: int, choice: int
    ) -> TokenRequest:
        room = self._engine.context_length - len(prepared.context)
        # Mix the agent's seed with the episode's: a group of equal samples has no advantage.
        asked = number if options.seed is None else f"seed {options.seed}"
        return TokenRequest(
            request_id=f"{episode.episode_id}.{number}.{choice}",
            context=prepared.context,
            sampler=msgspec.structs.replace(
                episode.task.sampler, max_new_tokens=min(options.max_tokens, room)
            ),
            stop_ids=self._engine.tokenizer.stop_ids,
            seed=derived_seed(episode.seed, asked, choice),
        )

    def _recorded(self, episode: AgentEpisode, prepared: Prepared, draft: Draft) -> CallAnswer:
        reply = read_reply(
            draft.text, prepared.callable_tools, style=self._config.tool_calls, new_id=_new_call_id
        )
        episode.recorder.add(
            prepared.parent,
            ends=prepared.ends_with(reply, self._engine.tokenizer.decode(draft.tokens)),
            given=prepared.given,
            tokens=draft.tokens,
            logprobs=draft.logprobs,
            spans=draft.spans,
            finish_reason=draft.finish_reason,
        )
        episode.called(reply.calls, now_s=self._clock.now_s())
        return CallAnswer(draft, reply, prompt_ids=prepared.context)


def _new_call_id() -> str:
    return f"call_{secrets.token_hex(8)}"
