"""Keeps the replica of a service's file up to date, and holds answers back until it is.

There is no queue: what waits is in the file, and callers wait for one push, which takes along what all of them changed.
While PostgreSQL is away the file is ahead by the calls that wait and by what the service does by itself, expiries say;
messages that would change it stay at the broker.
"""

import asyncio
import math
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from structlog.stdlib import BoundLogger

from tidegate.catalogue import replication as statistics
from tidegate.core.errors import TidegateError, UnavailableError
from tidegate.runtime.clock import Clock
from tidegate.runtime.drain import Drain
from tidegate.runtime.replication import ownership
from tidegate.runtime.replication.changes import all_rows, changed_rows, forget_changes, newest_change
from tidegate.runtime.replication.ownership import ReplicaBehindError
from tidegate.runtime.replication.tables import Table
from tidegate.runtime.sqlite_reading import connect_read_only
from tidegate.runtime.stats_board import StatsBoard
from tidegate.runtime.threads import WorkerThread

if TYPE_CHECKING:
    from tidegate.runtime.replication.database import ReplicaDatabase

# Of one answer: then it is refused as unavailable, and its caller repeats it.
ANSWER_DEADLINE_S = 15.0
# After a failure PostgreSQL is not asked again so soon.
RETRY_S = 0.5
# Heartbeat of an idle owner, without which another process considers it dead (``ownership.SILENT_S``).
PERIOD_S = 1.0
# Notes of pushed rows that are removed at once, beside the event loop's other work, and in one period.
FORGOTTEN_AT_ONCE, FORGOTTEN_MAX = 5_000, 200_000
BUSY_TIMEOUT_S = 5.0
# Of the time after which another process may take over: an owner that stood still asks PostgreSQL before it answers.
OWNED_SHARE = 0.5
# Between two looks at a call.
LOOK_S = 1.0

ResultT = TypeVar("ResultT")


class CaughtUp(Protocol):
    """Waits until what a service's file has now survives the loss of its node."""

    async def __call__(self) -> None:
        """Return when it does.

        Raises:
            UnavailableError: not within the deadline; the same call may succeed later.
            ConflictError: another process took over.
        """
        ...


async def watched(thread: WorkerThread, call: Callable[[], ResultT], database: "ReplicaDatabase") -> ResultT:
    """The result of a call that uses the database, which is cut off if it hangs."""
    running = asyncio.ensure_future(thread.run(call))
    while True:
        done, _ = await asyncio.wait({running}, timeout=LOOK_S)
        if done:
            return running.result()
        database.cut_if_silent()


async def on_disk() -> None:
    """A ``CaughtUp`` of a file without a replica: a transaction that was committed is all there is to wait for."""


class Replica:
    """The replica of one open file. ``run`` is a loop of its service; ``caught_up`` is asked before every answer."""

    def __init__(
        self,
        writer: sqlite3.Connection,
        path: Path,
        database: "ReplicaDatabase",
        *,
        tables: Sequence[Table],
        epoch: int,
        pushed_through: int,
        clock: Clock,
        stats: StatsBoard,
        log: BoundLogger,
    ) -> None:
        """``writer``: the connection whose changes are noted (``changes.track``).

        ``pushed_through``: the place of the last note that PostgreSQL has.
        """
        self._writer = writer
        self._path = path
        self._database = database
        self._tables = tables
        self._epoch = epoch
        self._stats = stats
        self._log = log
        self._thread = WorkerThread("replica")
        self._clock = clock
        self._reader: sqlite3.Connection | None = None
        self._pushed_through = pushed_through
        self._push: asyncio.Task[None] | None = None
        self._failure: TidegateError | None = None
        self._failed_at_s = self._away_since_s = 0.0
        self._owned_at_s = -math.inf  # when the newest push began that PostgreSQL took

    @property
    def is_away(self) -> bool:
        """Whether the last push failed."""
        return self._failure is not None

    async def caught_up(self) -> None:
        """As ``CaughtUp``."""
        wanted = newest_change(self._writer)
        owned_from_s = self._clock.monotonic_s() - OWNED_SHARE * ownership.SILENT_S
        try:
            async with asyncio.timeout(ANSWER_DEADLINE_S):
                while self._pushed_through < wanted or self._owned_at_s < owned_from_s:
                    await self._pushed()
        except TimeoutError as error:
            raise UnavailableError(
                f"The replica in PostgreSQL is not up to date after {ANSWER_DEADLINE_S:g} s",
                fix="see that PostgreSQL runs and is fast enough; nothing was lost",
            ) from error

    async def run(self, drain: Drain) -> None:
        """Push once a period, also without changes, which is the heartbeat of the owner, until draining.

        Raises:
            TidegateError: another process took over, or PostgreSQL refuses this one.
        """
        while not await drain.sleep(PERIOD_S):
            try:
                await self._pushed()
            except UnavailableError:  # the log has it
                continue
            with suppress(sqlite3.OperationalError):  # a full disk: later
                await self._forget_pushed()

    async def _forget_pushed(self) -> None:
        """Remove the notes of what PostgreSQL has; between two transactions the other loops run."""
        for _ in range(FORGOTTEN_MAX // FORGOTTEN_AT_ONCE):
            removed = forget_changes(self._writer, through=self._pushed_through, most=FORGOTTEN_AT_ONCE)
            if removed < FORGOTTEN_AT_ONCE:
                break
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Let go of the connections, and of the replica for its next owner.

        A push that has begun is cut off: its rows are pushed at the next start, if nothing else owns the replica then.
        """
        if self._push is not None:
            self._database.cut_if_silent(for_s=0.0)
        await self._thread.run(self._disconnect)
        if self._failure is None:
            try:
                await self._thread.run(partial(self._database.release, epoch=self._epoch))
            except TidegateError as error:
                self._log.warning("replica_not_released", error=str(error))
        self._thread.close()

    async def _pushed(self) -> None:
        """One push has ended that began from now on, or had begun.

        Raises:
            TidegateError: it failed, or one did a moment ago.
        """
        if self._push is None:
            if self._failure is not None and self._clock.monotonic_s() - self._failed_at_s < RETRY_S:
                raise self._failure
            self._push = asyncio.create_task(self._push_now())
        await asyncio.shield(self._push)
        if self._failure is not None:
            raise self._failure

    async def _push_now(self) -> None:
        wanted, started_at_s = newest_change(self._writer), self._clock.monotonic_s()
        try:
            await watched(self._thread, partial(self._send, through=wanted), self._database)
        except TidegateError as error:
            self._note_failure(error)
        else:
            self._pushed_through, self._owned_at_s = wanted, started_at_s
            self._note_success(self._clock.monotonic_s() - started_at_s)
        finally:
            self._push = None

    def _send(self, *, through: int) -> None:
        """In the thread. Its own read transaction has at least what was noted up to ``through``.

        Raises:
            TidegateError: PostgreSQL or the file did not answer, or another process owns the replica.
        """
        try:
            if self._reader is None:
                self._reader = connect_read_only(self._path, timeout_s=BUSY_TIMEOUT_S)
            self._reader.execute("BEGIN")
            self._push_changes(self._reader, through=through)
            self._reader.execute("COMMIT")
        except BaseException as error:
            self._disconnect()
            if isinstance(error, sqlite3.Error | OSError):
                raise UnavailableError(
                    f"{self._path.name} cannot be read for its replica",
                    why=str(error),
                    fix="nothing was lost",
                ) from error
            raise

    def _push_changes(self, reader: sqlite3.Connection, *, through: int) -> None:
        after = self._pushed_through
        changes = changed_rows(reader, self._tables, after=after)
        try:
            self._database.push(changes, epoch=self._epoch, after=after, through=through)
        except ReplicaBehindError as error:
            self._log.warning("replica_behind", error=str(error))
            self._database.copy(
                self._tables, all_rows(reader, self._tables), epoch=self._epoch, through=through
            )
            self._log.info("replica_copied")

    def _disconnect(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        self._database.close()

    def _note_failure(self, error: TidegateError) -> None:
        self._failed_at_s = self._clock.monotonic_s()
        if self._failure is None:
            self._away_since_s = self._failed_at_s
            self._log.warning("replica_away", error=str(error))
        self._failure = error
        self._stats.set(statistics.REPLICA_AWAY_S, self._failed_at_s - self._away_since_s)
        self._stats.label(statistics.REPLICA_PROBLEM, str(error))

    def _note_success(self, seconds: float) -> None:
        if self._failure is not None:
            self._log.info("replica_back", away_s=round(self._clock.monotonic_s() - self._away_since_s, 1))
            self._stats.label(statistics.REPLICA_PROBLEM, "")
        self._failure = None
        self._stats.set(statistics.REPLICA_AWAY_S, 0.0)
        self._stats.add(statistics.REPLICA_PUSHES)
        self._stats.add(statistics.REPLICA_PUSH_S, seconds)
