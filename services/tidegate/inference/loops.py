"""The loop that answers steps, and the policy that it acts with."""

import asyncio
import contextlib
import math
from collections.abc import Sequence
from functools import partial

from tidegate.catalogue import inference as statistics
from tidegate.catalogue.telemetry import METRIC_INFERENCE_BATCH, METRIC_INFERENCE_WAIT
from tidegate.core.errors import DeadlineError, UnavailableError
from tidegate.core.records import PolicySnapshot
from tidegate.core.staleness import LineageTree
from tidegate.inference.acting import PreparedVersion, ServedVersion, act_together, prepare
from tidegate.inference.config import InferenceConfig
from tidegate.inference.state import (
    ActNow,
    CheckedStep,
    Decision,
    Idle,
    WaitForOthers,
    WaitingStep,
    check_opening,
    check_step,
    decide,
)
from tidegate.inference.streams import ActingStream, OpenStreams
from tidegate.models.policy_port import StepPolicy
from tidegate.runtime.policy_follower import FollowerStatistics
from tidegate.runtime.service import ServiceContext
from tidegate.runtime.threads import WorkerThread
from tidegate.wire.announcement import Announcement
from tidegate.wire.vector_step import ActedStep, ActingPolicy, ActOpening, ActStep, StepLayout

FOLLOWER_STATISTICS = FollowerStatistics(
    refused=statistics.POLICIES_REFUSED,
    retries=statistics.PULL_RETRIES,
    pull_ms=statistics.PULL_MS,
    step=statistics.SERVING_STEP,
    version=statistics.SERVING_VERSION,
)
# A call of the network takes milliseconds; one that takes this long does not return, and the process ends.
CALL_DEADLINE_S = 30.0
# Handing a call to the thread and back took 0.2 to 0.5 ms of CPU; one that takes less blocks the loop for less.
CALL_HERE_S = 0.5e-3
# How late a drain or a deadline is noticed that no event tells.
WAKE_S = 0.25
# The share of a new call in the reported means.
MEAN_SHARE = 1 / 64


class Inference:
    """Everything of the service but its gRPC; the user of ``runtime.policy_follower``."""

    def __init__(
        self, context: ServiceContext, config: InferenceConfig, policy: StepPolicy, layout: StepLayout
    ) -> None:
        """``layout``: of one actor's steps."""
        self._context = context
        self._config = config
        self._policy = policy
        self._layout = layout
        self._streams = OpenStreams(streams_max=config.streams_max)
        self._thread = WorkerThread("network")
        self._prepared: PreparedVersion | None = None
        self._served: ServedVersion | None = None
        self._wakeup = asyncio.Event()
        # Time of the last call of the network; the first one is made in the thread.
        self._call_s = math.inf

    # -- policies --------------------------------------------------------------------------------------------------

    async def check(self, announcement: Announcement) -> None:
        """Policies of segments have no base model."""

    async def prepare(self, snapshot: PolicySnapshot) -> None:
        """See ``acting.prepare``; between two calls of the network."""
        self._prepared = await self._thread.run(
            partial(prepare, self._policy, snapshot, threads=self._config.threads)
        )

    def serve(self, snapshot: PolicySnapshot, tree: LineageTree, *, now_s: float) -> None:
        """Act with it from the next call on, and tell every actor."""
        del now_s
        prepared = self._prepared
        assert prepared is not None
        assert prepared.version == snapshot.version
        self._served = ServedVersion(prepared, tree)
        for stream in self._streams.all():
            stream.tell(ActingPolicy(snapshot.version, tree))
        self._wakeup.set()

    # -- streams ---------------------------------------------------------------------------------------------------

    def open(self, opening: ActOpening) -> ActingStream:
        """A new stream, told the policy if there is one.

        Raises:
            RefusedError: its steps could not be answered.
            BackpressureError: every place is taken.
            UnavailableError: the service drains.
        """
        if self._context.drain.requested:
            raise UnavailableError("The inference service is draining", fix="its next process answers")
        check_opening(opening, self._layout, run=self._context.settings.run)
        stream = self._streams.open(opening.instance)
        self._count_streams()
        if self._served is not None:
            stream.tell(ActingPolicy(self._served.prepared.version, self._served.tree))
        return stream

    def ask(self, stream: ActingStream, step: ActStep) -> None:
        """A step of a stream waits to be answered.

        Raises:
            RefusedError: it cannot be.
            UnavailableError: there is no policy yet.
        """
        if self._served is None:
            raise UnavailableError("The inference service has no policy yet")
        now_s = self._context.clock.monotonic_s()
        stream.ask(check_step(step, self._layout, instance=stream.instance, now_s=now_s))
        self._wakeup.set()

    def close(self, stream: ActingStream) -> None:
        """A stream has ended."""
        stream.end()
        self._streams.close(stream)
        self._count_streams()
        self._wakeup.set()

    def _count_streams(self) -> None:
        self._context.stats.set(statistics.STREAMS, len(self._streams.all()))

    # -- answers ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Answers waiting steps in batches until draining; then answers those that wait, and ends all streams."""
        ring = asyncio.create_task(self._ring_at_drain())
        try:
            while True:
                self._wakeup.clear()
                if self._context.drain.requested:
                    self._end_idle()
                match self._decide():
                    case ActNow(count=count):
                        await self._act(count)
                    case WaitForOthers(until_s=until_s):
                        await self._wait(until_s - self._context.clock.monotonic_s())
                    case Idle():
                        if self._context.drain.requested:
                            return
                        await self._wait(WAKE_S)
        finally:
            ring.cancel()

    async def close_thread(self) -> None:
        """Start no further call of the network."""
        self._thread.close()

    async def _ring_at_drain(self) -> None:
        await self._context.drain.wait()
        self._wakeup.set()

    def _end_idle(self) -> None:
        for stream in self._streams.all():
            if stream.waiting is None:
                stream.end()

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._wakeup.wait()

    def _waiting(self) -> list[tuple[ActingStream, float]]:
        """Streams whose step waits and since when, the oldest first."""
        waiting = [
            (stream, stream.waiting.since_s) for stream in self._streams.all() if stream.waiting is not None
        ]
        return sorted(waiting, key=lambda pair: pair[1])

    def _decide(self) -> Decision:
        return decide(
            [WaitingStep(self._layout.num_envs, since_s) for _, since_s in self._waiting()],
            answered_at_s=[stream.answered_at_s for stream in self._streams.all() if stream.waiting is None],
            now_s=self._context.clock.monotonic_s(),
            rows_max=self._config.batch_rows_max,
            wait_s=1e-3 * self._config.batch_wait_ms,
        )

    async def _answers(self, served: ServedVersion, steps: Sequence[CheckedStep]) -> list[ActedStep]:
        """The network's answers: in its thread, or here when it takes less time than the way there and back.

        Raises:
            DeadlineError: it does not return.
        """
        call = partial(self._timed, served.prepared, steps)
        if self._call_s < CALL_HERE_S:
            return call()
        try:
            async with asyncio.timeout(CALL_DEADLINE_S):
                return await self._thread.run(call)
        except TimeoutError as error:
            raise DeadlineError(
                f"The network has not returned for {CALL_DEADLINE_S:g} s",
                why=f"it was called for {len(steps)} steps of {served.prepared.version}",
            ) from error

    def _timed(self, prepared: PreparedVersion, steps: Sequence[CheckedStep]) -> list[ActedStep]:
        started_at_s = self._context.clock.monotonic_s()
        answers = act_together(self._policy, prepared, steps)
        self._call_s = self._context.clock.monotonic_s() - started_at_s
        return answers

    async def _act(self, count: int) -> None:
        """Answer the oldest steps.

        Raises:
            DeadlineError: the network does not return.
        """
        served, clock, stats = self._served, self._context.clock, self._context.stats
        assert served is not None, "steps are asked once there is a policy"
        asked = [(stream, step) for stream, _ in self._waiting()[:count] if (step := stream.waiting)]
        started_at_s = clock.monotonic_s()
        answers = await self._answers(served, [step for _, step in asked])
        now_s = clock.monotonic_s()
        for (stream, step), answer in zip(asked, answers, strict=True):
            if stream.waiting is step:  # else the stream ended meanwhile
                stream.answer(answer, now_s=now_s)
        waits_s = [started_at_s - step.since_s for _, step in asked]
        num_rows = len(asked) * self._layout.num_envs
        stats.add(statistics.BUSY_S, now_s - started_at_s)
        stats.add(statistics.STEPS, num_rows)
        stats.add(statistics.REQUESTS, len(asked))
        stats.add(statistics.BATCHES)
        stats.add(statistics.WAITED_S, sum(waits_s))
        for gauge, value in (
            (statistics.BATCH_ROWS, num_rows),
            (statistics.WAIT_MS, 1e3 * sum(waits_s) / len(waits_s)),
        ):
            share = MEAN_SHARE if stats.value(gauge) else 1.0
            stats.set(gauge, (1.0 - share) * stats.value(gauge) + share * value)
        telemetry = self._context.telemetry
        if telemetry.enabled:
            telemetry.observe(METRIC_INFERENCE_BATCH, num_rows)
            for wait_s in waits_s:
                telemetry.observe(METRIC_INFERENCE_WAIT, wait_s)
