"""The outbox of finished work: publish until the broker acknowledges it; upload first if it exceeds a message.

Retries have no deadline: finished work is worth the wait for a full stream or an absent peer. They continue while
draining, until the lifecycle cancels them after ``drain_timeout_s``; the unacknowledged task is then redelivered.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from tidegate.catalogue import publishing
from tidegate.core.errors import BackpressureError, PayloadTooLargeError
from tidegate.core.records import Task, Trajectory
from tidegate.runtime.retrying import Backoff, FailedAttempt, UntilCancelled, retry
from tidegate.runtime.service import ServiceContext
from tidegate.wire.clients.trajectory_store import TrajectoryStoreClient
from tidegate.wire.frame import encode_frame, encode_with_digest
from tidegate.wire.subjects import (
    HEADER_REFERENCE,
    HEADER_TASK_PROOF,
    HEADER_TRACE_PARENT,
    HEADER_TRAJECTORY_IDS,
    SHARD,
)
from tidegate.wire.task_proof import proof_of

BACKOFF = Backoff(start_s=0.1, max_s=2.0)

T = TypeVar("T")


class Outbox:
    """Sends the records of one task as one message, always under the same message id, so that a repeat is a duplicate.

    Counts ``publish_backpressure_total`` and ``publish_retries_total`` (attempts) and ``uploads_total`` (frames).
    """

    def __init__(self, context: ServiceContext, store: TrajectoryStoreClient) -> None:
        self._context = context
        self._store = store

    async def send_rollouts(self, task: Task, records: Sequence[Trajectory]) -> None:
        """Send the group of ``task`` to ROLLOUTS, where environment workers score it.

        Raises:
            PayloadTooLargeError: no message can hold it; nothing was sent.
            TidegateError: the broker refuses it.
        """
        context, task_id = self._context, records[0].task_id
        frame, headers = message_of(records, of=task)
        await self.retry(
            task_id,
            lambda: context.bus.publish(
                context.topology.rollouts(context.settings.workload.label),
                frame,
                message_id=task_id,
                headers=headers,
            ),
        )

    async def send_trajectories(self, records: Sequence[Trajectory], *, of: Task | str) -> None:
        """Send scored records to TRAJECTORIES: the frame, or the reference under which the store holds it.

        ``of``: their task, or the proof that an actor sent with them.

        Raises:
            TidegateError: the broker or the store refuses them.
        """
        bus, subject = self._context.bus, self._context.topology.trajectories(SHARD)
        frame, headers = message_of(records, of=of)
        task_id = records[0].task_id
        message_id = f"{task_id}:scored"

        async def send() -> None:
            try:
                await bus.publish(subject, frame, message_id=message_id, headers=headers)
            except PayloadTooLargeError:
                self._context.stats.add(publishing.UPLOADS)
                reference = await self._store.upload(message_id, frame)
                referring = {**headers, HEADER_REFERENCE: "1"}
                await bus.publish(subject, reference, message_id=message_id, headers=referring)

        await self.retry(task_id, send)

    async def retry(self, task_id: str, step: Callable[[], Awaitable[T]]) -> T:
        """The result of a step on a task's way out, repeated and counted as a publish is.

        Raises:
            TidegateError: it failed in a way that a repeat cannot change.
        """
        stats, log = self._context.stats, self._context.log

        def note(failed: FailedAttempt) -> None:
            is_full = isinstance(failed.error, BackpressureError)
            stats.add(publishing.PUBLISH_BACKPRESSURE if is_full else publishing.PUBLISH_RETRIES)
            log.warning("publish_waits", task_id=task_id, error=str(failed.error))

        return await retry(step, BACKOFF, draining=UntilCancelled(), on_retry=note)


def message_of(records: Sequence[Trajectory], *, of: Task | str) -> tuple[bytes, dict[str, str]]:
    """The frame and the headers of the message that carries ``records``.

    ``of``: their task, or the proof that an actor sent with them.
    """
    ids = [record.trajectory_id for record in records]
    if isinstance(of, str):
        frame, proof = encode_frame(records), of
    else:
        frame, digest = encode_with_digest(records)
        proof = proof_of(of, ids, digest)
    headers = {HEADER_TRACE_PARENT: records[0].trace_parent, HEADER_TRAJECTORY_IDS: ",".join(ids)}
    return frame, {HEADER_TASK_PROOF: proof, **headers} if proof else headers
