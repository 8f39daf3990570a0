"""The ranks other than 0: processes that execute rank 0's commands and call no service.

Consumes rank 0's commands; produces its part of each update; waits for a command; unblocked by rank 0, which sends
``Wait`` while there is nothing to do, or by ``rank_timeout_s`` without a command. It serves health checks and
statistics like a service, so that its pod is monitored like any other. On SIGTERM it notifies rank 0, which drains for
all ranks; a rank that left by itself would abort the others' update.
"""

import asyncio
import signal
import threading
from collections.abc import Callable

import structlog
import torch

from tidegate.core.errors import TidegateError
from tidegate.core.records import Array
from tidegate.learner.optim.port import TrainerState
from tidegate.learner.ranks.agreement import check_same_state
from tidegate.learner.ranks.group import RankGroup
from tidegate.learner.ranks.membership import Membership
from tidegate.learner.ranks.messages import POLICY, STATE, Restore, StopRanks, Update, Wait, receive
from tidegate.learner.ranks.port import Packed, SharedTrainer
from tidegate.runtime import exit_codes
from tidegate.runtime.call_credentials import AcceptedTokens
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.drain import Drain
from tidegate.runtime.lifecycle_servicer import LifecycleServicer
from tidegate.runtime.races import run_until
from tidegate.runtime.rpc import RpcServer
from tidegate.runtime.stats_board import StatsBoard

# On top of rank 0's drain timeout: rank 0 is notified first and stops its servers last.
LEAVE_GRACE_S = 10.0


def follow(trainer: SharedTrainer, group: RankGroup, *, asked_to_stop: Callable[[], bool]) -> StopRanks:
    """Execute rank 0's commands until ``StopRanks``, which is returned.

    Raises:
        RankLostError: rank 0 or another rank is lost.
        RankMismatchError: the ranks hold different parameters.
    """
    while True:
        command, tensors = receive(group)
        match command:
            case Update():
                batch = trainer.unpack(Packed(tensors=tensors, values=command.values))
                trainer.update(batch, number=command.number, response=command.response)
                if command.check:
                    check_same_state(group, trainer.live(), number=command.number)
            case Restore():
                arrays = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
                state = TrainerState(tensors=_under(STATE, arrays), values=command.values)
                trainer.restore(_under(POLICY, arrays), state)
            case Wait():
                pass
            case StopRanks():
                return command
        group.largest(torch.tensor([int(asked_to_stop())]))


def _under(prefix: str, arrays: dict[str, Array]) -> dict[str, Array]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


class Follower:
    """The process of one rank other than 0."""

    def __init__(
        self,
        member: Membership,
        join: Callable[[], tuple[SharedTrainer, RankGroup]],
        *,
        listen: str,
        accepted: AcceptedTokens,
        drain_timeout_s: float,
    ) -> None:
        """``join`` joins the group. ``listen``: address of the health checks; empty for none."""
        self._join = join
        self._listen = listen
        self._accepted = accepted
        self._drain_timeout_s = drain_timeout_s
        self._clock = SystemClock()
        self._drain = Drain()
        name = f"learner-rank-{member.rank}"
        self._stats = StatsBoard(service="learner", instance=name, started_at_s=self._clock.now_s())
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger(name)

    async def run(self) -> int:
        """Follow until rank 0 stops or is lost; returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._drain.request)
        lifecycle = LifecycleServicer(self._stats, self._drain, self._clock)
        server = RpcServer([lifecycle.registration()], self._accepted)
        try:
            if self._listen:
                await server.start(self._listen)
            stopped = await self._follow(server)
        except TidegateError as error:
            self._log.error("rank_failed", error=str(error))
            return exit_codes.FAILED
        finally:
            await server.stop(grace_s=0.5)
        self._log.info("rank_stopped", completed=stopped.completed)
        return exit_codes.COMPLETED if stopped.completed else exit_codes.DRAINED

    async def _follow(self, server: RpcServer) -> StopRanks:
        loop = asyncio.get_running_loop()
        joined = asyncio.Event()
        ended: asyncio.Future[StopRanks] = loop.create_future()

        def work() -> None:
            try:
                trainer, group = self._join()
                loop.call_soon_threadsafe(joined.set)
                stopped = follow(trainer, group, asked_to_stop=lambda: self._drain.requested)
                group.close()
            except Exception as error:  # any error must end the process
                loop.call_soon_threadsafe(ended.set_exception, error)
            else:
                loop.call_soon_threadsafe(ended.set_result, stopped)

        # A daemon: it may block in an exchange without a peer, and must not keep a stopped process alive.
        threading.Thread(target=work, name="rank", daemon=True).start()
        becoming_ready = asyncio.create_task(self._become_ready(joined, server))
        try:
            await run_until(self._drain.wait(), asyncio.shield(ended))
            if not ended.done():
                self._stats.state = "draining"
                self._log.info("rank_leaving")
                await server.set_serving(serving=False)
                await asyncio.wait([ended], timeout=self._drain_timeout_s + LEAVE_GRACE_S)
            if not ended.done():
                raise TidegateError(
                    "Rank 0 did not end in time after this rank was asked to stop",
                    why="it hangs, or drains for longer than drain_timeout_s",
                    fix="nothing: the ranks restart and resume from the newest checkpoint",
                )
            return ended.result()
        finally:
            becoming_ready.cancel()

    async def _become_ready(self, joined: asyncio.Event, server: RpcServer) -> None:
        await joined.wait()
        if self._drain.requested:
            return  # stopped before it was ready
        self._stats.state = "ready"
        self._log.info("rank_ready")
        await server.set_serving(serving=True)
