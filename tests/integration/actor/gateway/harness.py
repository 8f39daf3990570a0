"""A gateway on loopback over a scripted engine, and OpenAI's client for it."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import openai

from tests.unit.actor.gateway.fakes import ScriptedEngine, group_task
from tidegate.actor.gateway.calls import Caller
from tidegate.actor.gateway.config import GatewayConfig
from tidegate.actor.gateway.episode_table import EpisodeTable
from tidegate.actor.gateway.episodes import AgentEpisode
from tidegate.actor.gateway.formats import open_format
from tidegate.actor.gateway.server import GatewayServer
from tidegate.core.records import Task
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.stats_board import StatsBoard

CONFIG = GatewayConfig(command=("agent",))
OPERATOR_KEY = "operator"
CALCULATOR: Any = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Computes.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}
HELLO: Any = [{"role": "user", "content": "hello"}]


class Harness:
    """The parts of a running gateway."""

    def __init__(self, engine: ScriptedEngine, config: GatewayConfig) -> None:
        clock = SystemClock()
        self.engine = engine
        self.table = EpisodeTable(config, clock)
        self.stats = StatsBoard(service="actor", instance="actor-0", started_at_s=0.0)
        caller = Caller(engine, open_format(engine.tokenizer, style=config.tool_calls), config, clock)
        self.server = GatewayServer(caller, self.table, config, clock, self.stats, operator_key=OPERATOR_KEY)

    def episode(self, task: Task | None = None, *, sample_index: int = 0) -> AgentEpisode:
        return self.table.open(task or group_task(), sample_index=sample_index, attempt=0)

    @property
    def base(self) -> str:
        return f"http://{self.server.address}"

    def client(self, key: str, *, path: str = "/v1") -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.base}{path}", api_key=key, max_retries=0)


@asynccontextmanager
async def gateway(
    script: Callable[[str], str], *, config: GatewayConfig = CONFIG, engine: ScriptedEngine | None = None
) -> AsyncGenerator[Harness]:
    harness = Harness(engine or ScriptedEngine(script), config)
    await harness.server.start(port=0)
    try:
        yield harness
    finally:
        await harness.server.close()


def with_config(**fields: object) -> GatewayConfig:
    return msgspec.structs.replace(CONFIG, **fields)
