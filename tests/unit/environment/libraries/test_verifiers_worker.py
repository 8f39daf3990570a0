"""A worker outlasts whatever an environment raises in an episode."""

import asyncio
from typing import Any, cast

import aiohttp
import pytest

from tidegate.core.errors import ConfigError
from tidegate.environment.libraries.verifiers_env import VerifiersEnv
from tidegate.environment.libraries.verifiers_gateway import Claimed, GatewayClient
from tidegate.environment.libraries.verifiers_worker import EpisodeWorker

EPISODE = Claimed("e-1", "", "", "", "reward", {"env": "mine", "prompt_id": "train-0"}, 60.0)


class Raising:
    """An environment of one row."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def rows(self, _split: str) -> list[dict[str, Any]]:
        return [{}]

    async def play(self, _row: object, _seat: object, **_options: object) -> None:
        await asyncio.sleep(0)
        raise self._error


class Http:
    """Notes which episodes are ended; answers a claim with ``status`` and ``body``."""

    def __init__(self, *, status: int = 200, body: bytes = b"") -> None:
        self.ended: list[str] = []
        self.status = status
        self._body = body

    def delete(self, address: str, **_options: object) -> "Http":
        self.ended.append(address)
        return self

    def post(self, _address: str, **_options: object) -> "Http":
        return self

    async def __aenter__(self) -> "Http":
        return self

    async def __aexit__(self, *_raised: object) -> None:
        return None

    async def read(self) -> bytes:
        return self._body


def gateway_of(http: Http) -> GatewayClient:
    return GatewayClient(cast("aiohttp.ClientSession", cast("Any", http)), url="http://gateway", key="key")


def worker_of(error: BaseException, http: Http) -> EpisodeWorker:
    envs = {"mine": cast("VerifiersEnv", cast("Any", Raising(error)))}
    return EpisodeWorker(envs, gateway_of(http), name="a-0", num_episodes=1)


@pytest.mark.parametrize("error", [ValueError("bad"), asyncio.CancelledError(), TimeoutError()])
async def test_episode_that_raises_ends_without_a_reward_and_the_worker_goes_on(
    error: BaseException,
) -> None:
    http = Http()
    await worker_of(error, http).play(EPISODE)
    assert http.ended == ["http://gateway/tidegate/episodes/e-1"]


async def test_worker_that_is_cancelled_ends() -> None:
    playing = asyncio.create_task(worker_of(asyncio.CancelledError(), Http()).play(EPISODE))
    await asyncio.sleep(0)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing


async def test_claims_that_the_gateway_refuses_end_the_worker_with_its_words() -> None:
    body = b'{"error": {"message": "set episodes_max to 8"}}'
    with pytest.raises(ConfigError, match="set episodes_max to 8"):
        await gateway_of(Http(status=400, body=body)).claim(Claimed, {})
