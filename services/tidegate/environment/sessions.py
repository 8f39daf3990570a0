"""Sessions: a bounded table of episodes that callers step.

A slot is freed when the episode ends, by Close, by a failure of the environment, or by the sweep once no caller used it
for ``idle_s``. Environments run in a few separate threads, so one that blocks delays no heartbeat. A caller reopens a
session lost with its worker on another worker, by replaying its actions.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

import msgspec

from tidegate.core.errors import (
    BackpressureError,
    ConflictError,
    DeadlineError,
    NotFoundError,
    TidegateError,
)
from tidegate.core.records import ToolCall
from tidegate.environment.session_envs import SessionEnv, SessionVerdict, StepOutcome
from tidegate.environment.tasks.port import Problem, Score
from tidegate.runtime.clock import Clock

T = TypeVar("T")


class _Session:
    """One open episode. ``turn`` makes concurrent calls of one session wait for each other."""

    def __init__(self, env_id: str, used_at_s: float, *, num_replayed: int) -> None:
        self.env_id = env_id
        self.used_at_s = used_at_s
        self.num_replayed = num_replayed
        self.env: SessionEnv | None = None
        self.turn = asyncio.Lock()


class SessionLimits(msgspec.Struct, frozen=True):
    """``max_sessions`` open at once, ``idle_s`` without a call ends one, ``deadline_s`` for one reset or step.

    ``num_threads``: episodes that may compute at the same time; the others wait, and their deadlines run meanwhile.
    """

    max_sessions: int
    idle_s: float
    deadline_s: float
    num_threads: int = 4


class SessionStep(msgspec.Struct, frozen=True):
    """What one step of a session returned; ``components`` and ``log`` with the last one of a text episode."""

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    tool_calls: tuple[ToolCall, ...] = ()
    components: dict[str, float] = {}
    log: str = ""


async def as_scored(verdict: SessionVerdict) -> Score:
    """The task's own score is the episode's."""
    return verdict.score


class SessionTable:
    """All open sessions of one worker."""

    def __init__(
        self,
        make_env: Callable[[str], SessionEnv],
        limits: SessionLimits,
        clock: Clock,
        *,
        reward: Callable[[SessionVerdict], Awaitable[Score]] = as_scored,
    ) -> None:
        """``make_env`` may block and raises ``NotFoundError`` for an environment that it does not know.

        ``reward`` makes the reward of a text episode from its verdict, by asking the run's other verifiers.
        """
        self._make_env = make_env
        self._reward = reward
        self._limits = limits
        self._clock = clock
        self._sessions: dict[str, _Session] = {}
        self._threads = ThreadPoolExecutor(max_workers=limits.num_threads, thread_name_prefix="session")
        self.refused_total = 0
        self.idled_total = 0

    @property
    def num_open(self) -> int:
        """Slots in use."""
        return len(self._sessions)

    async def open(
        self, env_id: str, *, seed: int, problem: Problem | None = None, actions: Sequence[str] = ()
    ) -> tuple[str, str]:
        """Take a slot, make the environment, start its episode and replay ``actions``.

        Returns the session's id and the last observation: of the last action, else the first of the episode. Replayed
        tools are not waited for longer than they compute.

        Raises:
            BackpressureError: every slot is taken.
            NotFoundError: the environment is unknown.
            RecordError: the problem or an action is none of this environment's.
            ConflictError: an action ended the episode.
            DeadlineError: the environment did not start, or replay, in time.
        """
        if len(self._sessions) >= self._limits.max_sessions:
            self.refused_total += 1
            raise BackpressureError(
                f"All {self._limits.max_sessions} sessions are taken",
                fix="close a session, wait for one to idle out, or raise environment.max_sessions",
            )
        session_id = secrets.token_hex(8)
        session = _Session(env_id, self._clock.monotonic_s(), num_replayed=len(actions))
        self._sessions[session_id] = session

        def start() -> tuple[SessionEnv, str]:
            env = self._make_env(env_id)
            try:
                observation = env.reset(seed=seed, problem=problem)
                for index, action in enumerate(actions):
                    outcome = env.step(action)
                    _check_goes_on(outcome, env_id=env_id, action_index=index)
                    observation = outcome.observation
            except BaseException:
                env.close()
                raise
            return env, observation

        starting = self._threads.submit(start)
        try:
            async with session.turn:
                session.env, observation = await self._awaited(
                    starting, what=f"Environment {env_id!r}", num_steps=1 + len(actions)
                )
        except BaseException:
            self._sessions.pop(session_id, None)
            starting.add_done_callback(self._release_started)
            raise
        session.used_at_s = self._clock.monotonic_s()
        return session_id, observation

    async def step(self, session_id: str, *, action: str) -> SessionStep:
        """One step of a session, with the time its tools are to take. An episode that ends frees its slot.

        Raises:
            NotFoundError: no such session: it ended, was closed, or idled out.
            RecordError: the action is malformed; the session stays.
            DeadlineError: the step did not end in time; the session is gone, as it is when the caller goes away.
            TidegateError: the environment failed, or the episode's verifiers did and the run drops such.
        """
        session = self._find(session_id)
        session.used_at_s = self._clock.monotonic_s()
        async with session.turn:
            env = self._find(session_id).env
            assert env is not None, "a session is announced only after its environment was made"
            started_at_s = self._clock.now_s()
            stepping = self._threads.submit(env.step, action)
            try:
                outcome = await self._awaited(stepping, what=f"Environment {session.env_id!r}")
                await asyncio.sleep(outcome.delay_s)
            except (DeadlineError, asyncio.CancelledError):
                # The caller got no answer to this step, so it cannot continue from it.
                self._sessions.pop(session_id, None)
                stepping.add_done_callback(lambda _stepped: self._release(env))
                raise
            except TidegateError:
                raise
            except (
                Exception
            ) as error:  # an environment is third-party code: any exception ends its session only
                await self.close(session_id)
                raise TidegateError(
                    f"Environment {session.env_id!r} failed in a step; its session is closed", why=repr(error)
                ) from error
            if outcome.terminated or outcome.truncated:
                await self.close(session_id)
        session.used_at_s = self._clock.monotonic_s()
        step = SessionStep(
            outcome.observation,
            outcome.reward,
            outcome.terminated,
            outcome.truncated,
            tool_calls=tuple(
                ToolCall(use.name, use.arguments, use.result, started_at_s, self._clock.now_s())
                for use in outcome.tools
            ),
        )
        if outcome.verdict is None:
            return step
        score = await self._reward(outcome.verdict)
        log = score.log
        if session.num_replayed and not env.deterministic:
            log = f"{log}; its first {session.num_replayed} turns were replayed, and tools may have answered otherwise"
        return msgspec.structs.replace(step, reward=score.reward, components=score.components, log=log)

    async def close(self, session_id: str) -> None:
        """Free a slot; closing what is not open changes nothing."""
        session = self._sessions.pop(session_id, None)
        if session is None or session.env is None:
            return
        try:
            await self._awaited(self._threads.submit(session.env.close), what="Closing an environment")
        except TidegateError:
            return  # its thread is stuck, but the slot is free

    async def sweep(self) -> int:
        """End the sessions without a call for ``idle_s``; returns how many."""
        now_s = self._clock.monotonic_s()
        idle = [
            session_id
            for session_id, session in self._sessions.items()
            if now_s - session.used_at_s > self._limits.idle_s and not session.turn.locked()
        ]
        for session_id in idle:
            await self.close(session_id)
        self.idled_total += len(idle)
        return len(idle)

    async def close_all(self) -> None:
        """End all sessions, when the service stops."""
        for session_id in list(self._sessions):
            await self.close(session_id)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _find(self, session_id: str) -> _Session:
        session = self._sessions.get(session_id)
        if session is None:
            raise NotFoundError(
                f"There is no session {session_id[:64]!r}",
                why="its episode ended, it was closed, it was idle for too long, or this worker was restarted",
                fix="open another with Reset",
            )
        return session

    def _release_started(self, starting: "Future[tuple[SessionEnv, str]]") -> None:
        """Release an environment that was made for a caller who has gone."""
        if not starting.cancelled() and starting.exception() is None:
            self._release(starting.result()[0])

    def _release(self, env: SessionEnv) -> None:
        """Close an environment that no call is in any more, in a thread and without a wait."""
        with suppress(RuntimeError):  # the service stops, and its environments with it
            self._threads.submit(env.close)

    async def _awaited(self, running: "Future[T]", *, what: str, num_steps: int = 1) -> T:
        """The result of a call in a thread, which goes on there after the deadline."""
        deadline_s = self._limits.deadline_s * num_steps
        try:
            async with asyncio.timeout(deadline_s):
                return await asyncio.wrap_future(running)
        except TimeoutError as error:
            raise DeadlineError(
                f"{what} did not answer within {deadline_s:g} s",
                fix="raise environment.session_deadline_s, or check what the environment waits for",
            ) from error


def _check_goes_on(outcome: StepOutcome, *, env_id: str, action_index: int) -> None:
    """Raises ``ConflictError`` when a replayed action ended the episode, so that no step could follow."""
    if outcome.terminated or outcome.truncated:
        raise ConflictError(
            f"Action {action_index} of the replay ended the episode of {env_id!r}",
            why="it was the last one, or the environment answers otherwise than before",
            fix="replay the actions before the last and step that one, or restart the episode",
        )
