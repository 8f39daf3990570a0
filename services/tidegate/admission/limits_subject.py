"""The limits in force are the newest message of one subject of CONTROL, which the task queue follows.

Where admission has several pods (``admission.replicas`` of the chart), one leads and the others stand by, but a leader
that was cut off may not know yet that another one took over. So each message says which process wrote it, and JetStream
takes it only as the next one of the subject: the writer that took over last publishes limits, an earlier one finds out.
"""

from tidegate.core.errors import ConflictError, UnavailableError
from tidegate.runtime.bus import Published
from tidegate.runtime.service import ServiceContext

TASK_QUEUE = "task_queue"
HEADER_WRITER = "Tidegate-Writer"
# An earlier leader publishes at most once a tick, so the second attempt succeeds.
ATTEMPTS_MAX = 8


class SupersededError(ConflictError):
    """Another admission leads; this process starts again and stands by."""

    def __init__(self, why: str) -> None:
        super().__init__(
            "Another admission leads", why=why, fix="do nothing: this process starts again and stands by"
        )


class LimitsSubject:
    """Publishes limits as one writer, of several or the only one."""

    def __init__(self, context: ServiceContext, *, writer: str, deadline_s: float) -> None:
        """``writer``: a name of this process alone; empty where admission has one pod, which nothing is held against.

        ``deadline_s``: of one publish.
        """
        self._context = context
        self._writer = writer
        self._deadline_s = deadline_s
        self._stream = context.topology.stream("CONTROL")
        self._subject = context.topology.control(TASK_QUEUE)
        # Of the newest message, as this writer knows it; 0 for none.
        self._sequence = 0

    @property
    def has_others(self) -> bool:
        """Whether admission has other pods, with which this one takes turns."""
        return bool(self._writer)

    async def take_over(self) -> None:
        """Repeat the limits in force as this writer's; from then on those of earlier writers are refused.

        Raises:
            UnavailableError: the broker did not answer, or the subject did not come to rest.
        """
        if not self._writer:
            return
        for _ in range(ATTEMPTS_MAX):
            last = await self._context.bus.last(self._stream, self._subject)
            if last is None:
                self._sequence = 0
                return
            try:
                self._sequence = (await self._send(last.data, after=last.sequence)).sequence
            except ConflictError:
                continue  # the earlier leader published between the two
            return
        raise UnavailableError(
            "The limits cannot be taken over",
            why=f"another admission published {ATTEMPTS_MAX} times meanwhile",
            fix="see which pods of admission run; one of them leads",
        )

    async def publish(self, limits: bytes) -> None:
        """Publish limits; returns once they are stored.

        Raises:
            SupersededError: another writer took over.
            UnavailableError: no acknowledgement came in time.
        """
        if not self._writer:
            await self._send(limits, after=None)
            return
        try:
            sent = await self._send(limits, after=self._sequence)
        except ConflictError:
            # Also after a message of ours whose acknowledgement was lost.
            self._sequence = await self._own_last()
            sent = await self._send(limits, after=self._sequence)
        self._sequence = sent.sequence

    async def check(self) -> None:
        """Return if no other writer took over.

        Raises:
            SupersededError: another one did.
            UnavailableError: JetStream did not answer.
        """
        if self._writer:
            await self._own_last()

    async def _own_last(self) -> int:
        last = await self._context.bus.last(self._stream, self._subject)
        if last is None:
            return 0
        writer = last.headers.get(HEADER_WRITER, "")
        if writer != self._writer:
            raise SupersededError(
                f"the limits in force are those of {writer or 'an earlier version of admission'}"
            )
        return last.sequence

    async def _send(self, limits: bytes, *, after: int | None) -> Published:
        return await self._context.bus.publish(
            self._subject,
            limits,
            message_id=f"limits-{self._writer}-{self._context.clock.now_s():.6f}",
            headers={HEADER_WRITER: self._writer} if self._writer else None,
            deadline_s=self._deadline_s,
            expected_last_sequence=after,
        )
