"""A judge: a model behind an OpenAI-style API, which grades a completion."""

import asyncio
import math
import re
from collections.abc import Mapping
from typing import Any, cast

import aiohttp
import msgspec

from tidegate.core.errors import DeadlineError, RecordError, TidegateError, UnavailableError
from tidegate.core.json_text import NOT_JSON
from tidegate.environment.tasks.port import Problem, Score
from tidegate.environment.verifiers.port import VerifierBusyError
from tidegate.environment.verifiers.settings import JudgeSettings
from tidegate.environment.verifiers.texts import filled

REPLY_BYTES_MAX = 1 << 20
LOG_CHARS_MAX = 300
_JSON_OBJECT = re.compile(r"\{.*\}", re.DOTALL)


class _JudgeMessage(msgspec.Struct, frozen=True):
    content: str


class _JudgeChoice(msgspec.Struct, frozen=True):
    message: _JudgeMessage


class _Reply(msgspec.Struct, frozen=True):
    choices: list[_JudgeChoice]


class JudgeVerifier:
    """A ``port.Verifier``. At most ``max_concurrent`` requests are in flight; one that ends frees its slot."""

    def __init__(self, settings: JudgeSettings, *, api_key: str = "") -> None:
        """``api_key`` is sent as a bearer token and written nowhere."""
        self._settings = settings
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._places = asyncio.Semaphore(settings.max_concurrent)
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Open the client; only the first request shows whether the judge is reachable."""
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._settings.deadline_s), headers=self._headers
        )

    async def score(self, problem: Problem, completion: str) -> Score:
        """The grade, from 0 to 1; the component ``raw`` is the grade on the judge's own scale.

        Raises:
            DeadlineError: no answer within ``deadline_s``.
            VerifierBusyError: it asks for a later request (429).
            UnavailableError: it cannot be reached, or failed (408, 5xx).
            RecordError: it answered without a grade on its scale.
            TidegateError: it refuses the request.
        """
        async with self._places:
            text = await self._asked(filled(self._settings.rubric, problem, completion))
        grade = graded(text, self._settings)
        span = self._settings.highest - self._settings.lowest
        return Score(
            reward=(grade - self._settings.lowest) / span,
            components={"raw": grade},
            log=text.strip()[-LOG_CHARS_MAX:],
        )

    async def close(self) -> None:
        """Close the client."""
        if self._session is not None:
            await self._session.close()

    async def _asked(self, question: str) -> str:
        assert self._session is not None, "a judge is started before it is asked"
        settings = self._settings
        body = {
            "model": settings.model,
            "messages": [{"role": "user", "content": question}],
            "temperature": settings.temperature,
            "max_tokens": settings.max_tokens,
        }
        url = f"{settings.base_url.rstrip('/')}/chat/completions"
        try:
            async with self._session.post(url, json=body, allow_redirects=False) as response:
                data = bytearray()
                async for chunk in response.content.iter_chunked(1 << 16):
                    data += chunk
                    if len(data) > REPLY_BYTES_MAX:
                        raise RecordError(f"The judge answered with more than {REPLY_BYTES_MAX:,} bytes")
                status, headers = response.status, response.headers
        except TimeoutError as error:
            raise DeadlineError(
                f"The judge did not answer within {settings.deadline_s:g} s", fix="raise its deadline_s"
            ) from error
        except aiohttp.ClientError as error:
            raise UnavailableError(
                f"The judge at {settings.base_url} cannot be reached", why=repr(error)
            ) from error
        _check_status(status, headers, bytes(data))
        try:
            return msgspec.json.decode(bytes(data), type=_Reply).choices[0].message.content
        except (*NOT_JSON, IndexError) as error:
            raise RecordError("The judge's answer is no chat completion", why=str(error)) from error


def _check_status(status: int, headers: Mapping[str, str], body: bytes) -> None:
    if status == 200:
        return
    reply = body[:LOG_CHARS_MAX].decode(errors="replace")
    if status == 429:
        raise VerifierBusyError(
            f"The judge is busy: {reply}", retry_after_s=_seconds(headers.get("Retry-After", ""))
        )
    if status == 408 or status >= 500:
        raise UnavailableError(f"The judge failed with status {status}", why=reply)
    raise TidegateError(
        f"The judge refuses with status {status}", why=reply, fix="check its base_url, model and api_key_env"
    )


def _seconds(text: str) -> float:
    """A Retry-After of seconds; a date, or nothing, leaves the moment to the caller."""
    return float(text) if re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text) else 0.0


def graded(text: str, settings: JudgeSettings) -> float:
    """The grade in a judge's answer, on the judge's scale.

    Raises:
        RecordError: there is none, or it is outside of the scale.
    """
    grade = (
        _by_key(text, settings.score_key) if settings.score_key else _by_pattern(text, settings.score_pattern)
    )
    if grade is None or not settings.lowest <= grade <= settings.highest:
        raise RecordError(
            f"The judge gave no grade from {settings.lowest:g} to {settings.highest:g}",
            why=f"it answered {text.strip()[-LOG_CHARS_MAX:]!r}",
            fix="let the rubric define how to end, or give it more max_tokens",
        )
    return grade


def _by_pattern(text: str, pattern: str) -> float | None:
    found = re.findall(pattern, text)
    return _number(found[-1]) if found else None


def _by_key(text: str, key: str) -> float | None:
    shown = _JSON_OBJECT.search(text)
    if shown is None:
        return None
    try:
        value: Any = msgspec.json.decode(shown[0])
    except NOT_JSON:
        return None
    return _number(cast("dict[str, Any]", value).get(key)) if isinstance(value, dict) else None


def _number(value: object) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
