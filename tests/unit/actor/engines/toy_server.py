"""A server of one process, without HTTP: it loads the folders it is given, and writes tokens that tell their weights.

Every token of a version is the version's step, so a token with another version's label shows at once. What it makes is
delivered when the test allows it: a token takes ``wire_s`` from generation to arrival.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import torch

from tests.unit.models.tiny_llama import CONTEXT, open_model
from tidegate.actor.engines.server_port import (
    LabelSpan,
    ProbeAnswer,
    ServerRefusalError,
    ServerRequest,
    TokenPiece,
)
from tidegate.core.errors import UnavailableError
from tidegate.core.ids import parse_version


class ToyServer:
    """``labels_pieces``, ``counts``: as servers differ. ``wire_s``: from making a token to its arrival."""

    def __init__(self, *, labels_pieces: bool = False, counts: bool = True) -> None:
        self.labels_pieces = labels_pieces
        self.counts = counts
        self.wire_s = 0.0
        self.paused = False
        self.up = True
        self.weights = "default"
        self.folder: Path | None = None
        self.calls: list[str] = []
        # Tokens that each request may have so far: a test that updates requests in flight keeps them from ending.
        self.tokens_allowed = CONTEXT
        self.num_made = 0
        self.num_requests = 0
        # The next loads silently load this folder instead.
        self.loads_instead: Path | None = None
        # Weights of this label are never loaded; the next calls of these names fail.
        self.refuses = ""
        self.refusals: deque[str] = deque()

    async def check(self, *, context_length: int) -> None:
        self._call("check")
        assert context_length <= CONTEXT

    @asynccontextmanager
    async def stream(self, request: ServerRequest) -> AsyncGenerator[AsyncIterator[TokenPiece]]:
        self._call("stream")
        self.num_requests += 1
        wire: asyncio.Queue[tuple[float, TokenPiece]] = asyncio.Queue()
        making = asyncio.create_task(self._make(request, wire))
        try:
            yield self._deliver(wire)
        finally:
            making.cancel()

    async def _make(self, request: ServerRequest, wire: asyncio.Queue[tuple[float, TokenPiece]]) -> None:
        labels: list[str] = []
        loop = asyncio.get_running_loop()
        while len(labels) < request.sampler.max_new_tokens:
            await asyncio.sleep(0.001)
            if self.paused or len(labels) >= self.tokens_allowed:
                continue
            labels.append(self.weights)
            self.num_made += 1
            token = parse_version(self.weights).step
            last = len(labels) == request.sampler.max_new_tokens
            stops = token in request.stop_ids
            spans = _spans(labels) if self.labels_pieces or last or stops else ()
            finish = "stop" if stops else "length" if last else None
            wire.put_nowait((loop.time() + self.wire_s, TokenPiece([token], [-0.5], spans, finish)))
            if finish is not None:
                return

    async def _deliver(self, wire: asyncio.Queue[tuple[float, TokenPiece]]) -> AsyncIterator[TokenPiece]:
        loop = asyncio.get_running_loop()
        while True:
            due_at_s, piece = await wire.get()
            await asyncio.sleep(max(0.0, due_at_s - loop.time()))
            if not self.up:
                raise UnavailableError("The connection broke")
            yield piece
            if piece.finish is not None:
                return

    async def pause(self) -> None:
        self._call("pause")
        self.paused = True

    async def load(self, folder: Path, *, label: str) -> None:
        self._call("load")
        if label == self.refuses:
            raise ServerRefusalError(f"No {label} ever")
        assert self.paused, "weights are only replaced while nothing is made"
        self.folder, self.loads_instead = self.loads_instead or folder, None
        self.weights = label

    async def resume(self) -> None:
        self._call("resume")
        self.paused = False

    async def label(self) -> str:
        self._call("label")
        return self.weights

    async def tokens_made(self) -> int | None:
        self._call("tokens_made")
        return self.num_made if self.counts else None

    async def probe(self, tokens: Sequence[int], *, temperature: float) -> ProbeAnswer:
        self._call("probe")
        assert self.folder is not None
        model = open_model(self.folder, trains=False)
        with torch.no_grad():
            hidden, _ = model(torch.tensor([list(tokens)]))
            prompt = model.next_logprobs(hidden[0, :-1])
            after = model.next_logprobs(hidden[0, -1], temperature=temperature)
        chosen = [float(prompt[index, token]) for index, token in enumerate(tokens[1:])]
        return ProbeAnswer(tuple(chosen), 3, float(after[3]))

    async def close(self) -> None:
        self.calls.append("close")

    def die(self) -> None:
        """Break all connections and restart with the original weights."""
        self.up = False
        self.weights, self.paused, self.num_made = "default", False, 0

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if not self.up:
            raise UnavailableError("The server is away")
        if self.refusals and self.refusals[0] == name:
            self.refusals.popleft()
            raise ServerRefusalError(f"No {name} today")


def _spans(labels: list[str]) -> tuple[LabelSpan, ...]:
    spans: list[LabelSpan] = []
    for position, label in enumerate(labels):
        if spans and spans[-1].label == label:
            spans[-1] = LabelSpan(label, spans[-1].start, position + 1)
        else:
            spans.append(LabelSpan(label, position, position + 1))
    return tuple(spans)
