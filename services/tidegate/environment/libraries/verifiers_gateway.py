"""The gateway as a worker of `verifiers` calls it: claims, rewards, ends. Every wait has its deadline."""

import asyncio
import sys
from collections.abc import Mapping
from typing import Any, TypeVar

import aiohttp
import msgspec

from tidegate.core.errors import ConfigError
from tidegate.environment.libraries.episode_failures import line_of
from tidegate.environment.libraries.verifiers_settings import Seat

T = TypeVar("T")

WAIT_S = 20
TIMEOUT_S = 60.0
POST_ATTEMPTS = 3
PAUSE_S = 1.0
# Of the reason of an end, which travels in a query.
WHY_CHARS_MAX = 500


class Claimed(msgspec.Struct, frozen=True):
    """An episode of the gateway, as far as it is needed here."""

    episode_id: str
    base_url: str
    api_key: str
    reward_url: str
    reward_key: str
    task: dict[str, Any]
    deadline_s: float

    @property
    def seat(self) -> Seat:
        """Where its policy is."""
        return Seat(self.base_url, self.api_key)


class Member(msgspec.Struct, frozen=True):
    """An episode of a group."""

    episode_id: str
    base_url: str
    api_key: str
    task: dict[str, Any]

    @property
    def seat(self) -> Seat:
        """Where its policy is."""
        return Seat(self.base_url, self.api_key)


class ClaimedGroup(msgspec.Struct, frozen=True):
    """All episodes of a task, which are rewarded together. ``deadline_s``: seconds from the claim to their rewards."""

    group_id: str
    rewards_url: str
    reward_key: str
    deadline_s: float
    episodes: tuple[Member, ...]


class GatewayClient:
    """Calls one gateway. What fails is said on standard error, whose last lines the actor logs."""

    def __init__(self, http: aiohttp.ClientSession, *, url: str, key: str) -> None:
        """``http``: closed by the caller. ``key``: claims episodes."""
        self._http = http
        self._url = url
        self._key = key

    async def claim(self, kind: type[T], params: Mapping[str, str]) -> T | None:
        """What waits, or None after a pause. ``params``: of the claim.

        Raises:
            ConfigError: the gateway refuses such a claim.
        """
        try:
            async with self._http.post(
                f"{self._url}/tidegate/episodes",
                params={"wait_s": str(WAIT_S), **params},
                headers={"Authorization": f"Bearer {self._key}"},
            ) as answer:
                body = await answer.read()
                if answer.status == 200:
                    return msgspec.json.decode(body, type=kind)
                if answer.status == 400:
                    raise ConfigError("The gateway refuses this worker's claims", why=_message_of(body))
                if answer.status != 503:
                    sys.stderr.write(f"the gateway answered {answer.status} to a claim\n")
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
            sys.stderr.write(f"the gateway cannot be asked: {line_of(error)}\n")
        await asyncio.sleep(PAUSE_S)
        return None

    async def post(self, url: str, key: str, verdict: object) -> bool:
        """Post a verdict; False where it is refused. Posted twice it is one, so a lost answer costs nothing."""
        for _ in range(POST_ATTEMPTS):
            try:
                async with self._http.post(
                    url, data=msgspec.json.encode(verdict), headers={"Authorization": f"Bearer {key}"}
                ) as answer:
                    if answer.status >= 500:
                        continue
                    if answer.status != 200:
                        sys.stderr.write(f"{url}: its reward got {answer.status}\n")
                    return answer.status == 200
            except (aiohttp.ClientError, TimeoutError):
                await asyncio.sleep(PAUSE_S)
        return True  # unknown; it idles out

    async def end(self, path: str, key: str, *, why: str = "") -> None:
        """End an episode or a group without a reward. ``path``: of the gateway."""
        try:
            async with self._http.delete(
                f"{self._url}/tidegate/{path}",
                params={"why": why[:WHY_CHARS_MAX]},
                headers={"Authorization": f"Bearer {key}"},
            ) as answer:
                await answer.read()
        except (aiohttp.ClientError, TimeoutError):
            return  # it idles out


def _message_of(body: bytes) -> str:
    """The sentence of an error of the API."""
    try:
        return str(msgspec.json.decode(body)["error"]["message"])[:400]
    except (msgspec.DecodeError, KeyError, TypeError):
        return body[:400].decode(errors="replace")
