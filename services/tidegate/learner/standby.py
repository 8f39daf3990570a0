"""A learner with another one beside it, which stands by for its loss (``learner.standbys`` of the chart).

The trajectory store says whose turn it is (``trajectory_store.learner_turn``). The one that stands by has its model
loaded and the other's newest checkpoint on its own disk. When its turn comes it begins as any learner does after a
crash: it restores, recomputes the updates since, and opens a lineage, by which the store refuses the other one.
"""

import asyncio
import contextlib
import platform
from collections.abc import Awaitable, Callable
from pathlib import Path

from tidegate.core.errors import ConflictError, TidegateError
from tidegate.learner.checkpoint_copy import CheckpointCopy
from tidegate.runtime.config import Settings
from tidegate.runtime.failure_log import ProblemLog
from tidegate.runtime.instances import names_standbys
from tidegate.runtime.races import is_set_within
from tidegate.runtime.service import ServiceContext
from tidegate.wire.clients.learner import LearnerClient
from tidegate.wire.clients.learner_turn import LearnerTurnClient

ASK_PERIOD_S = 1.0


def has_standbys(settings: Settings) -> bool:
    """Whether a learner has another one beside it."""
    return any(map(names_standbys, settings.addresses.get("learner", [])))


def turn_client(context: ServiceContext) -> LearnerTurnClient:
    """Asks for this instance, by the name of its pod or machine and its address there."""
    settings = context.settings
    instance = f"{platform.node()} {settings.listen or settings.addresses['learner'][context.index]}"
    return LearnerTurnClient(context.channel("trajectory_store"), instance=instance)


async def await_turn(context: ServiceContext, turn: LearnerTurnClient, checkpoints: Path) -> None:
    """Return once it is this instance's turn, or once draining; copy the newest checkpoint of the one that works."""
    copy = CheckpointCopy(checkpoints, LearnerClient(context.channel("learner")))
    copying = asyncio.create_task(_copy_again_and_again(context, copy), name="copy-checkpoint")
    problems = ProblemLog(context.log, "turn_not_possible")
    try:
        while True:
            try:
                answer = await turn.wait(checkpoint=copy.newest())
                if answer.has_turn:
                    context.log.info("turn_taken", checkpoint=str(copy.newest()))
                    return
                problems.note("its checkpoint is too old to begin from" if answer.is_behind else "")
            except TidegateError as error:
                problems.note(str(error))
            if await context.drain.sleep(ASK_PERIOD_S):
                return
            if copying.done():
                copying.result()
    finally:
        copying.cancel()
        await asyncio.wait([copying])
        await copy.close()


async def _copy_again_and_again(context: ServiceContext, copy: CheckpointCopy) -> None:
    """The one that works may be gone, and a full disk ends no standby."""
    problems = ProblemLog(context.log, "checkpoint_not_copied")
    while not await context.drain.sleep(ASK_PERIOD_S):
        started_s = context.clock.monotonic_s()
        try:
            copied = await copy.refresh()
        except (TidegateError, OSError) as error:
            problems.note(str(error))
            continue
        problems.note("")
        if copied is not None:
            took_s = context.clock.monotonic_s() - started_s
            context.log.info("checkpoint_copied", version=str(copied), duration_s=round(took_s, 3))


class TurnKeeper:
    """Keeps the turn of the instance that works, until its training has ended."""

    def __init__(self, context: ServiceContext, turn: LearnerTurnClient) -> None:
        self._context = context
        self._turn = turn
        self._trained = asyncio.Event()

    def around(self, train: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """``train``, after which the turn is not kept any more: a learner that drains goes on for a while."""

        async def trained() -> None:
            try:
                await train()
            finally:
                self._trained.set()

        return trained

    async def run(self) -> None:
        """Ask once a second.

        Raises:
            ConflictError: another instance works.
        """
        problems = ProblemLog(self._context.log, "turn_not_kept")
        while not self._trained.is_set():
            try:
                if not (await self._turn.keep()).has_turn:
                    raise ConflictError(
                        "Another instance of the learner works",
                        why="the trajectory store had not heard of this one for seconds",
                        fix="nothing: this one starts again, and stands by",
                    )
                problems.note("")
            except TidegateError as error:
                if not error.retryable:
                    raise
                problems.note(str(error))
            await is_set_within(self._trained, timeout_s=ASK_PERIOD_S)

    async def close(self) -> None:
        """Let another instance follow at once."""
        with contextlib.suppress(TidegateError):  # it follows a few seconds later
            await self._turn.end()
