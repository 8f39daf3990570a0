"""The replica of a service, from its settings; without any, nothing waits, and no driver is loaded."""

import os
import sqlite3
from collections.abc import Coroutine
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from tidegate.core.errors import ConfigError, ConflictError, NotFoundError, UnavailableError
from tidegate.runtime.instances import names_standbys
from tidegate.runtime.replication.changes import epoch_of, forget_replica
from tidegate.runtime.replication.config import PostgresConfig
from tidegate.runtime.replication.heartbeat import Heartbeat
from tidegate.runtime.replication.opening import Kind, Taken, await_turn, follow, take
from tidegate.runtime.replication.replica import CaughtUp, Replica, on_disk
from tidegate.runtime.replication.replicated_files import ReplicatedFiles
from tidegate.runtime.service import Loop, ServiceContext

_DRIVER = "psycopg"
_DATABASE = "tidegate.runtime.replication.database"


class ServiceReplica:
    """What a service does with its replica. ``begin`` comes before it opens its file, and ``follow`` after.

    ``turn`` comes before both where the service has several instances.
    """

    def __init__(self, context: ServiceContext, kind: Kind, *, files: ReplicatedFiles | None = None) -> None:
        """Nothing is opened yet.

        Raises:
            ConfigError: the address is not in the environment.
            NotFoundError: the driver is not installed.
        """
        self._context = context
        self._kind = kind
        self._replica: Replica | None = None
        self._taken: Taken | None = None
        self._heartbeat: Heartbeat | None = None
        self._database = None
        config = context.settings.postgres
        if config is not None:
            uri = uri_of(config)
            database = import_module(_DATABASE)
            self._database = database.ReplicaDatabase(
                uri,
                schema=database.schema_name(kind.run_id, context.service),
                files=files if config.payloads else None,
            )

    def turn(self) -> Coroutine[Any, Any, None] | None:
        """Waits until this instance may work (see ``opening.await_turn``); None for a service that has one instance."""
        context = self._context
        addresses = context.settings.addresses.get(context.service, [])
        if self._database is None or not any(map(names_standbys, addresses)):
            return None
        return await_turn(
            self._kind, self._database, clock=context.clock, drain=context.drain, log=context.log
        )

    async def begin(self) -> None:
        """Own the replica, and fill the file from it where that is needed (see ``opening.take``)."""
        if self._database is not None:
            self._taken = await take(
                self._kind, self._database, clock=self._context.clock, log=self._context.log
            )
            self._heartbeat = Heartbeat(self._database, self._taken.epoch, self._context.log)
            self._heartbeat.start()

    async def follow(self, writer: sqlite3.Connection) -> None:
        """Replicate what ``writer`` changes (see ``opening.follow``).

        Without a replica: a file that had one is marked, as no start may take it for one that was pushed.
        """
        if self._database is None:
            if epoch_of(writer) is not None:
                forget_replica(writer)
        elif self._taken is not None:
            self._replica = await follow(
                writer,
                self._taken,
                self._kind,
                self._database,
                clock=self._context.clock,
                stats=self._context.stats,
                log=self._context.log,
            )

    @property
    def caught_up(self) -> CaughtUp:
        """Awaited before anything leaves the service that depends on its file."""
        return on_disk if self._replica is None else self._replica.caught_up

    async def before_answer(self) -> None:
        """As ``caught_up``, for an answer to a call.

        Raises:
            UnavailableError: not within the deadline, or another instance took over, which the caller calls next.
        """
        try:
            await self.caught_up()
        except ConflictError as error:
            raise UnavailableError(
                "This instance answers no more calls",
                why=str(error),
                fix="call again: the instance that took over answers",
            ) from error

    @property
    def is_away(self) -> bool:
        """Whether answers wait for PostgreSQL, because it did not take the last push."""
        return self._replica is not None and self._replica.is_away

    def loops(self) -> dict[str, Loop]:
        """The loop of a service with a replica."""
        return {} if self._replica is None else {"replica": partial(self._run, self._replica)}

    async def _run(self, replica: Replica) -> None:
        if self._heartbeat is not None:
            self._heartbeat.stop()
        await replica.run(self._context.drain)

    async def close(self) -> None:
        """Let go of PostgreSQL, for the next owner."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
        if self._replica is not None:
            await self._replica.close()


def uri_of(config: PostgresConfig) -> str:
    """The address, from the environment.

    Raises:
        ConfigError: it is not there.
        NotFoundError: the driver is not installed.
    """
    if find_spec(_DRIVER) is None:
        raise NotFoundError(
            "`postgres` needs psycopg, which is not installed", fix="run `pip install 'tidegate[postgres]'`"
        )
    uri = os.environ.get(config.uri_env, "")
    if not uri:
        raise ConfigError(
            f"`postgres` is set and the environment variable {config.uri_env} is not",
            fix=f"export {config.uri_env}=postgresql://user:password@host/database, or remove the section `postgres`",
        )
    return uri


def check_postgres(config: PostgresConfig | None) -> None:
    """Refuse a run whose replica cannot be reached, before it starts.

    Raises:
        ConfigError: the address is not in the environment, or PostgreSQL refuses the user.
        NotFoundError: the driver is not installed.
        UnavailableError: PostgreSQL does not answer.
    """
    if config is not None:
        import_module(_DATABASE).check_server(uri_of(config))
