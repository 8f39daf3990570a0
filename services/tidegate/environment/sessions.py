"""Sessions: a bounded table of episodes that are stepped by calls.

A slot is freed when the episode ends, by Close, by a failure of the environment, or by the sweep once nobody called
for ``idle_s``. Environments run in a few threads of their own, so one that blocks delays no heartbeat.
"""

import asyncio
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from tidegate.core.errors import BackpressureError, DeadlineError, NotFoundError, TidegateError
from tidegate.environment.session_envs import SessionEnv, StepOutcome
from tidegate.runtime.clock import Clock

T = TypeVar("T")
# Episodes that may compute at the same time; the others wait, each inside its own deadline.
NUM_THREADS = 4


class _Session:
    """One open episode. ``turn`` makes concurrent calls of one session wait for each other."""

    def __init__(self, env_id: str, used_at_s: float) -> None:
        self.env_id = env_id
        self.used_at_s = used_at_s
        self.env: SessionEnv | None = None
        self.turn = asyncio.Lock()


class SessionLimits(msgspec.Struct, frozen=True):
    """``max_sessions`` open at once, ``idle_s`` without a call ends one, ``deadline_s`` for one reset or step."""

    max_sessions: int
    idle_s: float
    deadline_s: float


class Sessions:
    """All open sessions of one worker."""

    def __init__(self, make_env: Callable[[str], SessionEnv], limits: SessionLimits, clock: Clock) -> None:
        """``make_env`` may block and raises ``NotFoundError`` for an environment that it does not know."""
        self._make_env = make_env
        self._limits = limits
        self._clock = clock
        self._sessions: dict[str, _Session] = {}
        self._threads = ThreadPoolExecutor(max_workers=NUM_THREADS, thread_name_prefix="session")
        self.refused_total = 0
        self.idled_total = 0

    @property
    def num_open(self) -> int:
        """Slots in use."""
        return len(self._sessions)

    async def open(self, env_id: str, *, seed: int) -> tuple[str, str]:
        """Take a slot, make the environment and begin its episode; the session's id and the first observation.

        Raises:
            BackpressureError: every slot is taken.
            NotFoundError: nobody knows this environment.
            DeadlineError: the environment did not start in time.
        """
        if len(self._sessions) >= self._limits.max_sessions:
            self.refused_total += 1
            raise BackpressureError(
                f"All {self._limits.max_sessions} sessions are taken",
                fix="close a session, wait for one to idle out, or raise environment.max_sessions",
            )
        session_id = secrets.token_hex(8)
        session = _Session(env_id, self._clock.monotonic_s())
        self._sessions[session_id] = session

        def start() -> tuple[SessionEnv, str]:
            env = self._make_env(env_id)
            return env, env.reset(seed=seed)

        try:
            async with session.turn:
                session.env, observation = await self._blocking(f"Environment {env_id!r}", start)
        except BaseException:
            self._sessions.pop(session_id, None)
            raise
        return session_id, observation

    async def step(self, session_id: str, *, action: str) -> StepOutcome:
        """One step of a session. An episode that ends frees its slot.

        Raises:
            NotFoundError: no such session: it ended, was closed, or idled out.
            RecordError: the action is malformed; the session stays.
            DeadlineError: the step did not end in time; the session is gone.
        """
        session = self._find(session_id)
        session.used_at_s = self._clock.monotonic_s()
        async with session.turn:
            env = self._find(session_id).env
            assert env is not None, "a session is announced only after its environment was made"
            try:
                outcome = await self._blocking(f"Environment {session.env_id!r}", lambda: env.step(action))
            except DeadlineError:
                self._sessions.pop(session_id, None)
                raise
            except TidegateError:
                raise
            except (
                Exception
            ) as error:  # an environment is foreign code: whatever it raises ends its session only
                await self.close(session_id)
                raise TidegateError(
                    f"Environment {session.env_id!r} failed in a step; its session is closed", why=repr(error)
                ) from error
        session.used_at_s = self._clock.monotonic_s()
        if outcome.terminated or outcome.truncated:
            await self.close(session_id)
        return outcome

    async def close(self, session_id: str) -> None:
        """Free a slot; closing what is not open changes nothing."""
        session = self._sessions.pop(session_id, None)
        if session is None or session.env is None:
            return
        try:
            await self._blocking("Closing an environment", session.env.close)
        except TidegateError:
            return  # its thread is stuck; the slot is free all the same

    async def sweep(self) -> int:
        """End the sessions that nobody called for ``idle_s``; how many."""
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
        """End everything, when the service stops."""
        for session_id in list(self._sessions):
            await self.close(session_id)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _find(self, session_id: str) -> _Session:
        session = self._sessions.get(session_id)
        if session is None:
            raise NotFoundError(
                f"There is no session {session_id[:64]!r}",
                why="its episode ended, it was closed, nobody called it for too long, or this worker was restarted",
                fix="open another with Reset",
            )
        return session

    async def _blocking(self, what: str, call: Callable[[], T]) -> T:
        future = asyncio.get_running_loop().run_in_executor(self._threads, call)
        try:
            return await asyncio.wait_for(future, timeout=self._limits.deadline_s)
        except TimeoutError as error:
            raise DeadlineError(
                f"{what} did not answer within {self._limits.deadline_s:g} s",
                fix="raise environment.session_deadline_s, or look at what the environment waits for",
            ) from error
