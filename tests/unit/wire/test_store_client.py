"""How long clients wait for answers."""

from typing import Any

import numpy as np
import pytest
from grpc import aio

from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.core.records import PolicySnapshot
from tidegate.core.staleness import Lineage, LineageTree
from tidegate.wire.clients.learner import STEP_DEADLINE_S, LearnerClient
from tidegate.wire.clients.remote import AUDIT_DEADLINE_S, SLOWEST_BYTES_PER_S, TRANSFER_DEADLINE_S
from tidegate.wire.clients.trajectory_store import TrajectoryStoreClient
from tidegate.wire.clients.weight_distribution import WeightDistributionClient


class _NotMadeError(Exception):
    """The call was seen, and is not made."""


class _SeesDeadlines(aio.UnaryUnaryClientInterceptor):
    """Keeps the deadline of each call."""

    def __init__(self) -> None:
        self.deadlines_s: list[float | None] = []

    async def intercept_unary_unary(
        self, continuation: Any, client_call_details: aio.ClientCallDetails, request: Any
    ) -> Any:
        self.deadlines_s.append(client_call_details.timeout)
        raise _NotMadeError


async def test_opening_a_lineage_may_take_as_long_as_reading_a_whole_ledger() -> None:
    """The store reads every row for it; a learner that gives up sooner asks again, and is never answered."""
    seen = _SeesDeadlines()
    async with aio.insecure_channel("ipv4:127.0.0.1:9", interceptors=[seen]) as channel:
        with pytest.raises(_NotMadeError):
            await TrajectoryStoreClient(channel).open_lineage(
                Lineage(LineageName("0-aaaa")), learner_id="learner-0"
            )
    assert seen.deadlines_s == [AUDIT_DEADLINE_S]


async def test_policy_has_the_time_that_its_bytes_take_over_a_slow_network() -> None:
    """With one deadline for all sizes a large one would be sent again and again."""
    version = PolicyVersion(LineageName("0-aaaa"), 0)
    snapshot = PolicySnapshot(version, {"w": np.zeros(50_000, np.float32)}, published_at_s=1.0)
    seen = _SeesDeadlines()
    async with aio.insecure_channel("ipv4:127.0.0.1:9", interceptors=[seen]) as channel:
        with pytest.raises(_NotMadeError):
            await WeightDistributionClient(channel).publish(snapshot, LineageTree())
    assert seen.deadlines_s == [TRANSFER_DEADLINE_S + 200_000 / SLOWEST_BYTES_PER_S]


async def test_checkpoint_and_rollback_may_take_as_long_as_an_update_and_a_large_checkpoint() -> None:
    """A run in a cluster ends with a checkpoint: one that takes longer than its call was written again, for ever."""
    seen = _SeesDeadlines()
    async with aio.insecure_channel("ipv4:127.0.0.1:9", interceptors=[seen]) as channel:
        client = LearnerClient(channel)
        for call in (client.checkpoint(), client.rollback(PolicyVersion(LineageName("0-aaaa"), 0))):
            with pytest.raises(_NotMadeError):
                await call
    assert seen.deadlines_s == [STEP_DEADLINE_S] * 2
    assert STEP_DEADLINE_S >= 3600.0
