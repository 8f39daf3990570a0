"""Language models in process, with continuous batching in a separate thread.

The thread reads ``EngineControl`` between two steps and loads a newer policy there; every token carries the version
that drew it (I5). The event loop appends tokens to their ``Continuation``, in one callback a step for all rows. Callers
set ``EngineControl.running``, because only they know the task of a request.
"""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import structlog
import torch

from tidegate.actor.engines.port import EngineControl
from tidegate.actor.engines.refusals import check_sampler
from tidegate.actor.engines.registry import EngineSetting
from tidegate.actor.engines.token_port import Continuation, FinishReason, TokenRequest
from tidegate.core.errors import BackpressureError, RecordError, TidegateError, UnavailableError
from tidegate.core.ids import PolicyVersion
from tidegate.core.records import PolicySnapshot, Task
from tidegate.models.causal_lm import CausalLm
from tidegate.models.continuous import ContinuousBatch, GenerationRow, GenerationStep
from tidegate.models.devices import ChosenDevice, DeviceSetting, choose_device, find_cuda
from tidegate.models.finite import check_finite
from tidegate.models.language_models import open_language_model, open_tokenizer
from tidegate.models.tokenizer import Tokenizer
from tidegate.runtime.clock import Clock

# Concurrent requests, far above those of an actor's slots and an evaluation; a finished request frees a place.
REQUESTS_MAX = 65_536
# Keys and values. Rows wait when it is full, see ``SlotCache``.
CACHE_BYTES_MAX = 4 * 1024**3
# Tokens of contexts read between two tokens of the running rows: the longest delay of the others by a long prompt.
TOKENS_PER_PASS = 512
# Period at which an idle engine checks for a policy or a stop; a request wakes it immediately.
IDLE_WAIT_S = 0.05


class _EngineCall:
    """A request in flight: ``row`` is its place in the batch, which the thread alone sets and reads."""

    __slots__ = ("future", "request", "row", "written")

    def __init__(
        self, request: TokenRequest, written: Continuation, future: asyncio.Future[FinishReason]
    ) -> None:
        self.request = request
        self.written = written
        self.future = future
        self.row: int | None = None


class TorchEngine:
    """A ``TokenEngine`` over any ``CausalLm``; greedy tokens (temperature 0) have the logprob 0.

    Bounded: ``REQUESTS_MAX`` requests, ``slots`` of them in the cache. Tokens in transit from the thread to the event
    loop are bounded by the requests' caps.
    """

    def __init__(
        self,
        model: CausalLm,
        tokenizer: Tokenizer,
        *,
        slots: int,
        control: EngineControl,
        clock: Clock,
        threads: int = 1,
        cache_on_swap: Literal["recompute", "keep"] = "recompute",
        cache_bytes_max: int = CACHE_BYTES_MAX,
        tokens_per_pass: int = TOKENS_PER_PASS,
    ) -> None:
        """The model has no policy until the first one is offered.

        Raises:
            ConfigError: the cache cannot hold one text of the model's context.
        """
        self._model = model
        self._tokenizer = tokenizer
        self._control = control
        self._clock = clock
        self._threads = threads
        self._recomputes = cache_on_swap == "recompute"
        self._batch = ContinuousBatch(
            model,
            slots=slots,
            waiting_max=REQUESTS_MAX,
            tokens_per_pass=tokens_per_pass,
            cache_bytes_max=cache_bytes_max,
        )
        # A call is added when it starts and again when it is cancelled; the thread removes it.
        self._inbox: deque[_EngineCall] = deque()
        self._wake = threading.Event()
        self._calls: set[_EngineCall] = set()
        self._calls_of_rows: dict[int, _EngineCall] = {}  # owned by the thread
        self._closing = False
        self._ended = False

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's own."""
        return self._tokenizer

    @property
    def context_length(self) -> int:
        """Tokens of a context and its continuation together."""
        return self._model.context_length

    def check_policy(self, snapshot: PolicySnapshot) -> None:
        """Check that the tensors are this model's parameters, and finite.

        Raises:
            RecordError: a name, shape or dtype does not fit, or a value is not finite.
        """
        self._model.check_arrays(snapshot.tensors)
        check_finite(snapshot)

    def check_task(self, task: Task) -> None:
        """Check that the prompt can be encoded, leaves room for an answer, and has recomputable logprobs.

        Raises:
            RecordError: it cannot; the message names the field and the reason.
        """
        name = f"Task {task.task_id}"
        check_sampler(task.sampler, name=name)
        num_tokens = len(self._tokenizer.encode_prompt(task.prompt))
        if num_tokens >= self.context_length:
            raise RecordError(
                f"{name} has a prompt of {num_tokens} tokens, and the context holds {self.context_length}",
                why="nothing can be written behind it",
                fix="raise policy.context_length, or shorten the prompt",
            )

    async def run(self) -> None:
        """Write in a thread until ``EngineControl.stop``; unfinished requests then end with ``UnavailableError``.

        Raises:
            TidegateError: the thread failed.
        """
        loop = asyncio.get_running_loop()
        executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="torch-engine")
        work = loop.run_in_executor(executor, self._work, loop)
        try:
            await asyncio.shield(work)
        except TidegateError:
            raise
        except Exception as error:
            raise TidegateError(
                "The engine failed while it was generating",
                why=f"{type(error).__name__}: {error}",
                fix="lower actor.slots or policy.context_length if memory ran out",
            ) from error
        finally:
            self._closing = True
            self._wake.set()
            await asyncio.wait({work})  # takes at most one step
            executor.shutdown(wait=False)
            self._end()

    async def generate(self, request: TokenRequest, written: Continuation) -> FinishReason:
        """Append to ``written`` until a stop token or ``max_new_tokens``; cancelled, it frees its slot at the next.

        Raises:
            RecordError: context and continuation do not fit the model, or its sampler truncates.
            BackpressureError: ``REQUESTS_MAX`` requests are in flight.
            UnavailableError: the engine stops; the tokens so far stay and can be resumed.
        """
        check_sampler(request.sampler, name=f"Request {request.request_id}")
        self._batch.check(_row(request))
        if self._ended or self._control.stop:
            raise _stopped()
        if len(self._calls) >= REQUESTS_MAX:
            raise BackpressureError(
                f"{REQUESTS_MAX} requests are in flight", fix="retry when some have finished"
            )
        call = _EngineCall(request, written, asyncio.get_running_loop().create_future())
        self._calls.add(call)
        self._enqueue(call)
        try:
            return await call.future
        finally:
            self._calls.discard(call)
            if call.future.cancelled():
                self._enqueue(call)

    async def close(self) -> None:
        """Let the thread end after its step; nothing to release except memory."""
        self._closing = True
        self._wake.set()
        self._end()

    # -- in the event loop -----------------------------------------------------------------------------------------

    def _enqueue(self, call: _EngineCall) -> None:
        self._inbox.append(call)
        self._wake.set()

    def _deliver(self, calls: Sequence[_EngineCall], stepped: GenerationStep, version: PolicyVersion) -> None:
        for call, row, token, logprob in zip(
            calls, stepped.rows, stepped.tokens, stepped.logprobs, strict=True
        ):
            if call.future.done():
                continue  # cancelled while this step was computed
            call.written.append((token,), (logprob,), version)
            reason = stepped.ended.get(row)
            if reason is not None:
                call.future.set_result(reason)

    def _end(self) -> None:
        """Fail the waiting calls of an engine that has stopped."""
        self._ended = True
        for call in self._calls:
            if not call.future.done():
                call.future.set_exception(_stopped())

    # -- in the thread ---------------------------------------------------------------------------------------------

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        torch.set_num_threads(self._threads)  # applies to operations of this thread
        while not (self._control.stop or self._closing):
            self._wake.clear()
            self._process_inbox()
            version = self._serve_newest()
            if version is None or not self._batch.num_rows:
                self._wake.wait(IDLE_WAIT_S)
                continue
            stepped = self._batch.step()
            if stepped.rows:
                calls = [self._calls_of_rows[row] for row in stepped.rows]
                for row in stepped.ended:
                    del self._calls_of_rows[row]
                loop.call_soon_threadsafe(self._deliver, calls, stepped, version)

    def _process_inbox(self) -> None:
        """Start new calls, and stop cancelled ones."""
        while self._inbox:
            call = self._inbox.popleft()
            if call.row is not None:
                self._batch.stop(call.row)
                self._calls_of_rows.pop(call.row, None)
            elif not call.future.cancelled():
                [call.row] = self._batch.add([_row(call.request)])
                self._calls_of_rows[call.row] = call

    def _serve_newest(self) -> PolicyVersion | None:
        """Load the newest policy unless it is loaded; returns the version of the next tokens."""
        newest = self._control.newest
        if newest is None:
            return None
        if newest is not self._control.serving:
            started_at_s = self._clock.monotonic_s()
            self._model.load_arrays(newest.tensors)
            if self._recomputes:
                self._batch.refresh_cache()
            else:
                self._batch.keep_cache()
            self._control.swapped(newest, seconds=self._clock.monotonic_s() - started_at_s)
        return newest.version


def _row(request: TokenRequest) -> GenerationRow:
    return GenerationRow(
        context=request.context,
        max_new_tokens=request.sampler.max_new_tokens,
        temperature=request.sampler.temperature,
        stop_ids=request.stop_ids,
        seed=request.seed % 2**64,
    )


def _stopped() -> UnavailableError:
    return UnavailableError(
        "The engine has stopped", why="its actor drains", fix="resume on another actor from the tokens so far"
    )


def find_device(wanted: DeviceSetting) -> ChosenDevice:
    """The device of ``actor.device``, and why.

    Raises:
        ConfigError: a GPU is asked for and torch finds none.
    """
    return choose_device(wanted, setting="actor.device", cuda=find_cuda(), environ=os.environ)


def open_engine(setting: EngineSetting, control: EngineControl, clock: Clock) -> TorchEngine:
    """Open the run file's model on the device of ``actor.device``, which is logged with the reason.

    Raises:
        ConfigError: there is no such model, its context does not fit into the cache, or a GPU is asked for and torch
            finds none.
    """
    chosen = find_device(setting.device)
    structlog.get_logger("torch-engine").info("device_chosen", device=chosen.device, why=chosen.why)
    return TorchEngine(
        open_language_model(setting.policy, trains=False, device=chosen.torch_device()),
        open_tokenizer(setting.policy),
        slots=setting.slots,
        control=control,
        clock=clock,
        threads=setting.threads,
        cache_on_swap=setting.cache_on_swap,
    )
