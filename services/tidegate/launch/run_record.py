"""What a run is to whoever asks about it: its id, its run file, and where everybody listens."""

from typing import Any

import msgspec

from tidegate.launch.broker import BrokerEndpoint

FORMAT = 1


class RunRecord(msgspec.Struct, frozen=True):
    """``run.json`` of a run folder, or the same of a run in a cluster.

    ``max_lag_ever`` is the widest budget this folder was ever run with: what the audit holds every gradient against.
    ``cluster``: its services are pods; what they keep is asked for, not read from a folder.
    """

    format: int
    run_id: str
    created_at_s: float
    run_file: dict[str, Any]
    broker: BrokerEndpoint
    addresses: dict[str, list[str]]
    max_lag_ever: int
    cluster: bool = False
    stream_copies: int = 1
