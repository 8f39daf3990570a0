"""The gRPC service of the task queue: the journal's totals, open work, and retirement."""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from tidegate.core.audit import JournalTotals
from tidegate.runtime.replication.replica import CaughtUp, on_disk
from tidegate.runtime.rpc import Registration
from tidegate.runtime.threads import iterate_in_thread
from tidegate.task_queue.journal import Journal, moment
from tidegate.task_queue.sweep import Sweep
from tidegate.v1 import task_queue_service_pb2 as pb
from tidegate.v1 import task_queue_service_pb2_grpc as pb_grpc
from tidegate.wire.bounds import DETAIL_CHARS_MAX, check_name

NAME = "tidegate.v1.TaskQueueService"
# One answer stays well below the message limit of 8 MiB.
OPEN_IDS_MAX = 100_000

Call = grpc.aio.ServicerContext[Any, Any]


class TaskQueueServicer(pb_grpc.TaskQueueServiceServicer):
    """Answers from the journal."""

    def __init__(self, journal: Journal, sweep: Sweep, *, path: Path) -> None:
        """``sweep`` retires the run; ``path`` is the journal's file."""
        self._path = path
        self._journal = journal
        self._sweep = sweep

    async def GetJournal(self, request: pb.GetJournalRequest, context: Call) -> pb.GetJournalResponse:
        """The journal's totals, for the audit."""
        return _totals(self._journal.totals())

    async def ReadJournal(
        self, request: pb.ReadJournalRequest, context: Call
    ) -> AsyncIterator[pb.ReadJournalResponse]:
        """One moment of the file, read beside the writer."""
        async for part in iterate_in_thread(partial(moment, self._path)):
            if isinstance(part, JournalTotals):
                yield pb.ReadJournalResponse(totals=_totals(part))
            else:
                yield pb.ReadJournalResponse(trajectory_ids=part)

    async def ListOpen(self, request: pb.ListOpenRequest, context: Call) -> pb.ListOpenResponse:
        """Trajectories without a terminal outcome, oldest first; a limit of 0 asks for as many as fit."""
        limit = min(request.limit, OPEN_IDS_MAX) if request.limit > 0 else OPEN_IDS_MAX
        found = self._journal.in_flight(limit=limit)
        return pb.ListOpenResponse(
            trajectory_ids=[item.trajectory_id for item in found],
            oldest_admitted_at_s=found[0].admitted_at_s if found else 0.0,
        )

    async def Retire(self, request: pb.RetireRequest, context: Call) -> pb.RetireResponse:
        """Stop admitting for good and drop what never arrived at the store. Idempotent."""
        check_name(request.reason, "The reason", chars_max=DETAIL_CHARS_MAX)
        await self._sweep.retire(reason=request.reason)
        return pb.RetireResponse()

    def registration(self, caught_up: CaughtUp = on_disk) -> Registration:
        """How the server of this service adds it; answers wait for the journal's replica."""
        return Registration(
            pb_grpc.add_TaskQueueServiceServicer_to_server, self, NAME, before_answer=caught_up
        )


def _totals(totals: JournalTotals) -> pb.GetJournalResponse:
    return pb.GetJournalResponse(
        admitted_trajectories=totals.admitted,
        open_trajectories=totals.open,
        published_tasks=totals.published_tasks,
        epoch=totals.epoch,
        position=totals.position,
        retired=totals.retired,
    )
