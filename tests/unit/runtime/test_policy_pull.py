"""What a pull of policies keeps in memory."""

import weakref
from collections.abc import Collection
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from tests.support.service_harness import make_context
from tests.support.settings import make_settings
from tests.unit.weight_distribution.offers import offer, random_tensors, version
from tidegate.actor.policy import STATISTICS
from tidegate.core.records import Array
from tidegate.runtime import policy_follower
from tidegate.runtime.bus import Bus
from tidegate.runtime.policy_follower import PolicyPull
from tidegate.runtime.policy_watch import PolicyWatch
from tidegate.wire.announcement import Announcement

TENSORS = 3


class Peer:
    """Gives tensors of the right names, and knows which of them are still in use."""

    def __init__(self) -> None:
        self.given: list[weakref.ref[Array]] = []

    async def pull(self, announcement: Announcement, names: Collection[str]) -> dict[str, Array]:
        tensors = {name: np.full(4, announcement.version.step, np.float32) for name in names}
        self.given += [weakref.ref(tensor) for tensor in tensors.values()]
        return tensors

    @property
    def num_alive(self) -> int:
        return sum(tensor() is not None for tensor in self.given)


async def test_versions_that_are_never_served_do_not_pile_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = Peer()

    def client_of(_channel: object) -> Peer:
        return peer

    monkeypatch.setattr(policy_follower, "WeightDistributionClient", client_of)
    context = make_context("actor", make_settings(tmp_path, broker_url=""), bus=cast("Bus", None))
    pull = PolicyPull(context, PolicyWatch(context), STATISTICS, attempts=1)
    served = Announcement.from_bytes(offer(version(0), random_tensors(0, num_tensors=TENSORS)).announcement)
    snapshot = await pull.bring(served)
    assert snapshot is not None
    pull.keep(snapshot, served)
    for step in range(1, 6):
        refused = Announcement.from_bytes(
            offer(version(step), random_tensors(step, num_tensors=TENSORS)).announcement
        )
        assert await pull.bring(refused) is not None
    assert peer.num_alive == 2 * TENSORS, "those of the version that is served, and of the newest"
    again = await pull.bring(served)
    assert again is not None
    assert len(peer.given) == 6 * TENSORS, "what is served is not pulled again"
    await context.channels.close()
