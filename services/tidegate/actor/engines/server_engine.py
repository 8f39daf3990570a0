"""The engine of inference servers: one actor's server, whose weights are replaced while requests are in flight.

An update, in order: write the version as a folder and compute the probe's answer; pause the server; wait for all tokens
it generated, or cut their requests, which continue as new ones; load the weights; resume the server; compare the probe
while new tokens are withheld. A wrong answer, or any failure, restores the previous version, and the server is never
left paused. A lost server is reloaded, because its weights are unknown.
"""

import asyncio
import contextlib
from itertools import count
from pathlib import Path

import msgspec
import structlog

from tidegate.actor.engines.port import EngineControl
from tidegate.actor.engines.server_config import ServerConfig
from tidegate.actor.engines.server_port import ServerDialect, ServerRefusalError, ServerRequest, label_of
from tidegate.actor.engines.server_probe import TEMPERATURE, Expected, LocalProbe, probe_error
from tidegate.actor.engines.server_process import ServerProcess
from tidegate.actor.engines.server_streams import ServerStreams
from tidegate.actor.engines.server_weights import ServerWeights
from tidegate.actor.engines.token_port import Continuation, FinishReason, TokenRequest
from tidegate.catalogue import inference_server as server_stats
from tidegate.catalogue.kinds import Counter
from tidegate.core.errors import DeadlineError, RecordError, TidegateError, UnavailableError
from tidegate.core.records import PolicySnapshot, Task
from tidegate.models.tokenizer import Tokenizer
from tidegate.runtime.clock import Clock
from tidegate.runtime.threads import WorkerThread

# Period of polling EngineControl, which has no wakeup: the longest delay of a new version, far below a load's time.
POLL_S = 0.01
# Period of checks that the server still serves the version that this engine loaded; a restart takes longer.
PING_PERIOD_S = 1.0
# Period of polling a server's counter while its last tokens arrive, and a server that is starting.
DRAIN_POLL_S = 0.002
# Polls without an arrival, at least 50 ms, after which no token is in transit; one takes a few milliseconds.
STILL_POLLS = 25
READY_POLL_S = 0.25

# Reported from the start: Prometheus sees no increase in a series that begins above 0.
COUNTERS = (
    server_stats.UPDATES,
    server_stats.UPDATES_REFUSED,
    server_stats.REQUESTS_KEPT,
    server_stats.STREAMS_CUT,
    server_stats.LOSSES,
)


class UpdateRefusedError(TidegateError):
    """The server's logprobs are not the policy's."""

    status = "FAILED_PRECONDITION"


class Served(msgspec.Struct, frozen=True, eq=False):
    """A version that the server loads: its folder, and the logprobs that the probe expects (None without a probe)."""

    snapshot: PolicySnapshot
    folder: Path
    expected: Expected | None


class ServerEngine:
    """A ``TokenEngine`` over one server; ``dialect`` speaks its HTTP interface."""

    def __init__(
        self,
        dialect: ServerDialect,
        *,
        config: ServerConfig,
        weights: ServerWeights,
        probe: LocalProbe | None,
        tolerance: float,
        tokenizer: Tokenizer,
        context_length: int,
        slots: int,
        control: EngineControl,
        clock: Clock,
        process: ServerProcess | None = None,
    ) -> None:
        """``tolerance``: of the probe. ``process``: of a server that ``run`` starts."""
        self._dialect = dialect
        self._config = config
        self._weights = weights
        self._probe = probe
        self._tolerance = tolerance
        self._tokenizer = tokenizer
        self._context_length = context_length
        self._control = control
        self._clock = clock
        self._process = process
        self._slots = asyncio.Semaphore(slots)
        self._streams = ServerStreams(labels_pieces=dialect.labels_pieces)
        self._thread = WorkerThread("server-weights")
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger("engine")
        # Set while the server has a version that passed the probe.
        self._gate = asyncio.Event()
        self._served: Served | None = None
        self._lost: UnavailableError | None = None
        self._ended: TidegateError | None = None
        self._failed: PolicySnapshot | None = None
        self._num_failures = 0
        self._retry_at_s = 0.0
        self._pinged_at_s = 0.0
        self._num_made_before = 0
        self._epoch = 0
        self._request_numbers = count()
        control.away = True
        self._figures = control.figures
        self._figures |= dict.fromkeys(COUNTERS, 0.0)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's own."""
        return self._tokenizer

    @property
    def context_length(self) -> int:
        """Tokens of a context and its continuation together."""
        return self._context_length

    def check_policy(self, snapshot: PolicySnapshot) -> None:
        """Whether the tensors belong to the model, and are numbers.

        Raises:
            RecordError: one does not; the message names it.
        """
        self._weights.check(snapshot)
        if self._probe is not None:
            self._probe.check(snapshot.tensors)

    def check_task(self, task: Task) -> None:
        """Whether the sampler's logprobs can be corrected for, and the task fits the context.

        Raises:
            RecordError: it cannot; the message names the field and the reason.
        """
        sampler = task.sampler
        if sampler.top_p != 1.0 or sampler.top_k != 0:
            raise RecordError(
                f"Task {task.task_id} samples with top_p {sampler.top_p} and top_k {sampler.top_k}",
                why="truncated sampling renormalises the policy, and no learner could recompute its logprobs",
                fix="set top_p to 1 and top_k to 0 in workload.sampler",
            )
        if sampler.temperature <= 0.0:
            raise RecordError(
                f"Task {task.task_id} is sampled at temperature {sampler.temperature}",
                why="greedy completions have no logprob to train on",
            )
        num_tokens = len(self._tokenizer.encode_prompt(task.prompt)) + sampler.max_new_tokens
        if sampler.max_new_tokens < 1 or num_tokens > self._context_length:
            raise RecordError(
                f"Task {task.task_id} needs {num_tokens} tokens, and the context holds {self._context_length}",
                fix="raise policy.context_length, or lower workload.sampler.max_new_tokens",
            )

    # -- writing -----------------------------------------------------------------------------------------------------

    async def generate(self, request: TokenRequest, written: Continuation) -> FinishReason:
        """Append to ``written`` until a stop token or ``max_new_tokens``; a cut request continues as a new one.

        Raises:
            RecordError: context and continuation do not fit the model.
            UnavailableError: the engine stops, or lost its server; the tokens so far stay in ``written``.
            CorruptionError: the versions that the server reports differ from the recorded ones; the engine ends as
            well.
        """
        start = len(written.tokens)
        if len(request.context) + request.sampler.max_new_tokens > self._context_length:
            raise RecordError(
                f"Request {request.request_id} needs {len(request.context)} tokens of context and"
                f" {request.sampler.max_new_tokens} more, and the model holds {self._context_length}"
            )
        async with self._slots:
            while True:
                await self._admitted()
                so_far = written.tokens[start:]
                if so_far and so_far[-1] in request.stop_ids:
                    return "stop"
                if len(so_far) >= request.sampler.max_new_tokens:
                    return "length"
                try:
                    finish = await self._streams.follow(
                        self._dialect.stream(self._server_request(request, so_far)),
                        written,
                        greedy=request.sampler.temperature == 0.0,
                        lost=self._lose,
                    )
                except TidegateError as error:
                    if not isinstance(error, UnavailableError | ServerRefusalError):
                        self._ended = error
                    raise
                if finish is not None:
                    return finish

    async def _admitted(self) -> None:
        """Wait for a version that passed the probe; ``run`` loads it, or ends."""
        await self._gate.wait()
        if self._ended is not None:
            raise UnavailableError("The engine has ended", why=str(self._ended)) from self._ended

    def _server_request(self, request: TokenRequest, so_far: list[int]) -> ServerRequest:
        left = request.sampler.max_new_tokens - len(so_far)
        return ServerRequest(
            # The server may still be ending a request that was cut.
            request_id=f"{request.request_id}-{next(self._request_numbers)}",
            context=(*request.context, *so_far),
            sampler=msgspec.structs.replace(request.sampler, max_new_tokens=left),
            stop_ids=request.stop_ids,
            cache_key=str(self._epoch),
        )

    # -- the engine's loop -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the server on the newest policy until ``EngineControl.stop``.

        Raises:
            TidegateError: no server within the deadline, too many failed updates in a row, or uncertain versions.
        """
        try:
            await self._connect()
            while not self._control.stop and self._ended is None:
                try:
                    await self._tick()
                except UnavailableError as error:
                    if self._ended is None:
                        await self._reconnect(error)
                await asyncio.sleep(POLL_S)
            if self._ended is not None:
                raise self._ended
        except TidegateError as error:
            self._end(error)
            raise
        finally:
            self._end(
                UnavailableError("The engine stops", fix="resume on another actor from the tokens so far")
            )

    def _end(self, error: TidegateError) -> None:
        self._ended = self._ended or error
        self._streams.fail(UnavailableError("The engine ends", why=str(error)))
        self._gate.set()  # ends all waits

    async def _tick(self) -> None:
        """One tick, from the present state alone; the same tick twice changes nothing."""
        if self._lost is not None:
            raise self._lost
        if self._process is not None:
            self._process.check()
        newest, now_s = self._control.newest, self._clock.monotonic_s()
        if newest is not None and self._is_due(newest, now_s=now_s):
            await self._update(newest)
        elif now_s - self._pinged_at_s >= PING_PERIOD_S:
            await self._ping()

    def _is_due(self, newest: PolicySnapshot, *, now_s: float) -> bool:
        if self._served is not None and newest is self._served.snapshot:
            return False
        return newest is not self._failed or now_s >= self._retry_at_s

    async def _ping(self) -> None:
        try:
            label = await self._dialect.label()
        except ServerRefusalError as error:
            # A server that starts again, or a proxy before it: not a reason to end the actor, and its engine with it.
            raise UnavailableError(
                "The inference server does not say what it serves",
                why=str(error),
                fix="read the server's log",
            ) from error
        self._pinged_at_s = self._clock.monotonic_s()
        if self._served is not None and label != label_of(self._served.snapshot.version):
            raise UnavailableError(
                f"The inference server serves {label!r} instead of {self._served.snapshot.version}",
                why="it was restarted, or updated by another client",
            )

    # -- updates -----------------------------------------------------------------------------------------------------

    async def _update(self, snapshot: PolicySnapshot) -> None:
        try:
            wanted = await self._thread.run(lambda: self._prepare(snapshot))
        except (RecordError, OSError) as error:
            self._note_failure(snapshot, error)
            return
        before = self._served
        self._gate.clear()
        started_at_s = self._clock.monotonic_s()
        try:
            await self._replace(wanted, before=before)
            paused_s = self._clock.monotonic_s() - started_at_s
            num_kept = len(self._streams)
            await self._compare(wanted)
        except (ServerRefusalError, UpdateRefusedError, DeadlineError, RecordError) as error:
            self._note_failure(snapshot, error)
            await self._roll_back(before, refused=snapshot)
            return
        except UnavailableError as error:
            self._note_failure(snapshot, error)
            raise
        self._served, self._failed, self._num_failures = wanted, None, 0
        self._control.away = False
        self._streams.release()
        self._gate.set()
        self._control.swapped(snapshot, seconds=paused_s)
        self._figures[server_stats.PAUSE_MS] = 1e3 * paused_s
        self._add(server_stats.UPDATES)
        self._add(server_stats.REQUESTS_KEPT, num_kept)
        await self._drop_all_but(wanted.folder)
        self._log.info("server_updated", version=str(snapshot.version), **self._figures)

    def _prepare(self, snapshot: PolicySnapshot) -> Served:
        expected = None if self._probe is None else self._probe.expect(snapshot.tensors)
        return Served(snapshot, self._weights.write(snapshot), expected)

    async def _replace(self, wanted: Served, *, before: Served | None) -> None:
        """Pause, drain, load, resume. The server resumes as well when this fails, by ``_roll_back``."""
        await self._dialect.pause()
        await self._drain_streams()
        version = wanted.snapshot.version
        self._streams.serve(
            version, before=None if before is None else before.snapshot.version, held=self._probe is not None
        )
        started_at_s = self._clock.monotonic_s()
        await self._dialect.load(wanted.folder, label=label_of(version))
        self._figures[server_stats.UPDATE_MS] = 1e3 * (self._clock.monotonic_s() - started_at_s)
        self._epoch += 1
        self._num_made_before = await self._dialect.tokens_made() or 0
        self._streams.begin_count()
        await self._dialect.resume()

    async def _drain_streams(self) -> None:
        """Wait until all tokens of a paused server have arrived; requests that wait for more are cut."""
        if self._dialect.labels_pieces:
            num_cut = self._streams.cut(only_unlabelled=True)
        else:
            num_cut = 0 if await self._all_arrived() else self._streams.cut()
        self._add(server_stats.STREAMS_CUT, num_cut)
        await self._streams.until_ended()

    async def _all_arrived(self) -> bool:
        """Whether all tokens arrived that the server counts as generated, in two consecutive polls.

        Those of a caller that has gone never do: what is still missing once nothing arrives any more is theirs.
        """
        deadline_s = self._clock.monotonic_s() + self._config.drain_deadline_s
        num_alike, missing_before = 0, -1
        while len(self._streams):
            num_made = await self._dialect.tokens_made()
            if num_made is None:
                return False
            missing = num_made - self._num_made_before - self._streams.num_received
            num_alike = num_alike + 1 if missing == missing_before else 1
            missing_before = missing
            if missing == 0 and num_alike == 2:
                return True
            if self._streams.has_left_tokens and num_alike == STILL_POLLS:
                return False
            if self._clock.monotonic_s() >= deadline_s:
                return False
            await asyncio.sleep(DRAIN_POLL_S)
        return True

    async def _compare(self, served: Served) -> None:
        if self._probe is None or served.expected is None:
            return
        answer = await self._dialect.probe(self._probe.tokens, temperature=TEMPERATURE)
        error = probe_error(served.expected, answer)
        self._figures[server_stats.PROBE_ERROR] = error
        if not error <= self._tolerance:
            raise UpdateRefusedError(
                f"The server's logprobs under {served.snapshot.version} are off by {error:.3g} on average",
                why=f"more than {self._tolerance:g} is no rounding: it has other weights, another dtype or another"
                " way to give logprobs",
                fix="start it as docs/engines.md describes, from the folder written for it, with its head untied",
            )

    async def _roll_back(self, before: Served | None, *, refused: PolicySnapshot) -> None:
        """Restore the previous version and verify it; without one, requests wait until a version is verified.

        Raises:
            UnavailableError: it cannot be restored; the server's weights are unknown.
        """
        self._add(server_stats.STREAMS_CUT, self._streams.cut(refused=refused.version))
        await self._drop_all_but(*([before.folder] if before else []))
        try:
            if before is None:
                await self._dialect.resume()
                return
            await self._replace(before, before=None)
            await self._compare(before)
        except (ServerRefusalError, UpdateRefusedError, DeadlineError, RecordError) as error:
            with contextlib.suppress(ServerRefusalError, UnavailableError):
                await self._dialect.resume()
            raise UnavailableError(
                "The inference server cannot be restored to the previous version", why=str(error)
            ) from error
        self._streams.release()
        self._gate.set()
        self._log.info("server_rolled_back", version=str(before.snapshot.version))

    async def _drop_all_but(self, *kept: Path) -> None:
        try:
            await self._thread.run(lambda: self._weights.drop_all_but(*kept))
        except OSError as error:
            # A network file system keeps what the server has open; the next update tries again.
            self._log.warning("server_weights_not_removed", error=str(error))

    def _note_failure(self, snapshot: PolicySnapshot, error: Exception) -> None:
        self._failed = snapshot
        self._num_failures += 1
        self._retry_at_s = self._clock.monotonic_s() + self._config.retry_delay_s
        self._add(server_stats.UPDATES_REFUSED)
        self._log.warning("server_update_refused", version=str(snapshot.version), error=str(error))
        if self._num_failures >= self._config.failures_max:
            self._ended = UpdateRefusedError(
                f"{self._num_failures} updates of the inference server failed in a row",
                why=str(error),
                fix="read the server's log; actor.server.failures_max bounds consecutive failures",
            )

    # -- lost servers ------------------------------------------------------------------------------------------------

    def _lose(self, error: UnavailableError) -> None:
        """A request lost the server: send no other request until ``_reconnect`` has checked it."""
        self._lost = self._lost or error
        if self._ended is None:
            self._gate.clear()

    async def _connect(self) -> None:
        """Start the server if it is ours, and wait until it is ready."""
        if self._process is not None:
            await self._process.start()
        deadline_s = self._clock.monotonic_s() + self._config.ready_deadline_s
        while not self._control.stop:
            try:
                await self._dialect.check(context_length=self._context_length)
            except (UnavailableError, ServerRefusalError) as error:
                if self._process is not None:
                    self._process.check()
                if self._clock.monotonic_s() >= deadline_s:
                    raise UnavailableError(
                        f"No inference server within {self._config.ready_deadline_s:g} s",
                        why=str(error),
                        fix="start it, or raise actor.server.ready_deadline_s",
                    ) from error
                await asyncio.sleep(READY_POLL_S)
            else:
                self._pinged_at_s = self._clock.monotonic_s()
                return

    async def _reconnect(self, error: UnavailableError) -> None:
        """A server that was lost may have restarted with other weights: reload them."""
        self._log.warning("server_lost", error=str(error))
        self._add(server_stats.LOSSES)
        self._gate.clear()
        self._control.away = True
        self._streams.fail(error)
        self._served, self._failed, self._lost = None, None, None
        await self._connect()

    def _add(self, counter: Counter, value: float = 1.0) -> None:
        self._figures[counter] = self._figures.get(counter, 0.0) + value

    async def close(self) -> None:
        """End requests, connections, and the server if it is ours."""
        self._end(UnavailableError("The engine is closed"))
        await self._dialect.close()
        if self._process is not None:
            await self._process.stop()
        self._thread.close()
