"""A run folder as the volumes of all its services: what each streams of it, behind a server of its own."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import grpc
import msgspec

from tests.support.broker import free_port
from tests.support.call_credentials import accepted, channel_as
from tidegate.launch.run_folder import read_record
from tidegate.launch.run_record import RunRecord
from tidegate.runtime.rpc import RpcServer
from tidegate.runtime.snapshots.servicer import STAGING_PREFIX
from tidegate.wire.call_permissions import Role

OwnerT = TypeVar("OwnerT")


class ServedFolder(Generic[OwnerT]):
    """Started service by service with ``start``; ended with ``stop``."""

    def __init__(
        self, folder: Path, owners: Mapping[str, OwnerT], servicer_of: Callable[..., Any], *, role: Role
    ) -> None:
        """``owners``: what finds each service's files. ``servicer_of``: makes the servicer of one. ``role``: calls."""
        self.folder = folder
        self.owners = dict(owners)
        self.addresses = {service: [f"127.0.0.1:{free_port()}"] for service in owners}
        self.servers: dict[str, RpcServer] = {}
        self._servicer_of = servicer_of
        self._role: Role = role
        self._channels: list[grpc.aio.Channel] = []

    async def start(self, service: str) -> None:
        """Serve one service's files."""
        staging_in = self.folder / service
        staging_in.mkdir(exist_ok=True)
        servicer = self._servicer_of(self.owners[service], folder=self.folder, staging_in=staging_in)
        self.servers[service] = RpcServer([servicer.registration()], accepted())
        await self.servers[service].start(self.addresses[service][0])

    async def restart(self, service: str, owner: OwnerT) -> None:
        """Serve them by another owner."""
        self.owners[service] = owner
        await self.servers[service].stop(grace_s=0.0)
        await self.start(service)

    async def stop(self) -> None:
        """End all servers and channels."""
        for channel in self._channels:
            await channel.close()
        for server in self.servers.values():
            await server.stop(grace_s=0.0)

    def channel_to(self, service: str, role: Role | None = None) -> grpc.aio.Channel:
        """A channel as the role that may call, or as another."""
        self._channels.append(channel_as(role or self._role, self.addresses[service][0]))
        return self._channels[-1]

    def record(self) -> RunRecord:
        """The run's, as a pod has it."""
        return msgspec.structs.replace(read_record(self.folder), cluster=True, addresses=self.addresses)

    def staged(self) -> list[Path]:
        """Copies that calls left."""
        return list(self.folder.glob(f"*/{STAGING_PREFIX}*"))
