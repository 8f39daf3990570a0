"""One continuation in progress: sampled between tokens, ended at a stop string."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

import msgspec

from tidegate.actor.engines.token_port import Continuation, TokenEngine, TokenRequest
from tidegate.core.errors import UnavailableError
from tidegate.core.records import VersionSpan

# Sampling period: the delay of a stop string and between pieces of a stream; below a token's time on most models.
LOOK_S = 0.02
# Placeholder of incomplete UTF-8 bytes, which the next token may complete.
UNFINISHED = "\N{REPLACEMENT CHARACTER}"


class Draft(msgspec.Struct, frozen=True):
    """The text so far. ``finish_reason`` is empty until the end.

    ``text`` ends before a stop string; ``tokens`` end with the one that completed it, because the policy chose it.
    """

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    spans: tuple[VersionSpan, ...]
    finish_reason: str = ""


async def write(
    engine: TokenEngine, request: TokenRequest, *, stops: Sequence[str] = (), watched: bool = False
) -> AsyncGenerator[Draft]:
    """Yield drafts of a continuation; the last one has a finish reason. Closing early frees the engine's slot.

    Without ``watched`` and ``stops`` only the last draft is yielded.

    Raises:
        TidegateError: the engine's.
    """
    written = Continuation()
    writing = asyncio.create_task(engine.generate(request, written))
    seen = 0
    try:
        while True:
            await asyncio.wait({writing}, timeout=LOOK_S if watched or stops else None)
            finish_reason = writing.result() if writing.done() else ""
            if not finish_reason and len(written.tokens) == seen:
                continue
            seen = len(written.tokens)
            draft = _draft(engine, written, stops=stops, finish_reason=finish_reason)
            yield draft
            if draft.finish_reason:
                return
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


def _draft(engine: TokenEngine, written: Continuation, *, stops: Sequence[str], finish_reason: str) -> Draft:
    if finish_reason and not written.tokens:
        raise UnavailableError("The engine wrote nothing", fix="call again")
    decode = engine.tokenizer.decode
    tokens = written.tokens
    text = decode(tokens)
    position = _first_stop(text, stops)
    if position >= 0:
        count = len(tokens)
        while count > 1 and _first_stop(decode(tokens[: count - 1]), stops) >= 0:
            count -= 1
        return Draft(
            text=text[:position],
            tokens=tuple(tokens[:count]),
            logprobs=tuple(written.logprobs[:count]),
            spans=_clipped(written.spans(), count),
            finish_reason="stop",
        )
    return Draft(text, tuple(tokens), tuple(written.logprobs), written.spans(), finish_reason)


def _first_stop(text: str, stops: Sequence[str]) -> int:
    return min((found for stop in stops if (found := text.find(stop)) >= 0), default=-1)


def _clipped(spans: Sequence[VersionSpan], count: int) -> tuple[VersionSpan, ...]:
    return tuple(
        msgspec.structs.replace(span, stop=min(span.stop, count)) for span in spans if span.start < count
    )


def sure_length(text: str, *, openings: Sequence[str]) -> int:
    """The length of an unfinished text's prefix that is final.

    ``openings``: strings that may start a call or a stop and not text.
    """
    sure = len(text)
    for opening in openings:
        found = text.find(opening)
        if found >= 0:
            sure = min(sure, found)
            continue
        longest = min(len(opening) - 1, len(text))
        overlap = next((size for size in range(longest, 0, -1) if text.endswith(opening[:size])), 0)
        sure = min(sure, len(text) - overlap)
    while sure > 0 and text[sure - 1] == UNFINISHED:
        sure -= 1
    return sure
