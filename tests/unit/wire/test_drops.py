"""Drops as the store is told of them: of a group of any size."""

from typing import Any, cast

import grpc
import pytest

from tidegate.core.ids import TaskId, trajectory_id
from tidegate.runtime.rpc import MESSAGE_BYTES_MAX
from tidegate.v1 import trajectory_store_service_pb2 as pb
from tidegate.wire.bounds import DETAIL_CHARS_MAX, IDS_MAX
from tidegate.wire.clients.trajectory_store import Dropped, TrajectoryStoreClient


class Recording:
    """A channel whose calls keep what they are sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def unary_unary(self, *_method: object, **_options: object) -> object:
        async def call(request: Any, **_options: object) -> pb.DropUnarrivedResponse:
            self.sent.append(request)
            return pb.DropUnarrivedResponse(dropped=len(request.dropped))

        return call

    def unary_stream(self, *_method: object, **_options: object) -> None: ...

    stream_unary = unary_stream


@pytest.mark.parametrize("num_samples", [1, 64, 4096, IDS_MAX])
async def test_drops_of_a_group_of_any_size_fit_into_one_call(num_samples: int) -> None:
    channel = Recording()
    client = TrajectoryStoreClient(cast("grpc.aio.Channel", cast("Any", channel)))
    detail = "\N{GRINNING FACE}" * DETAIL_CHARS_MAX
    task = TaskId("a-task-of-a-run-with-a-long-name-00000001")
    dropped = [
        Dropped(trajectory_id(task, sample_index=index), "failed", detail) for index in range(num_samples)
    ]
    assert await client.drop_unarrived(dropped) == num_samples
    [request] = channel.sent
    assert request.ByteSize() < MESSAGE_BYTES_MAX
    assert len({item.detail for item in request.dropped}) == 1
    assert len(request.dropped[0].detail) == (DETAIL_CHARS_MAX if num_samples <= 64 else 2**20 // num_samples)
