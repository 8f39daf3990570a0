"""The drain of a run: pause admission, retire the task queue, wait for running rollouts, write a last checkpoint.

Each step is one bounded call. A call that fails (the service is down at that moment) is noted and the drain continues:
the accounting balances without it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

import grpc

from tidegate.catalogue import task_queue as queue_stats
from tidegate.core.admission import RUN_ENDS
from tidegate.core.errors import TidegateError
from tidegate.launch.board import Board
from tidegate.launch.operator_credential import operator_token
from tidegate.launch.run_record import RunRecord
from tidegate.runtime.rpc import open_channel
from tidegate.wire.clients.admission import AdmissionClient
from tidegate.wire.clients.learner import LearnerClient
from tidegate.wire.clients.task_queue import TaskQueueClient

CALL_TIMEOUT_S = 5.0
CHECKPOINT_TIMEOUT_S = 20.0
# Longer than a segment or a group takes; an actor releases longer rollouts for redelivery when it drains.
ROLLOUTS_TIMEOUT_S = 3.0
ROLLOUTS_POLL_S = 0.1


def operator_channel(record: RunRecord, service: str, *, index: int = 0) -> grpc.aio.Channel:
    """A channel from the supervisor to an instance of a service; its caller closes it."""
    return open_channel(record.addresses[service][index], operator_token(record))


async def drain_run(record: RunRecord, board: Board, *, on_step: Callable[[], None]) -> list[str]:
    """Drain the platform before its processes are stopped; returns a note for each step that failed.

    ``on_step`` is called while waiting, to refresh the view.
    """
    notes: list[str] = []
    channels = {
        service: operator_channel(record, service) for service in ("admission", "task_queue", "learner")
    }

    async def ask(what: str, call: Awaitable[object], timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await call
        except (TidegateError, TimeoutError) as error:
            notes.append(f"{what} failed: {str(error) or 'no answer in time'}")

    try:
        admission = AdmissionClient(channels["admission"])
        await ask("pausing admission", admission.set_paused(paused=True, reason=RUN_ENDS), CALL_TIMEOUT_S)
        await ask(
            "retiring the task queue",
            TaskQueueClient(channels["task_queue"]).retire(reason=RUN_ENDS),
            CALL_TIMEOUT_S,
        )
        await _wait_for_rollouts(board, on_step=on_step)
        await ask(
            "the last checkpoint", LearnerClient(channels["learner"]).checkpoint(), CHECKPOINT_TIMEOUT_S
        )
    finally:
        for channel in channels.values():
            await channel.close()
    return notes


async def _wait_for_rollouts(board: Board, *, on_step: Callable[[], None]) -> None:
    """Wait until no rollout is running, or the timeout passed."""
    asked_at_s = time.time()
    deadline_s = time.monotonic() + ROLLOUTS_TIMEOUT_S
    while time.monotonic() < deadline_s:
        queue = next(iter(board.of("task_queue")), None)
        if (
            queue is not None
            and queue.at_s > asked_at_s
            and queue.values.get(queue_stats.RUNNING_TRAJECTORIES, 1.0) < 1
        ):
            return
        on_step()
        await asyncio.sleep(ROLLOUTS_POLL_S)
