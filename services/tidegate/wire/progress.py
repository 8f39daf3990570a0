"""Progress of a running task, checkpointed for the next actor: tokens, logprobs, versions, replies.

Layout: "TGP1" | XXH3-128 of everything after it | ``_Body`` as MessagePack, with tokens and logprobs as raw
little-endian bytes. The decoder is total: any byte string gives progress or a ``RecordError``.
"""

from collections.abc import Sequence
from typing import Annotated, TypeAlias

import msgspec
import numpy as np

from tidegate.core.errors import RecordError
from tidegate.core.ids import LineageName, PolicyVersion, RunId, TaskId
from tidegate.core.records import Array, Task, ToolCall, VersionSpan
from tidegate.wire.bounds import MAGNITUDE_MAX, TIME_S_MAX, are_summable, are_within, is_time
from tidegate.wire.digest import DIGEST_BYTES, digest_of
from tidegate.wire.validate import LOGPROB_TOLERANCE

MAGIC = b"TGP1"
# Below the inline limit of a message (``wire.subjects``), with space for headers.
PROGRESS_BYTES_MAX = 500 * 1024
_PREFIX_BYTES = len(MAGIC) + DIGEST_BYTES
_TOKEN = np.dtype("<i4")
_LOGPROB = np.dtype("<f4")

Position: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Step: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class SampleProgress(msgspec.Struct, frozen=True, eq=False):
    """The progress of one sample.

    ``tokens`` (T,) int32, ``logprobs`` (T,) float32, ``spans`` over them. ``replies``: the ranges of tokens that came
    from the environment. ``opening``: the first input of the policy, if it is not its task's prompt. ``reply``: the
    environment's last reply; its session, reopened with the turns so far, must return it again. ``reward`` to
    ``log``: of the steps so far. ``finish_reason``: set once it is done.
    """

    index: int
    tokens: Array
    logprobs: Array
    spans: tuple[VersionSpan, ...]
    replies: tuple[tuple[int, int], ...] = ()
    opening: str = ""
    reply: str = ""
    reward: float | None = None
    components: dict[str, float] = {}
    tool_calls: tuple[ToolCall, ...] = ()
    log: str = ""
    finish_reason: str = ""

    @property
    def num_chosen(self) -> int:
        """Tokens that the policy chose."""
        return len(self.tokens) - sum(stop - start for start, stop in self.replies)


class Progress(msgspec.Struct, frozen=True, eq=False):
    """All started samples of a task, as far as they fit.

    ``started_at_s``: start of the first of them, seconds since the epoch. ``max_new_tokens``: the cap in force.
    ``tokens_left_out``: tokens of the policy that did not fit. ``written_at_s``: now, by the clock of the start.
    """

    run_id: RunId
    task_id: TaskId
    attempt: int
    num_samples: int
    started_at_s: float
    max_new_tokens: int
    samples: tuple[SampleProgress, ...]
    tokens_left_out: int = 0
    written_at_s: float = 0.0


class _SampleBody(msgspec.Struct, frozen=True, array_like=True):
    index: Position
    tokens: bytes
    logprobs: bytes
    spans: list[tuple[LineageName, Step, Position, Position]]
    replies: list[tuple[Position, Position]]
    opening: str
    reply: str
    reward: float | None
    components: dict[str, float]
    tool_calls: list[tuple[str, str, str, float, float]]
    log: str
    finish_reason: str


class _Body(msgspec.Struct, frozen=True, array_like=True):
    run_id: RunId
    task_id: TaskId
    attempt: Position
    num_samples: Position
    started_at_s: float
    max_new_tokens: Position
    samples: list[_SampleBody]
    tokens_left_out: Position
    written_at_s: float = 0.0


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Body)


def encode_progress(progress: Progress, *, bytes_max: int = PROGRESS_BYTES_MAX) -> bytes:
    """Progress as one message body of at most ``bytes_max``; where it does not fit, the shortest samples are left out.

    The longest are kept, because they cost the most tokens to generate again.
    """
    kept: list[_SampleBody] = []
    left_out = progress.tokens_left_out
    body = _body(progress, kept, left_out=left_out)
    size = _PREFIX_BYTES + len(_encoder.encode(body)) + 16  # counts may grow to their widest form
    for sample in sorted(progress.samples, key=lambda sample: -len(sample.tokens)):
        row = _sample_body(sample)
        row_size = len(_encoder.encode(row))
        if size + row_size <= bytes_max:
            size += row_size
            kept.append(row)
        else:
            left_out += sample.num_chosen
    kept.sort(key=lambda row: row.index)
    encoded = _encoder.encode(_body(progress, kept, left_out=left_out))
    return MAGIC + digest_of(encoded) + encoded


def decode_progress(data: bytes) -> Progress:
    """The progress of one message.

    Raises:
        RecordError: ``data`` is truncated, malformed, does not match its digest, or contains impossible values.
    """
    if data[: len(MAGIC)] != MAGIC or len(data) < _PREFIX_BYTES:
        raise RecordError(
            f"Progress begins with {data[: len(MAGIC)]!r} instead of {MAGIC!r}",
            fix="check that its sender speaks this protocol version",
        )
    encoded = data[_PREFIX_BYTES:]
    if digest_of(encoded) != data[len(MAGIC) : _PREFIX_BYTES]:
        raise RecordError("Progress does not match its digest", why="its bytes changed on the way")
    try:
        body = _decoder.decode(encoded)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError("Progress cannot be parsed", why=str(error)) from error
    indexes = [row.index for row in body.samples]
    if len(set(indexes)) < len(indexes) or max(indexes, default=-1) >= body.num_samples:
        raise _error(body, f"holds the samples {indexes} of {body.num_samples}")
    if not (is_time(body.started_at_s) and is_time(body.written_at_s)):
        raise _error(body, f"began at {body.started_at_s} and was written at {body.written_at_s}")
    return Progress(
        run_id=body.run_id,
        task_id=body.task_id,
        attempt=body.attempt,
        num_samples=body.num_samples,
        started_at_s=body.started_at_s,
        max_new_tokens=body.max_new_tokens,
        samples=tuple([_sample(body, row) for row in body.samples]),
        tokens_left_out=body.tokens_left_out,
        written_at_s=body.written_at_s,
    )


def check_progress(progress: Progress, task: Task) -> None:
    """Whether progress is of this task and of this attempt at it.

    Raises:
        RecordError: it is not; the message names the difference.
    """
    for name in ("run_id", "task_id", "attempt", "num_samples"):
        ours, theirs = getattr(task, name), getattr(progress, name)
        if ours != theirs:
            raise RecordError(f"Progress found for task {task.task_id} has {name} {theirs!r}, not {ours!r}")
    if progress.max_new_tokens > task.sampler.max_new_tokens:
        raise RecordError(
            f"Progress found for task {task.task_id} is capped at {progress.max_new_tokens} tokens",
            why=f"its task allows {task.sampler.max_new_tokens}",
        )


def _body(progress: Progress, samples: Sequence[_SampleBody], *, left_out: int) -> _Body:
    return _Body(
        run_id=progress.run_id,
        task_id=progress.task_id,
        attempt=progress.attempt,
        num_samples=progress.num_samples,
        started_at_s=progress.started_at_s,
        max_new_tokens=progress.max_new_tokens,
        samples=list(samples),
        tokens_left_out=left_out,
        written_at_s=progress.written_at_s,
    )


def _sample_body(sample: SampleProgress) -> _SampleBody:
    return _SampleBody(
        index=sample.index,
        tokens=sample.tokens.astype(_TOKEN, copy=False).tobytes(),
        logprobs=sample.logprobs.astype(_LOGPROB, copy=False).tobytes(),
        spans=[(span.version.lineage, span.version.step, span.start, span.stop) for span in sample.spans],
        replies=list(sample.replies),
        opening=sample.opening,
        reply=sample.reply,
        reward=sample.reward,
        components=sample.components,
        tool_calls=[msgspec.structs.astuple(call) for call in sample.tool_calls],
        log=sample.log,
        finish_reason=sample.finish_reason,
    )


def _sample(body: _Body, row: _SampleBody) -> SampleProgress:
    what = f"has a sample {row.index}"
    if len(row.tokens) % _TOKEN.itemsize or len(row.tokens) != len(row.logprobs):
        raise _error(body, f"{what} of {len(row.tokens)} bytes of tokens and {len(row.logprobs)} of logprobs")
    tokens = np.frombuffer(row.tokens, _TOKEN)
    logprobs = np.frombuffer(row.logprobs, _LOGPROB)
    if tokens.size and int(tokens.min()) < 0:
        raise _error(body, f"{what} with a token below 0")
    # In this order: a comparison with NaN is False.
    if logprobs.size and not (are_summable(logprobs) and float(logprobs.max()) <= LOGPROB_TOLERANCE):
        raise _error(body, f"{what} with logprobs that no policy can produce")
    if not _covers(row.spans, len(tokens)):
        raise _error(body, f"{what} whose versions do not cover its tokens in order")
    if not _are_inside(row.replies, len(tokens)) or any(
        logprobs[start:stop].any() for start, stop in row.replies
    ):
        raise _error(body, f"{what} whose replies do not lie between its turns")
    times = [time_s for call in row.tool_calls for time_s in call[3:]]
    rewards = [*row.components.values(), row.reward or 0.0]
    if not are_within(times, TIME_S_MAX) or not are_within(rewards, MAGNITUDE_MAX):
        raise _error(body, f"{what} with a reward or a time that is not finite, or too large")
    return SampleProgress(
        index=row.index,
        tokens=tokens,
        logprobs=logprobs,
        spans=tuple([VersionSpan(PolicyVersion(name, step), *edges) for name, step, *edges in row.spans]),
        replies=tuple(row.replies),
        opening=row.opening,
        reply=row.reply,
        reward=row.reward,
        components=row.components,
        tool_calls=tuple([ToolCall(*call) for call in row.tool_calls]),
        log=row.log,
        finish_reason=row.finish_reason,
    )


def _covers(spans: Sequence[tuple[LineageName, int, int, int]], length: int) -> bool:
    position = 0
    for lineage, _, start, stop in spans:
        if not lineage or start != position or stop <= start:
            return False
        position = stop
    return position == length


def _are_inside(replies: Sequence[tuple[int, int]], length: int) -> bool:
    """Ordered ranges that do not touch: a turn of the policy precedes each. An empty one ends a turn."""
    position = 0
    for start, stop in replies:
        if not position < start <= stop <= length:
            return False
        position = stop
    return True


def _error(body: _Body, what: str) -> RecordError:
    return RecordError(f"Progress of task {body.task_id!r} {what}")
