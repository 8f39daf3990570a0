"""Sessions at the environment workers: opened where there is room, and reopened elsewhere when one is lost.

A session lives in one worker. An episode is a function of its problem, its seed and its turns, so a lost session is
rebuilt by replaying them. The environment must then repeat its last observation, or the episode fails.
"""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Protocol

from tidegate.actor.rollouts.reporting import ReportingProcess
from tidegate.actor.rollouts.workers_in_turn import WorkersInTurn, environment_workers
from tidegate.catalogue import actor as statistics
from tidegate.core.errors import (
    BackpressureError,
    ConflictError,
    NotFoundError,
    RecordError,
    TidegateError,
)
from tidegate.core.records import Task
from tidegate.runtime.retrying import Backoff, UntilCancelled, retry
from tidegate.runtime.service import ServiceContext
from tidegate.wire.clients.environment import EnvironmentStep, EpisodeProblem

# Attempts at a step, each in a fresh session.
STEP_ATTEMPTS = 4
BACKOFF = Backoff(start_s=0.05, max_s=2.0)
# A failed close costs nothing: the session idles out.
CLOSE_WAIT_S = 2.0


class SessionWorker(Protocol):
    """One environment worker, as ``wire.clients.environment`` calls it."""

    async def reset(
        self, env_id: str, *, seed: int, problem: EpisodeProblem | None = None, actions: Sequence[str] = ()
    ) -> tuple[str, str]:
        """Open a session and replay actions; returns its id and last observation.

        Raises:
            BackpressureError: every slot is taken.
            ConflictError: a replayed action ended the episode.
        """
        ...

    async def step(self, session_id: str, *, action: str) -> EnvironmentStep:
        """One turn.

        Raises:
            NotFoundError: the session is gone.
            RecordError: the action is invalid in this environment.
        """
        ...

    async def close(self, session_id: str) -> None:
        """End a session; ending it twice is fine."""
        ...


class ReplayDiffersError(RecordError):
    """An environment answered the same turns differently: the recorded episode does not fit it any more."""


class EpisodeSessions:
    """The workers of a run, used in turn. Stateless; a session belongs to its caller."""

    def __init__(self, process: ReportingProcess, workers: Sequence[SessionWorker]) -> None:
        """``workers``: at least one."""
        self._process = process
        self._workers = WorkersInTurn(workers, first=process.index)

    def session(self, task: Task, *, turns: Sequence[str], last: str | None) -> "EpisodeSession":
        """A session for a task's problem, not opened yet.

        ``turns``: answered earlier; ``last``: the environment's last observation, None for a new episode.
        """
        return EpisodeSession(self, task, turns=turns, last=last)

    async def open(self, task: Task, turns: Sequence[str]) -> tuple[SessionWorker, str, str]:
        """A worker with room, its session id and last observation; waits while no worker has room.

        A run without environment workers pauses and does not fail: a drain or a cut cancels the wait.

        Raises:
            TidegateError: waiting will not help.
        """
        return await retry(lambda: self._open_at_any(task, turns), BACKOFF, draining=UntilCancelled())

    async def _open_at_any(self, task: Task, turns: Sequence[str]) -> tuple[SessionWorker, str, str]:
        """Try each worker once, the next in turn first.

        Raises:
            TidegateError: no worker has room, or one of them refuses the episode.
        """
        stats = self._process.stats
        problem = EpisodeProblem(task.prompt_id, task.prompt, task.answer, task.curriculum_bin)

        async def reset(worker: SessionWorker) -> tuple[SessionWorker, str, str]:
            session_id, observation = await worker.reset(
                task.env_id, seed=task.seed, problem=problem, actions=turns
            )
            return worker, session_id, observation

        def note(error: TidegateError) -> None:
            full = isinstance(error, BackpressureError)
            stats.add(statistics.SESSION_BACKPRESSURE if full else statistics.SESSION_RETRIES)

        try:
            opened = await self._workers.ask(reset, note=note)
        except ConflictError as error:
            raise ReplayDiffersError(
                f"An environment ended an episode of {task.task_id} that continued before", why=str(error)
            ) from error
        stats.add(statistics.SESSIONS_OPENED)
        return opened

    def lost(self, task: Task, error: TidegateError) -> None:
        """Count a lost session."""
        self._process.stats.add(statistics.SESSIONS_LOST)
        self._process.log.warning("session_lost", task_id=task.task_id, error=str(error))


class EpisodeSession:
    """One episode's session; ``close`` it."""

    def __init__(
        self, sessions: EpisodeSessions, task: Task, *, turns: Sequence[str], last: str | None
    ) -> None:
        """Opened by ``EpisodeSessions.session``."""
        self._sessions = sessions
        self._task = task
        self._turns = list(turns)
        self._last = last
        self._open: tuple[SessionWorker, str] | None = None

    async def open(self) -> str:
        """Open the session; returns the last observation, for a new episode the opening.

        Raises:
            ReplayDiffersError: it differs from the recorded observation.
            TidegateError: waiting will not help.
        """
        worker, session_id, observation = await self._sessions.open(self._task, self._turns)
        self._open = (worker, session_id)
        if self._last is not None and observation != self._last:
            raise ReplayDiffersError(
                f"An environment of {self._task.task_id} returned {observation[:80]!r}, before {self._last[:80]!r}",
                why=f"its {len(self._turns)} turns were the same",
                fix="make the environment a function of problem, seed and turns",
            )
        self._last = observation
        return observation

    async def step(self, turn: str) -> EnvironmentStep:
        """Take a turn. A lost session is reopened on another worker, and the turn is repeated there.

        A call that timed out may have been executed, so it is never repeated in the same session.

        Raises:
            ReplayDiffersError: as ``open``.
            TidegateError: the turn is invalid in this environment, or every attempt failed.
        """
        for attempt in itertools.count(1):
            if self._open is None:
                await self.open()
            assert self._open is not None, "open returned"
            worker, session_id = self._open
            try:
                step = await worker.step(session_id, action=turn)
            except TidegateError as error:
                if attempt == STEP_ATTEMPTS or not (error.retryable or isinstance(error, NotFoundError)):
                    raise
                self._sessions.lost(self._task, error)
                await self.close()
            else:
                self._turns.append(turn)
                self._last = step.observation
                return step
        raise AssertionError("the attempts are counted")

    async def close(self) -> None:
        """End the session if it is open; otherwise it idles out at the worker."""
        if self._open is None:
            return
        worker, session_id = self._open
        self._open = None
        try:
            async with asyncio.timeout(CLOSE_WAIT_S):
                await worker.close(session_id)
        except (TidegateError, TimeoutError):
            return


def open_sessions(context: ServiceContext) -> EpisodeSessions:
    """Sessions at all environment workers of a run."""
    return EpisodeSessions(context, environment_workers(context))
