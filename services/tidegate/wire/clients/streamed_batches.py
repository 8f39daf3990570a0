"""Batches that the trajectory store streams to a learner: their request, and how their messages become one value."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from typing import TypeVar

import msgspec

from tidegate.core.errors import DeadlineError, RecordError
from tidegate.core.ids import PolicyVersion, TrajectoryId
from tidegate.core.records import Trajectory
from tidegate.core.staleness import StalenessLimits
from tidegate.v1 import trajectory_store_service_pb2 as pb
from tidegate.wire.clients.remote import DEADLINE_S, TRANSFER_DEADLINE_S, remote_errors
from tidegate.wire.convert import version_to_proto
from tidegate.wire.frame import decode_frame

SERVICE = "trajectory_store"
RequestT = TypeVar("RequestT", pb.LeaseBatchRequest, pb.SampleBatchRequest)
HeadT = TypeVar("HeadT", pb.LeaseBatchResponse, pb.SampleBatchResponse, pb.ReadUpdateResponse)


class LeasedBatch(msgspec.Struct, frozen=True, eq=False):
    """A batch leased to the learner: train it and commit, or release it.

    Its lease ends with the learner's lineage, or when it is not renewed. ``ages_s``: of each trajectory, seconds since
    its rollout started, by the store's clock when the batch was leased, ``waited_s`` after the request had arrived.
    """

    batch_id: str
    trajectories: list[Trajectory]
    ages_s: dict[TrajectoryId, float]
    waited_s: float


def batch_request(
    kind: type[RequestT],
    version: PolicyVersion,
    batch_size: int,
    limits: StalenessLimits,
    *,
    max_wait_s: float,
    learner_id: str,
    held: Sequence[str],
) -> RequestT:
    """The request of a lease or of a sample."""
    return kind(
        version=version_to_proto(version),
        batch_size=batch_size,
        max_lag=limits.max_lag,
        max_age_s=limits.max_age_s,
        max_wait_s=max_wait_s,
        learner_id=learner_id,
        held_batch_ids=held,
    )


async def received(
    call: Callable[..., AsyncIterable[HeadT | memoryview]], request: object, *, max_wait_s: float
) -> tuple[HeadT | None, bytes]:
    """The first message of a streamed batch, and its own bytes with those of the chunks that follow.

    ``max_wait_s``: of the store, before its first message. Each message has a deadline of its own, as one of the whole
    would be one of its size: a batch that takes longer over a slow network is sent again and again.

    Raises:
        DeadlineError: the next message did not come in time.
    """
    head: HeadT | None = None
    chunks: list[bytes | memoryview] = []
    messages = aiter(call(request, timeout=max_wait_s + TRANSFER_DEADLINE_S))
    within_s = max_wait_s + DEADLINE_S
    with remote_errors(SERVICE):
        while (message := await _next_of(messages, within_s=within_s)) is not None:
            within_s = DEADLINE_S
            if isinstance(message, memoryview):
                chunks.append(message)
            else:
                head = message
                chunks.append(message.chunk)
    return head, b"".join(chunks)


async def _next_of(
    messages: AsyncIterator[HeadT | memoryview], *, within_s: float
) -> HeadT | memoryview | None:
    try:
        async with asyncio.timeout(within_s):
            return await anext(messages, None)
    except TimeoutError as error:
        raise DeadlineError(
            f"{SERVICE}: a batch was silent for {within_s:g} s",
            fix="see the network between the two services",
        ) from error


def leased_trajectories(
    head: pb.LeaseBatchResponse | pb.ReadUpdateResponse, batch: bytes
) -> list[Trajectory]:
    """The trajectories of a lease, or of an update.

    Raises:
        RecordError: the frames do not add up.
    """
    data = memoryview(batch)
    if len(data) != sum(head.frame_sizes):
        raise RecordError(f"A batch of {sum(head.frame_sizes)} bytes arrived as {len(data)} bytes")
    wanted = set(head.trajectory_ids)
    trajectories: list[Trajectory] = []
    start = 0
    for size in head.frame_sizes:
        frame = decode_frame(data[start : start + size])
        trajectories.extend(trajectory for trajectory in frame if trajectory.trajectory_id in wanted)
        start += size
    return trajectories


def leased_ages_s(head: pb.LeaseBatchResponse) -> dict[TrajectoryId, float]:
    """The age of each trajectory of a lease.

    Raises:
        RecordError: there is not one for each.
    """
    if len(head.ages_s) != len(head.trajectory_ids):
        raise RecordError(
            f"A batch of {len(head.trajectory_ids)} trajectories arrived with {len(head.ages_s)} ages",
            fix="run the trajectory store and the learner from the same release",
        )
    return dict(zip(map(TrajectoryId, head.trajectory_ids), head.ages_s, strict=True))
