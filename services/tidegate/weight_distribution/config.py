"""The section ``weight_distribution`` of a run file."""

from typing import Annotated

import msgspec


class WeightDistributionConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many versions stay, and how they travel.

    ``keep_versions``: versions that can still be pulled, besides the best one; an actor that is further behind than
    this follows to a newer one, so fewer than ``max_lag`` + 2 make slow actors start over. ``inline_bytes_max``:
    policies up to this many bytes travel inside of the announcement itself; above 400 KiB the announcement would not
    fit a message.
    ``chunk_bytes``: size of one message of a tensor stream. ``reconcile_period_s``: how often POLICY is compared with
    the disk, so that an announcement which the broker lost returns within that time.
    """

    keep_versions: Annotated[int, msgspec.Meta(ge=2, le=1024)] = 32
    inline_bytes_max: Annotated[int, msgspec.Meta(ge=0, le=400 << 10)] = 256 << 10
    chunk_bytes: Annotated[int, msgspec.Meta(ge=4 << 10, le=1 << 20)] = 1 << 20
    reconcile_period_s: Annotated[float, msgspec.Meta(ge=0.1, le=60.0)] = 1.0
