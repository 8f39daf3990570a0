"""Client of the task queue."""

import grpc

from tidegate.core.audit import JournalTotals
from tidegate.core.errors import RecordError
from tidegate.core.ids import TrajectoryId
from tidegate.v1 import task_queue_service_pb2 as pb
from tidegate.v1.task_queue_service_pb2_grpc import TaskQueueServiceStub
from tidegate.wire.clients.remote import AUDIT_DEADLINE_S, DEADLINE_S, remote_errors

SERVICE = "task_queue"


class TaskQueueClient:
    """Typed calls to the task queue."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """``channel``: shared; its owner closes it."""
        self._stub = TaskQueueServiceStub(channel)

    async def journal(self) -> JournalTotals:
        """Totals of the journal: the left-hand side of the audit."""
        with remote_errors(SERVICE):
            response = await self._stub.GetJournal(pb.GetJournalRequest(), timeout=DEADLINE_S)
        return _totals(response)

    async def read_journal(self) -> tuple[JournalTotals, set[str]]:
        """One moment of the journal: totals counted from every row, and every admitted trajectory id."""
        totals: JournalTotals | None = None
        ids: set[str] = set()
        with remote_errors(SERVICE):
            async for response in self._stub.ReadJournal(pb.ReadJournalRequest(), timeout=AUDIT_DEADLINE_S):
                if response.HasField("totals"):
                    totals = _totals(response.totals)
                ids.update(response.trajectory_ids)
        if totals is None:
            raise RecordError("The task queue sent no totals", why="it runs another version")
        return totals, ids

    async def open_trajectories(self, *, limit: int) -> tuple[list[TrajectoryId], float]:
        """Admitted trajectories without a known outcome, and the time at which the oldest was admitted."""
        with remote_errors(SERVICE):
            response = await self._stub.ListOpen(pb.ListOpenRequest(limit=limit), timeout=DEADLINE_S)
        return [TrajectoryId(item) for item in response.trajectory_ids], response.oldest_admitted_at_s

    async def retire(self, *, reason: str) -> None:
        """Stop admitting for good, and drop as retired the tasks that no actor has taken."""
        with remote_errors(SERVICE):
            await self._stub.Retire(pb.RetireRequest(reason=reason), timeout=DEADLINE_S)


def _totals(response: pb.GetJournalResponse) -> JournalTotals:
    return JournalTotals(
        admitted=response.admitted_trajectories,
        open=response.open_trajectories,
        published_tasks=response.published_tasks,
        epoch=response.epoch,
        position=response.position,
        retired=response.retired,
    )
