"""The store's own section of the run file."""

from typing import Annotated, Literal

import msgspec

MIB = 1024 * 1024
GIB = 1024 * MIB


class TrajectoryStoreConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the ledger is kept and what bounds it.

    ``durability``: ``process`` survives ``kill -9`` of anything, ``power_loss`` also a power cut of an intact disk, at
    the price of one flush a transaction. ``fetch_messages_max``: messages that share one transaction.
    ``max_resident_trajectories`` and ``max_resident_bytes``: trajectories that wait for a gradient; at either limit the
    store stops fetching and pressure goes upstream through the stream; what was requested before, at most two portions
    of ``fetch_messages_max``, still comes in. Both must hold at least one batch.
    ``segment_bytes``: size at which a payload file is closed and the next one opened. ``retain_bytes_max``: bytes of
    payload files kept although no trajectory in them waits any more; beyond it, trajectories of a lost branch that are
    not in a checkpoint can no longer be trained again. ``frame_cache_bytes``: recent payloads kept in memory.
    ``uploads_bytes_max`` and ``upload_ttl_s``: capacity and lifetime of uploads that no message refers to yet; a
    lifetime below the time a message may wait in the stream would lose it. ``outcomes_max``: entries of the outcome
    log; a reader further behind is given every row's present state instead. ``expiry_period_s``: seconds between
    searches for trajectories that left the budget.
    """

    durability: Literal["process", "power_loss"] = "process"
    fetch_messages_max: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 64
    max_resident_trajectories: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 8192
    max_resident_bytes: Annotated[int, msgspec.Meta(ge=MIB)] = GIB
    segment_bytes: Annotated[int, msgspec.Meta(ge=64 * 1024, le=GIB)] = 64 * MIB
    retain_bytes_max: Annotated[int, msgspec.Meta(ge=MIB)] = 4 * GIB
    frame_cache_bytes: Annotated[int, msgspec.Meta(ge=0, le=GIB)] = 8 * MIB
    uploads_bytes_max: Annotated[int, msgspec.Meta(ge=MIB)] = GIB
    upload_ttl_s: Annotated[float, msgspec.Meta(ge=1.0)] = 3600.0
    outcomes_max: Annotated[int, msgspec.Meta(ge=1000)] = 200_000
    expiry_period_s: Annotated[float, msgspec.Meta(ge=0.05, le=60.0)] = 1.0
