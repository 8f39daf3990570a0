"""Policies as a learner would publish them, for the tests of this package."""

from dataclasses import dataclass

import numpy as np

from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.core.records import Array, PolicySnapshot
from tidegate.core.staleness import Lineage, LineageTree
from tidegate.weight_distribution.announced import manifest_of
from tidegate.weight_distribution.state import Manifest
from tidegate.weight_distribution.versions import StoredVersion, VersionStore
from tidegate.wire.announcement import Announcement
from tidegate.wire.policy_payload import announce

ROOT = LineageName("0-aaaa")
TREE = LineageTree().add(Lineage(name=ROOT))


@dataclass(frozen=True)
class Offer:
    """A version ready to be taken in."""

    snapshot: PolicySnapshot
    manifest: Manifest
    announcement: bytes
    payload: bytes


def version(step: int, lineage: LineageName = ROOT) -> PolicyVersion:
    return PolicyVersion(lineage=lineage, step=step)


def random_tensors(seed: int, *, num_tensors: int = 3) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        f"layer{index}": rng.standard_normal((4, 3 + index)).astype(np.float32)
        for index in range(num_tensors)
    }


def offer(at: PolicyVersion, tensors: dict[str, Array] | None = None, *, tree: LineageTree = TREE) -> Offer:
    snapshot = PolicySnapshot(at, random_tensors(at.step) if tensors is None else tensors, published_at_s=1.0)
    message, chunks = announce(snapshot, tree)
    announcement = message.SerializeToString()
    manifest = manifest_of(Announcement.from_bytes(announcement))
    return Offer(snapshot, manifest, announcement, b"".join(chunks))


def take_in(store: VersionStore, given: Offer) -> StoredVersion:
    intake = store.begin(given.manifest, given.announcement)
    intake.feed(given.payload)
    return store.commit(intake)
