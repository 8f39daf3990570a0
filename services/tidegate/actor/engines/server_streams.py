"""Requests in flight at a server, and which version chose each of their tokens (I5).

A token belongs to the weights that generated it. Either the server reports them with each piece, or the engine replaces
the weights only after all earlier tokens have arrived. Tokens of a version that the probe has not yet passed are
withheld, and discarded if the version is refused.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

from tidegate.actor.engines.server_port import LabelSpan, PieceFinish, TokenPiece, label_of
from tidegate.actor.engines.token_port import Continuation, FinishReason
from tidegate.core.errors import CorruptionError, TidegateError, UnavailableError
from tidegate.core.ids import PolicyVersion


class _Stream:
    """One request: its continuation, withheld tokens, and each token's label, to compare with the server's report."""

    def __init__(self, written: Continuation) -> None:
        self.written = written
        self.labels: list[str] = []
        self.held: list[tuple[int, float, PolicyVersion]] = []
        self.reading: asyncio.Task[PieceFinish | None] | None = None
        self.failure: TidegateError | None = None

    def flush(self, *, without: PolicyVersion | None = None) -> None:
        """Write the withheld tokens, up to the first token of a refused version."""
        for token, logprob, version in self.held:
            if version == without:
                break
            self.written.append([token], [logprob], version)
        self.held.clear()


class ServerStreams:
    """As many as the engine has slots. Lives in one event loop."""

    def __init__(self, *, labels_pieces: bool) -> None:
        """``labels_pieces``: whether the server names the weights of each piece's tokens."""
        self._labels_pieces = labels_pieces
        self._open: set[_Stream] = set()
        self._label = ""
        self._versions: dict[str, PolicyVersion] = {}
        self._released = asyncio.Event()
        self._released.set()
        # Bounded: a request leaves once its connection is closed.
        self._ending: set[asyncio.Task[PieceFinish | None]] = set()
        self.num_received = 0
        # Whether a caller has gone, whose last tokens are counted by the server and never arrive.
        self.has_left_tokens = False

    def __len__(self) -> int:
        """Requests in flight."""
        return len(self._open)

    def serve(self, version: PolicyVersion, *, before: PolicyVersion | None, held: bool) -> None:
        """From here on ``version`` chooses, after ``before``; ``held``: withhold its tokens until ``release``."""
        self._label = label_of(version)
        self._versions = {label_of(known): known for known in (before, version) if known is not None}
        if held:
            self._released.clear()

    def begin_count(self) -> None:
        """Count the tokens that arrive from here on."""
        self.num_received = 0
        self.has_left_tokens = False

    def release(self) -> None:
        """Write the withheld tokens."""
        for stream in self._open:
            stream.flush()
        self._released.set()

    def cut(self, *, refused: PolicyVersion | None = None, only_unlabelled: bool = False) -> int:
        """End requests here and on the server; each may continue as a new one from its tokens. Returns how many.

        ``refused``: the version whose tokens are discarded. ``only_unlabelled``: those whose pieces carry no label.
        """
        num_cut = 0
        for stream in self._open:
            if only_unlabelled and self._labels_pieces and stream.labels:
                continue
            stream.flush(without=refused)
            num_cut += 1
            self._end(stream)
        if refused is not None:
            self._released.set()
        return num_cut

    async def until_ended(self) -> None:
        """Wait until the connections of cut requests are closed; closing ends a request on the server."""
        if self._ending:
            await asyncio.wait(self._ending)

    def fail(self, error: TidegateError) -> None:
        """End all requests with an error; written tokens stay, withheld ones are discarded."""
        for stream in self._open:
            stream.held.clear()
            stream.failure = error
            self._end(stream)
        self._released.set()

    async def follow(
        self,
        opened: AbstractAsyncContextManager[AsyncIterator[TokenPiece]],
        written: Continuation,
        *,
        greedy: bool,
        lost: Callable[[UnavailableError], None],
    ) -> FinishReason | None:
        """Write the tokens of a request; returns its finish reason, or None when it was cut.

        ``greedy``: its tokens are the likeliest ones, with logprob 0. ``lost``: called when the server is lost.

        Raises:
            UnavailableError: the server is lost, or aborted the request.
            CorruptionError: the versions that the server reports differ from the recorded ones.
        """
        stream = _Stream(written)
        stream.reading = asyncio.create_task(self._read(stream, opened, greedy=greedy))
        self._open.add(stream)
        try:
            await asyncio.wait({stream.reading})
            if stream.failure is not None:
                raise stream.failure
            if stream.reading.cancelled():
                return None
            finish = stream.reading.result()
        except UnavailableError as error:
            if error is not stream.failure:
                lost(error)
            raise
        finally:
            self._open.discard(stream)
            if not stream.reading.done():  # the caller was cancelled: the request ends on the server as well
                self.has_left_tokens = True
                stream.reading.cancel()
        if finish is None or finish == "abort":
            raise UnavailableError(
                "The inference server aborted a request",
                why="a client aborted it" if finish else "its stream ended without a finish reason",
                fix="let no other program control this actor's server",
            )
        return finish

    async def _read(
        self, stream: _Stream, opened: AbstractAsyncContextManager[AsyncIterator[TokenPiece]], *, greedy: bool
    ) -> PieceFinish | None:
        finish: PieceFinish | None = None
        async with opened as pieces:
            async for piece in pieces:
                self._take(stream, piece, greedy=greedy)
                finish = piece.finish or finish
        # A request that finished during a probe waits for its result.
        await self._released.wait()
        return finish

    def _take(self, stream: _Stream, piece: TokenPiece, *, greedy: bool) -> None:
        first = len(stream.labels)
        self.num_received += len(piece.tokens)
        stream.labels += self._labels_of(stream, piece)
        for index, token in enumerate(piece.tokens):
            version = self._version_of(stream.labels[first + index])
            logprob = 0.0 if greedy else piece.logprobs[index]
            if self._released.is_set():
                stream.written.append([token], [logprob], version)
            else:
                stream.held.append((token, logprob, version))
        if piece.finish is not None and piece.spans:
            _check_account(stream.labels, piece.spans)

    def _labels_of(self, stream: _Stream, piece: TokenPiece) -> list[str]:
        first, stop = len(stream.labels), len(stream.labels) + len(piece.tokens)
        if piece.tokens and not piece.spans:
            self._labels_pieces = False  # later labels of this request are not checked
        if not self._labels_pieces:
            return [self._label] * len(piece.tokens)
        return [_label_at(piece.spans, position) for position in range(first, stop)]

    def _version_of(self, label: str) -> PolicyVersion:
        if label not in self._versions:
            raise CorruptionError(
                f"The inference server generated tokens under weights labelled {label!r}",
                why=f"this actor gave it {' and '.join(self._versions)}",
                fix="let no other program update this actor's server",
            )
        return self._versions[label]

    def _end(self, stream: _Stream) -> None:
        if stream.reading is not None:
            self._ending.add(stream.reading)
            stream.reading.add_done_callback(self._ending.discard)
            stream.reading.cancel()


def _label_at(spans: tuple[LabelSpan, ...], position: int) -> str:
    for span in spans:
        if span.start <= position < span.stop:
            return span.label
    raise CorruptionError(f"The inference server does not name the weights of token {position}")


def _check_account(labels: list[str], spans: tuple[LabelSpan, ...]) -> None:
    """Compare the versions that the server reports for a request with the recorded ones, token by token."""
    reported = [_label_at(spans, position) for position in range(len(labels))]
    wrong = [
        position for position, pair in enumerate(zip(reported, labels, strict=True)) if pair[0] != pair[1]
    ]
    if wrong:
        position = wrong[0]
        raise CorruptionError(
            f"The inference server reports token {position} as of {reported[position]}, and it was recorded"
            f" as of {labels[position]}",
            why="weights were replaced while tokens were in transit, or by another client",
            fix="let no other program update this actor's server; else this is a bug of the engine",
        )
