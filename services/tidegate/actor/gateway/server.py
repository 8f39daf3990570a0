"""HTTP: the OpenAI API under /v1 for agents, episodes under /tidegate for harnesses and judges.

An agent authenticates by its key, in the API's header, or as a path segment (``/key/<key>/v1``) for programs that
accept only a base URL. The server logs neither keys nor texts.
"""

import math
import secrets
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeAlias

from aiohttp import web

from tidegate.actor.gateway.calls import Caller
from tidegate.actor.gateway.config import GatewayConfig
from tidegate.actor.gateway.episode_table import EpisodeTable
from tidegate.actor.gateway.episodes import AgentEpisode
from tidegate.actor.gateway.errors import (
    KeyRefusedError,
    RefusedCallError,
    UnknownModelError,
    error_body,
    error_headers,
    http_status,
)
from tidegate.actor.gateway.groups import EpisodeGroup
from tidegate.actor.gateway.requests import (
    CallOptions,
    ChatRequest,
    CompletionRequest,
    Request,
    RequestT,
    options_of,
    read_request,
)
from tidegate.actor.gateway.response_streams import send_response
from tidegate.actor.gateway.responses import (
    Envelope,
    chat_answer,
    model_answer,
    models_answer,
    text_answer,
)
from tidegate.actor.gateway.responses_api import (
    Item,
    RememberedResponse,
    ResponsesRequest,
    chat_of,
    items_of,
    output_items,
    response_answer,
)
from tidegate.actor.gateway.rewards import WHY_CHARS_MAX, read_group_rewards, read_reward
from tidegate.actor.gateway.streams import send_chat, send_text
from tidegate.catalogue import gateway as gateway_stats
from tidegate.core.errors import (
    ConfigError,
    ConflictError,
    NotFoundError,
    PayloadTooLargeError,
    TidegateError,
)
from tidegate.runtime.bearer import bearer_token, same_secret
from tidegate.runtime.clock import Clock
from tidegate.runtime.stats_board import StatsBoard

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

# Name of the policy where the run file lists no models.
MODEL = "policy"
# Seconds for answers in flight once the server closes; the runner has ended their episodes before.
SHUTDOWN_S = 1.0


class GatewayServer:
    """Serves between ``start`` and ``close``. ``address`` is host:port once it has started."""

    def __init__(
        self,
        caller: Caller,
        table: EpisodeTable,
        config: GatewayConfig,
        clock: Clock,
        stats: StatsBoard,
        *,
        operator_key: str,
        own_host: str = "",
    ) -> None:
        """``operator_key``: lets agents over HTTP claim episodes; empty: no agent can.

        ``own_host``: the address of this server, the only one that knows its keys, for the agents of its episodes;
        empty: the address that the claim was sent to.
        """
        self._caller = caller
        self._table = table
        self._config = config
        self._clock = clock
        self._stats = stats
        self._operator_key = operator_key
        self._own_host = own_host
        self._runner: web.AppRunner | None = None
        self._port = 0
        self.address = ""

    async def start(self, *, port: int) -> None:
        """Listen.

        Raises:
            ConfigError: the port is taken, or the host is not this machine's.
        """
        app = web.Application(client_max_size=self._config.request_bytes_max, middlewares=[self._errors])
        for prefix in ("", "/key/{key}"):
            app.router.add_post(f"{prefix}/v1/chat/completions", self._chat)
            app.router.add_post(f"{prefix}/v1/completions", self._completion)
            app.router.add_post(f"{prefix}/v1/responses", self._response)
            app.router.add_get(f"{prefix}/v1/models", self._models)
            app.router.add_get(f"{prefix}/v1/models/{{model}}", self._model)
        app.router.add_post("/tidegate/episodes", self._claim)
        app.router.add_post("/tidegate/episodes/{episode_id}/reward", self._reward)
        app.router.add_delete("/tidegate/episodes/{episode_id}", self._end)
        app.router.add_post("/tidegate/groups/{group_id}/rewards", self._group_rewards)
        app.router.add_delete("/tidegate/groups/{group_id}", self._end_group)
        # A caller that disconnects frees its slot of the engine immediately.
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_S
        )
        await self._runner.setup()
        host = self._config.host
        site = web.TCPSite(self._runner, host, port)
        try:
            await site.start()
        except OSError as error:
            raise ConfigError(
                f"The gateway cannot listen on {host}:{port}",
                why=error.strerror or str(error),
                fix="set actor.gateway.host and actor.gateway.port",
            ) from error
        self._port = int(self._runner.addresses[0][1])
        self.address = f"{host}:{self._port}"

    async def close(self) -> None:
        """Refuse new connections, end the others."""
        if self._runner is not None:
            await self._runner.cleanup()

    # -- agents ----------------------------------------------------------------------------------------------------

    async def _chat(self, http: web.Request) -> web.StreamResponse:
        episode = self._episode(http)
        call = await self._read(http, ChatRequest)
        options = self._options(call, episode)
        with self._calling(episode) as number:
            prepared = self._caller.prepare_chat(episode, call)
            if options.stream:
                parts = self._caller.parts(episode, prepared, options, number=number)
                style = self._config.tool_calls if prepared.callable_tools else None
                return await send_chat(http, self._envelope("chatcmpl", call), parts, options, style=style)
            answers = await self._caller.answers(episode, prepared, options, number=number)
        piece_of = self._caller.piece_of if options.logprobs else None
        envelope, token_ids = self._envelope("chatcmpl", call), options.token_ids
        return web.json_response(chat_answer(envelope, answers, piece_of=piece_of, token_ids=token_ids))

    async def _completion(self, http: web.Request) -> web.StreamResponse:
        episode = self._episode(http)
        call = await self._read(http, CompletionRequest)
        options = self._options(call, episode)
        with self._calling(episode) as number:
            prepared = self._caller.prepare_text(episode, call)
            if options.stream:
                parts = self._caller.parts(episode, prepared, options, number=number)
                return await send_text(http, self._envelope("cmpl", call), parts, options)
            answers = await self._caller.answers(episode, prepared, options, number=number)
        piece_of = self._caller.piece_of if options.logprobs else None
        envelope, token_ids = self._envelope("cmpl", call), options.token_ids
        return web.json_response(text_answer(envelope, answers, piece_of=piece_of, token_ids=token_ids))

    async def _response(self, http: web.Request) -> web.StreamResponse:
        episode = self._episode(http)
        asked = await self._read(http, ResponsesRequest)
        items = items_of(asked, episode.response(asked.previous_response_id))
        call = chat_of(asked, items)
        options = self._options(call, episode)
        envelope = self._envelope("resp", call)

        def remember(output: list[Item]) -> None:
            episode.remember(envelope.answer_id, RememberedResponse((*items, *output)))

        with self._calling(episode) as number:
            prepared = self._caller.prepare_chat(episode, call)
            if options.stream:
                parts = self._caller.parts(episode, prepared, options, number=number)
                style = self._config.tool_calls if prepared.callable_tools else None
                return await send_response(http, envelope, asked, parts, style=style, remember=remember)
            [answer] = await self._caller.answers(episode, prepared, options, number=number)
        output = output_items(envelope, answer)
        remember(output)
        return web.json_response(response_answer(envelope, asked, answer=answer, items=output))

    async def _read(self, http: web.Request, kind: type[RequestT]) -> RequestT:
        return read_request(await http.read(), kind, unknown_fields=self._config.unknown_fields)

    async def _models(self, http: web.Request) -> web.StreamResponse:
        self._episode(http)
        return web.json_response(models_answer(self._names(), created_at_s=int(self._clock.now_s())))

    async def _model(self, http: web.Request) -> web.StreamResponse:
        self._episode(http)
        name = http.match_info["model"]
        self._check_model(name)
        return web.json_response(model_answer(name, created_at_s=int(self._clock.now_s())))

    def _episode(self, http: web.Request) -> AgentEpisode:
        return self._table.by_api_key(http.match_info.get("key") or _bearer(http))

    def _options(self, call: Request, episode: AgentEpisode) -> CallOptions:
        self._check_model(call.model)
        return options_of(call, sampler=episode.task.sampler, config=self._config)

    def _check_model(self, name: str) -> None:
        if self._config.models and name not in self._config.models:
            raise UnknownModelError(
                f"There is no model {name[:64]!r}", fix=f"use {' or '.join(self._config.models)}"
            )

    def _names(self) -> tuple[str, ...]:
        return self._config.models or (MODEL,)

    @contextmanager
    def _calling(self, episode: AgentEpisode) -> Generator[int]:
        config = self._config
        with episode.calling(
            calls_max=config.calls_max, turns_max=config.turns_max, clock=self._clock
        ) as number:
            self._stats.add(gateway_stats.CALLS)
            yield number

    def _envelope(self, kind: str, call: Request) -> Envelope:
        return Envelope(
            f"{kind}-{secrets.token_hex(12)}", call.model or self._names()[0], int(self._clock.now_s())
        )

    # -- claims and rewards -----------------------------------------------------------------------------------------

    async def _claim(self, http: web.Request) -> web.StreamResponse:
        if not self._operator_key or not same_secret(_bearer(http), self._operator_key):
            raise KeyRefusedError(
                "Episodes are given to the operator's agents",
                fix="send the key that the actor has in TIDEGATE_GATEWAY_KEY",
            )
        base, wait_s = self._base(http), self._claim_wait_s(http)
        if http.query.get("groups") == "true":
            return web.json_response(await self._claimed_group(http, base, wait_s=wait_s))
        episode = await self._table.claim(worker=http.query.get("worker", ""), wait_s=wait_s)
        reward = {"reward_url": reward_url(base, episode), "reward_key": episode.reward_key}
        deadline_s = self._config.episode_deadline_s
        return web.json_response({**claim_of(base, episode), **reward, "deadline_s": deadline_s})

    async def _claimed_group(self, http: web.Request, base: str, *, wait_s: float) -> dict[str, Any]:
        if self._config.reward != "posted":
            raise RefusedCallError(
                "The episodes of this run are not claimed in groups",
                param="groups",
                why="actor.gateway.reward is environment, which scores each by itself",
                fix="claim them one by one, or set it to posted",
            )
        group = await self._table.claim_group(worker=http.query.get("worker", ""), wait_s=wait_s)
        return {
            "group_id": group.group_id,
            "rewards_url": f"{base}/tidegate/groups/{group.group_id}/rewards",
            "reward_key": group.reward_key,
            "deadline_s": self._config.episode_deadline_s,
            "episodes": [claim_of(base, episode) for episode in group.members],
        }

    def _base(self, http: web.Request) -> str:
        if not self._own_host:
            return f"{http.scheme}://{http.host}"
        host = f"[{self._own_host}]" if ":" in self._own_host else self._own_host
        return f"http://{host}:{self._port}"

    def _claim_wait_s(self, http: web.Request) -> float:
        """How long a claim waits for an episode: what its query asks for, up to the run's limit; 0 without one."""
        asked = http.query.get("wait_s", "0")
        try:
            wait_s = float(asked)
        except ValueError:
            wait_s = math.nan
        if not 0.0 <= wait_s < math.inf:
            raise RefusedCallError(
                f"wait_s is {asked[:20]!r}", param="wait_s", fix="send seconds, such as 20"
            )
        return min(wait_s, self._config.claim_wait_s)

    async def _reward(self, http: web.Request) -> web.StreamResponse:
        """A reward; posted again it is answered as before, because a client whose answer was lost asks again."""
        reward = read_reward(await http.read())
        episode_id = http.match_info["episode_id"]
        posted = self._table.reward_of(_bearer(http), episode_id=episode_id)
        if posted is None:
            self._judged(http).give_reward(reward)
        elif posted != reward:
            raise ConflictError(
                f"Episode {episode_id} has a reward of {posted.reward:g}",
                fix="post one reward for each episode",
            )
        return web.json_response({"episode_id": episode_id, "reward": reward.reward})

    async def _group_rewards(self, http: web.Request) -> web.StreamResponse:
        """The rewards of a group; posted again they are answered as before."""
        rewards = read_group_rewards(await http.read())
        group_id = http.match_info["group_id"]
        posted = self._table.rewards_of(_bearer(http), group_id=group_id)
        if posted is None:
            self._judged_group(http).give_rewards(rewards)
        elif posted != rewards:
            raise ConflictError(
                f"Group {group_id[:64]} has other rewards", fix="post the rewards of a group once"
            )
        return web.json_response({"group_id": group_id, "num_episodes": len(rewards)})

    async def _end_group(self, http: web.Request) -> web.StreamResponse:
        group = self._judged_group(http)
        group.end(because=_why(http))
        return web.json_response({"group_id": group.group_id, "ended": True})

    async def _end(self, http: web.Request) -> web.StreamResponse:
        episode = self._judged(http)
        episode.end(because=_why(http))
        return web.json_response({"episode_id": episode.episode_id, "ended": True})

    def _judged(self, http: web.Request) -> AgentEpisode:
        return self._table.by_reward_key(_bearer(http), episode_id=http.match_info["episode_id"])

    def _judged_group(self, http: web.Request) -> EpisodeGroup:
        return self._table.by_group_key(_bearer(http), group_id=http.match_info["group_id"])

    # -- errors ----------------------------------------------------------------------------------------------------

    @web.middleware
    async def _errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer every error in the API's format."""
        try:
            return await handler(request)
        except TidegateError as error:
            refusal = error
        except web.HTTPRequestEntityTooLarge as error:
            refusal = PayloadTooLargeError(
                f"The body is larger than {self._config.request_bytes_max} bytes",
                why=error.reason,
                fix="send less, or raise actor.gateway.request_bytes_max",
            )
        except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
            refusal = NotFoundError(f"There is no {request.method} {request.path[:80]}", why=error.reason)
        self._stats.add(gateway_stats.REFUSED.member(str(http_status(refusal))))
        return web.json_response(
            error_body(refusal), status=http_status(refusal), headers=error_headers(refusal)
        )


def task_of(episode: AgentEpisode) -> dict[str, Any]:
    """A task as its agent sees it, without the answer."""
    task = episode.task
    return {
        "prompt": task.prompt,
        "prompt_id": task.prompt_id,
        "env": task.env_id,
        "seed": episode.seed,
        "episode_id": episode.episode_id,
    }


def claim_of(base: str, episode: AgentEpisode) -> dict[str, Any]:
    """An episode as a worker gets it, without a key for its reward."""
    return {
        "episode_id": episode.episode_id,
        "base_url": f"{base}/v1",
        "api_key": episode.api_key,
        "task": task_of(episode),
        "answer": episode.task.answer,
    }


def reward_url(base: str, episode: AgentEpisode) -> str:
    """The URL for an episode's reward."""
    return f"{base}/tidegate/episodes/{episode.episode_id}/reward"


def _bearer(http: web.Request) -> str:
    return bearer_token(http.headers.get("Authorization", "")) or ""


def _why(http: web.Request) -> str:
    """Why an agent ends its episode or its group without a reward, where its query says so."""
    return http.query.get("why", "")[:WHY_CHARS_MAX]
