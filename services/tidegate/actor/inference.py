"""The actor's side of the inference service: one stream, opened again whenever it ends.

The version that the service acts with takes the place of the one that an actor serves: tasks wait for it as they wait
for weights elsewhere, and no weights are pulled.
"""

import asyncio

from tidegate.actor.engines.exchange import StepExchange
from tidegate.actor.engines.port import EngineControl
from tidegate.actor.rollouts.served_policy import ServedPolicy
from tidegate.catalogue import actor as statistics
from tidegate.core.errors import DeadlineError, TidegateError, UnavailableError
from tidegate.core.records import PolicySnapshot
from tidegate.runtime.races import run_until
from tidegate.runtime.retrying import Backoff, FailedAttempt, UntilCancelled, retry
from tidegate.runtime.service import ServiceContext
from tidegate.wire.clients.inference import InferenceStream
from tidegate.wire.vector_step import ActedStep, ActingPolicy, StepLayout

BACKOFF = Backoff(start_s=0.05, max_s=1.0)
# A new process of the service needs a few seconds until it says what it acts with; the first policy may take minutes.
# Then the stream is opened again, to a peer that may have moved.
POLICY_DEADLINE_S = 30.0
# An answer takes milliseconds. A service that is stopped, and not ended, is noticed after this.
ANSWER_DEADLINE_S = 10.0
STOP_POLL_S = 0.05


class InferenceLoop:
    """Carries steps to the inference service, and answers and policies back.

    Consumes steps of the engine; waits for the service; unblocked by its supervisor. While there is no stream the actor
    takes no tasks (``EngineControl.away``), and the engine's step waits.
    """

    def __init__(
        self,
        context: ServiceContext,
        exchange: StepExchange,
        layout: StepLayout,
        *,
        control: EngineControl,
        served_policy: ServedPolicy,
    ) -> None:
        """``layout``: of the engine's steps."""
        self._context = context
        self._exchange = exchange
        self._layout = layout
        self._control = control
        self._served_policy = served_policy
        self._told = asyncio.Event()
        control.away = True
        exchange.attach()

    async def run(self) -> None:
        """Keep a stream until the actor drains and its engine has stopped.

        Raises:
            TidegateError: the service refuses what this actor sends; another attempt cannot help.
        """
        await run_until(self._stopped(), self._keep_connected())

    async def _stopped(self) -> None:
        """Rollouts that run while draining still need actions."""
        await self._context.drain.wait()
        # An engine is stopped by a flag that its thread reads, which wakes no one.
        while not self._control.stop:  # noqa: ASYNC110
            await asyncio.sleep(STOP_POLL_S)

    async def _keep_connected(self) -> None:
        while True:
            stream = await retry(self._connect, BACKOFF, draining=UntilCancelled(), on_retry=self._note)
            try:
                await run_until(self._send(stream), self._receive(stream))
            except TidegateError as error:
                if not error.retryable:
                    raise
                self._lost(error)
            else:
                self._lost(UnavailableError("The inference service ended the stream", why="it drains"))
            finally:
                self._control.away = True
                self._told.clear()
                stream.close()

    def _note(self, failed: FailedAttempt) -> None:
        self._lost(failed.error)

    def _lost(self, error: TidegateError) -> None:
        self._control.count(statistics.INFERENCE_LOSSES)
        self._context.log.warning("inference_lost", error=str(error))

    async def _connect(self) -> InferenceStream:
        """An open stream whose service has told its policy.

        Raises:
            UnavailableError: it does not answer, or has no policy yet.
        """
        stream = InferenceStream(self._context.channel("inference"), self._layout)
        try:
            async with asyncio.timeout(POLICY_DEADLINE_S):
                await stream.open(
                    self._layout.opening(run_id=self._context.settings.run, instance=self._context.instance)
                )
                while not self._told.is_set():
                    await self._take_next(stream)
        except TimeoutError as error:
            stream.close()
            raise DeadlineError(
                f"The inference service told no policy within {POLICY_DEADLINE_S:g} s",
                why="the learner has published none, or the service cannot load it",
            ) from error
        except BaseException:
            stream.close()
            raise
        self._control.away = False
        return stream

    async def _receive(self, stream: InferenceStream) -> None:
        """Take answers and policies until the service ends the stream."""
        try:
            while True:
                await self._take_next(stream)
        except _EndedError:
            return

    async def _take_next(self, stream: InferenceStream) -> None:
        message = await stream.receive()
        match message:
            case ActedStep():
                self._exchange.answer(message)
            case ActingPolicy():
                self._serve(message)
            case None:
                raise _EndedError("The inference service ended the stream", why="it drains")

    async def _send(self, stream: InferenceStream) -> None:
        """Send each step once; what was not answered on the stream before is sent first.

        Raises:
            UnavailableError: the stream ended, or an answer takes too long.
        """
        sent = None
        while True:
            try:
                async with asyncio.timeout(ANSWER_DEADLINE_S):
                    await self._exchange.wait_for_another(sent)
            except TimeoutError as error:
                if sent is not None and self._exchange.step is sent:
                    raise DeadlineError(
                        f"The inference service has not answered for {ANSWER_DEADLINE_S:g} s"
                    ) from error
                continue
            sent = self._exchange.step
            if sent is not None:
                await stream.send(sent)

    def _serve(self, policy: ActingPolicy) -> None:
        """The service acts with this version from now on."""
        if self._is_older(policy):
            # A new process that has not read the newest announcement yet: its next message is newer.
            return
        context = self._context
        snapshot = PolicySnapshot(policy.version, {})
        self._served_policy.offer(snapshot, policy.tree, now_s=context.clock.now_s())
        context.stats.set(statistics.SERVING_STEP, policy.version.step)
        context.stats.label(statistics.SERVING_VERSION, str(policy.version))
        self._told.set()

    def _is_older(self, policy: ActingPolicy) -> bool:
        served = self._served_policy.version
        return served is not None and not policy.tree.satisfies(policy.version, served)


class _EndedError(UnavailableError):
    """The service ended a stream as complete."""
