from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from tests.unit.weight_distribution.offers import ROOT, TREE, offer, take_in, version
from tidegate.core.errors import ConflictError, RecordError, UnavailableError
from tidegate.core.ids import LineageName, RunId
from tidegate.core.staleness import Lineage, LineageTree
from tidegate.runtime.bus import Published, Stored
from tidegate.runtime.service import ServiceContext
from tidegate.weight_distribution.announced import ANNOUNCEMENT_BYTES_MAX
from tidegate.weight_distribution.announcer import Announcer
from tidegate.weight_distribution.config import WeightDistributionConfig
from tidegate.weight_distribution.loops import Distribution
from tidegate.weight_distribution.versions import StoredVersion, VersionStore
from tidegate.wire.announcement import Announcement
from tidegate.wire.bounds import LINEAGES_MAX
from tidegate.wire.subjects import Topology

ONE = np.zeros(1, np.float32)


class Subject:
    """One subject of a stream as the broker holds it; ``lost_acks`` stores that many messages without saying so."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, str, bytes]] = []
        self.lost_acks = 0
        self.quarantined: list[tuple[bytes, str]] = []
        self._sequence = 10

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        message_id: str,
        headers: Mapping[str, str] | None = None,
        deadline_s: float = 30.0,
        expected_last_sequence: int | None = None,
    ) -> Published:
        for sequence, known, _ in self.messages:
            if known == message_id:
                return Published(sequence=sequence, duplicate=True)
        last = self.messages[-1][0] if self.messages else 0
        if expected_last_sequence is not None and expected_last_sequence != last:
            raise ConflictError("moved on")
        self._sequence += 3
        self.messages.append((self._sequence, message_id, data))
        if self.lost_acks:
            self.lost_acks -= 1
            raise UnavailableError("no answer")
        return Published(sequence=self._sequence, duplicate=False)

    async def last(self, stream: str, subject: str) -> Stored | None:
        if not self.messages:
            return None
        sequence, _, data = self.messages[-1]
        return Stored(data=data, headers={}, sequence=sequence)

    async def quarantine(
        self, source: str, data: bytes, *, reason: str, headers: Mapping[str, str] | None = None
    ) -> None:
        self.quarantined.append((data, reason))

    def put(self, data: bytes) -> None:
        """What another process wrote."""
        self._sequence += 1
        self.messages.append((self._sequence, f"stranger-{self._sequence}", data))

    def announced(self) -> list[str]:
        return [str(Announcement.from_bytes(data).version) for _, _, data in self.messages]


@pytest.fixture
def store(tmp_path: Path) -> VersionStore:
    return VersionStore(tmp_path, keep_versions=8)


def announcer(subject: Subject) -> Announcer:
    return Announcer(subject, Topology(RunId("r")), model="default")


def stored(store: VersionStore, step: int) -> StoredVersion:
    return take_in(store, offer(version(step)))


async def test_versions_are_announced_in_order_and_inline_payload_travels(store: VersionStore) -> None:
    subject = Subject()
    ours = announcer(subject)
    await ours.announce(stored(store, 0), inline_payload=store.payload(version(0)))
    await ours.announce(stored(store, 1), inline_payload=None)
    assert subject.announced() == ["0-aaaa@0", "0-aaaa@1"]
    inline = Announcement.from_bytes(subject.messages[0][2]).inline_snapshot()
    assert inline is not None
    assert inline.tensors.keys() == offer(version(0)).snapshot.tensors.keys()
    assert Announcement.from_bytes(subject.messages[1][2]).inline_snapshot() is None


async def test_payload_that_does_not_fit_beside_the_lineages_is_pulled(store: VersionStore) -> None:
    """A learner that started 4,096 times, and the largest payload that settings allow inline."""
    names = [ROOT, *(LineageName(f"{number}-{number:04x}") for number in range(1, LINEAGES_MAX))]
    forks = [Lineage(name, parent=before, fork_step=10**6) for before, name in pairwise(names)]
    large = offer(version(0), {"w": np.zeros(100 << 10, np.float32)}, tree=TREE.add_all(forks))
    subject = Subject()
    await announcer(subject).announce(take_in(store, large), inline_payload=large.payload)
    (_, _, data) = subject.messages[0]
    assert len(data) < ANNOUNCEMENT_BYTES_MAX < len(data) + len(large.payload)
    assert Announcement.from_bytes(data).inline_snapshot() is None


def test_version_that_no_message_can_announce_is_refused_before_its_tensors_are_sent(tmp_path: Path) -> None:
    experts = {f"model.layers.{number}.mlp.experts.127.down_proj.weight": ONE for number in range(7000)}
    given = offer(version(0), experts)
    context = SimpleNamespace(data_dir=tmp_path, bus=Subject(), topology=Topology(RunId("r")))
    distribution = Distribution(cast("ServiceContext", context), WeightDistributionConfig())
    with pytest.raises(RecordError, match="7,000 tensors"):
        distribution.begin(given.manifest, given.announcement)
    assert distribution.versions.head is None


async def test_announcing_again_changes_nothing(store: VersionStore) -> None:
    subject = Subject()
    first = stored(store, 0)
    await announcer(subject).announce(first, inline_payload=None)
    await announcer(subject).announce(first, inline_payload=None)
    assert subject.announced() == ["0-aaaa@0"]


async def test_announcement_whose_ack_was_lost_is_not_made_twice(store: VersionStore) -> None:
    subject = Subject()
    subject.lost_acks = 1
    ours = announcer(subject)
    first = stored(store, 0)
    with pytest.raises(UnavailableError):
        await ours.announce(first, inline_payload=None)
    await ours.announce(first, inline_payload=None)
    await ours.announce(stored(store, 1), inline_payload=None)
    assert subject.announced() == ["0-aaaa@0", "0-aaaa@1"]


async def test_lost_compare_with_the_same_version_is_a_success(store: VersionStore) -> None:
    subject = Subject()
    ours, twin = announcer(subject), announcer(subject)
    await ours.refresh()
    first = stored(store, 0)
    await twin.announce(first, inline_payload=None)
    await ours.announce(first, inline_payload=None)
    assert subject.announced() == ["0-aaaa@0"]


async def test_lost_compare_with_an_older_version_is_tried_again(store: VersionStore) -> None:
    subject = Subject()
    ours, other = announcer(subject), announcer(subject)
    await ours.refresh()
    await other.announce(stored(store, 0), inline_payload=None)
    await ours.announce(stored(store, 1), inline_payload=None)
    assert subject.announced() == ["0-aaaa@0", "0-aaaa@1"]


async def test_lost_compare_with_a_newer_lineage_is_a_conflict(store: VersionStore) -> None:
    subject = Subject()
    ours, other = announcer(subject), announcer(subject)
    await ours.refresh()
    fork = LineageName("1-bbbb")
    tree = TREE.add(Lineage(name=fork, parent=ROOT, fork_step=0))
    await other.announce(take_in(store, offer(version(0, fork), tree=tree)), inline_payload=None)
    with pytest.raises(ConflictError, match="branch that ended"):
        await ours.announce(stored(store, 7), inline_payload=None)
    assert subject.announced() == ["1-bbbb@0"]


async def test_two_who_write_all_the_time_end_as_unavailable(store: VersionStore) -> None:
    class Busy(Subject):
        async def publish(self, subject: str, data: bytes, **_: object) -> Published:
            raise ConflictError("moved on")

    with pytest.raises(UnavailableError, match="compares"):
        await announcer(Busy()).announce(stored(store, 0), inline_payload=None)


@pytest.mark.parametrize("data", [b"garbage", b"", b"\xff" * 4096])
async def test_unreadable_message_is_quarantined_once_and_the_newest_version_announced_behind_it(
    store: VersionStore, data: bytes
) -> None:
    subject = Subject()
    first = stored(store, 0)
    await announcer(subject).announce(first, inline_payload=None)
    subject.put(data)
    ours = announcer(subject)
    for _ in range(3):
        assert await ours.refresh(own=TREE) is None
    assert [kept for kept, _ in subject.quarantined] == [data]
    assert ours.quarantined_total == 1
    await ours.announce(first, inline_payload=None)
    assert Announcement.from_bytes(subject.messages[-1][2]).version == version(0)


async def test_announcement_of_another_run_is_quarantined(store: VersionStore, tmp_path: Path) -> None:
    subject = Subject()
    other = LineageName("0-other")
    foreign = offer(version(9, other), tree=LineageTree().add(Lineage(name=other)))
    await announcer(subject).announce(
        take_in(VersionStore(tmp_path / "other", keep_versions=8), foreign), inline_payload=None
    )
    await announcer(subject).announce(stored(store, 0), inline_payload=None)
    assert [reason for _, reason in subject.quarantined] == [
        "POLICY holds 0-other@9, of another run. it shares no lineage with the versions here."
    ]
    assert subject.announced() == ["0-other@9", "0-aaaa@0"]
