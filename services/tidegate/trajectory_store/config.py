"""The store's own section of the run file."""

from typing import Annotated, Literal

import msgspec

from tidegate.trajectory_store.replay.selectors import Selector

MIB = 1024 * 1024
GIB = 1024 * MIB


class ReplayConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Replay of segments: the learner draws units of them again and again, instead of each segment once.

    ``unit``: ``none``, ``transition`` (``n_steps`` steps) or ``sequence`` (``sequence_length`` steps). Neither crosses
    the end of an episode. With a unit, ``batch_size`` counts units.
    ``capacity``: steps of single environments that are kept, in whole segments; the oldest go first, also when they
    leave ``staleness``. A segment that goes unused is dropped as unsampled. About 25 bytes each and the observations,
    of which images are compressed.
    ``n_steps``: steps of a transition; rewards of all of them, then the observation after the last.
    ``sequence_length``: steps of a sequence. ``sequence_period``: steps between two starts in a segment; 0 is one start
    a segment. Policies with memory store their states there: ``actor.q_learning.sequence_period`` is the same.
    ``selector``: ``uniform``; ``prioritised`` by what the learner returned, to the power of ``priority_exponent`` (0 is
    uniform, 1 proportional); ``recency``: half as likely for every ``recency_half_life`` steps that came since.
    ``uses_max``: gradient steps that a unit may take part in: 1 is the promise of a run without replay, 0 is unlimited;
    all are counted.
    ``samples_per_insert``: units drawn for each one inserted; the faster side waits for the other. 0: neither waits.
    ``min_fill``: units before the first draw. ``slack``: samples by which either side may be ahead of the ratio; 0
    computes the smallest with which neither stands still, and one batch and one segment more; less than that smallest
    is refused.
    """

    unit: Literal["none", "transition", "sequence"] = "none"
    capacity: Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)] = 1_000_000
    n_steps: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1
    sequence_length: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 80
    sequence_period: Annotated[int, msgspec.Meta(ge=0, le=4096)] = 0
    selector: Selector = "uniform"
    priority_exponent: Annotated[float, msgspec.Meta(ge=0.0, le=4.0)] = 0.6
    recency_half_life: Annotated[float, msgspec.Meta(ge=1.0, le=1e12)] = 100_000.0
    uses_max: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 1
    samples_per_insert: Annotated[float, msgspec.Meta(ge=0.0, le=100_000.0)] = 0.0
    min_fill: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)] = 1_000
    slack: Annotated[float, msgspec.Meta(ge=0.0, le=1e12)] = 0.0

    @property
    def enabled(self) -> bool:
        """Whether the store replays."""
        return self.unit != "none"


class TrajectoryStoreConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the ledger is kept and what bounds it.

    ``durability``: ``process`` survives ``kill -9`` of anything, ``power_loss`` also a power cut of an intact disk, at
    the price of one flush a transaction. ``fetch_messages_max``: messages that share one transaction.
    ``max_resident_trajectories`` and ``max_resident_bytes``: trajectories that wait for a gradient; at either limit the
    store stops fetching and pressure goes upstream through the stream; what was requested before, at most two portions
    of ``fetch_messages_max``, still comes in. Both must hold at least one batch.
    ``segment_bytes``: size at which a payload file is closed and the next one opened. ``retain_bytes_max``: bytes of
    payload files kept although no trajectory in them waits any more; beyond it, trajectories of a lost branch that are
    not in a checkpoint can no longer be trained again. ``replayable_bytes_max``: of these, bytes of the newest files
    that stay although a checkpoint has made them superfluous, so that ``tidegate replay`` can recompute their updates.
    ``frame_cache_bytes``: recent payloads kept in memory.
    ``uploads_bytes_max`` and ``upload_ttl_s``: capacity and lifetime of uploads that no message refers to yet; a
    lifetime below the time a message may wait in the stream would lose it. ``outcomes_max``: entries of the outcome
    log; a reader further behind is given every row's present state instead. ``expiry_period_s``: seconds between
    searches for trajectories that left the budget and for leases that were not renewed. ``lease_timeout_s``: a lease
    that its learner did not renew for so long ends, and its trajectories are available again; a learner renews its
    leases four times as often, also during a long update. Less than a learner may be stopped (a suspended machine, a
    network partition) costs it a restore; more lets training wait for a learner that went away.
    ``rows_kept_max``: rows of trajectories that the ledger keeps, about 500 bytes each (10,000,000: 5 GB). Beyond it
    the oldest are folded into counters and a set of their ids, once nothing can change them (docs/decisions/0015): they
    are counted by ``tidegate audit`` and no longer shown by ``explain``, ``export`` and ``report``. With replay all are
    kept.
    ``replay``: instead of giving each trajectory out once; then ``replay.capacity`` bounds what is resident.
    """

    durability: Literal["process", "power_loss"] = "process"
    fetch_messages_max: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 64
    max_resident_trajectories: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 8192
    max_resident_bytes: Annotated[int, msgspec.Meta(ge=MIB)] = GIB
    segment_bytes: Annotated[int, msgspec.Meta(ge=64 * 1024, le=GIB)] = 64 * MIB
    retain_bytes_max: Annotated[int, msgspec.Meta(ge=MIB)] = 4 * GIB
    replayable_bytes_max: Annotated[int, msgspec.Meta(ge=0)] = 0
    frame_cache_bytes: Annotated[int, msgspec.Meta(ge=0, le=GIB)] = 8 * MIB
    uploads_bytes_max: Annotated[int, msgspec.Meta(ge=MIB)] = GIB
    upload_ttl_s: Annotated[float, msgspec.Meta(ge=1.0)] = 3600.0
    outcomes_max: Annotated[int, msgspec.Meta(ge=1000)] = 200_000
    expiry_period_s: Annotated[float, msgspec.Meta(ge=0.05, le=60.0)] = 1.0
    lease_timeout_s: Annotated[float, msgspec.Meta(ge=1.0, le=3600.0)] = 60.0
    rows_kept_max: Annotated[int, msgspec.Meta(ge=1000)] = 10_000_000
    replay: ReplayConfig = ReplayConfig()
