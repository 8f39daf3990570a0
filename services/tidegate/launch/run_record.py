"""The record of a run for all processes: its id, its run file, and the addresses of broker and services."""

from typing import Any

import msgspec

from tidegate.core.workloads import ONE_MACHINE, Workloads
from tidegate.launch.broker import BrokerEndpoint

FORMAT = 1


class RunRecord(msgspec.Struct, frozen=True):
    """``run.json`` of a run folder, or the same of a run in a cluster.

    ``forked_from``: the run and the version that this run began from, empty for a run from scratch.
    ``task_secret``: the secret of its tasks is derived from it (``runtime.task_secret``); empty in a cluster.
    ``call_secret``: the tokens of all roles are derived from it (``runtime.call_credentials``); empty in a cluster.
    ``cluster``: its services are pods; their data is queried, not read from a folder. ``workloads``: their objects.
    """

    format: int
    run_id: str
    created_at_s: float
    run_file: dict[str, Any]
    broker: BrokerEndpoint
    addresses: dict[str, list[str]]
    call_secret: str = ""
    cluster: bool = False
    forked_from: str = ""
    task_secret: str = ""
    stream_copies: int = 1
    workloads: Workloads = ONE_MACHINE

    def on_one_machine(self) -> "RunRecord":
        """The same run as the folder of one machine has it, whose services are not asked."""
        return msgspec.structs.replace(
            self, cluster=False, addresses={}, stream_copies=1, workloads=ONE_MACHINE
        )

    def without_secrets(self, *, broker_port: int) -> "RunRecord":
        """For a folder that leaves its machine; calls and tasks get new secrets at the next start."""
        return msgspec.structs.replace(
            self, call_secret="", task_secret="", broker=BrokerEndpoint(port=broker_port)
        )

    @property
    def ports(self) -> frozenset[int]:
        """Of the broker and the services."""
        services = (address for each in self.addresses.values() for address in each)
        return frozenset((self.broker.port, *(int(address.rpartition(":")[2]) for address in services)))
