"""Trajectories that end without a gradient, as the store is told of them."""

from collections.abc import Sequence

import msgspec

from tidegate.core.ids import TrajectoryId
from tidegate.core.records import DropReason
from tidegate.v1 import trajectory_store_service_pb2 as pb
from tidegate.wire.bounds import DETAIL_CHARS_MAX

# Of all drops of one call, which is at most 8 MiB (``runtime.rpc``); the rest is for ids.
DETAILS_BYTES_MAX = 4 << 20
UTF8_BYTES_MAX = 4


class Dropped(msgspec.Struct, frozen=True):
    """A trajectory that ends without a gradient, with a reason for ``tidegate explain``."""

    trajectory_id: TrajectoryId
    reason: DropReason
    detail: str = ""


def drops_to_proto(items: Sequence[Dropped]) -> list[pb.DroppedTrajectory]:
    """With details cut so that those of a group of any size fit into one call."""
    chars_max = min(DETAIL_CHARS_MAX, DETAILS_BYTES_MAX // UTF8_BYTES_MAX // max(1, len(items)))
    return [
        pb.DroppedTrajectory(
            trajectory_id=item.trajectory_id, reason=item.reason, detail=item.detail[:chars_max]
        )
        for item in items
    ]
