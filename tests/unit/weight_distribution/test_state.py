import itertools
from typing import Any

import hypothesis
import msgspec
import pytest
from hypothesis import strategies as st

from tests.unit.weight_distribution.offers import ROOT, TREE, offer, random_tensors, version
from tidegate.core.errors import RecordError
from tidegate.core.ids import LineageName
from tidegate.core.staleness import Lineage, LineageTree
from tidegate.weight_distribution.state import (
    Accept,
    Manifest,
    Refuse,
    Repeat,
    check_manifest,
    decide_publish,
    payload_regions,
    plan_reuse,
)

FORK = LineageName("1-bbbb")
FORKED_TREE = TREE.add(Lineage(name=FORK, parent=ROOT, fork_step=3))


def test_first_version_is_accepted() -> None:
    assert decide_publish(offer(version(0)).manifest, head=None) == Accept()


def test_next_step_of_the_lineage_is_accepted() -> None:
    assert decide_publish(offer(version(5)).manifest, head=offer(version(4)).manifest) == Accept()


def test_same_version_with_same_content_is_a_repetition() -> None:
    again = offer(version(4)).manifest
    assert decide_publish(again, head=offer(version(4)).manifest) == Repeat()


def test_an_older_version_that_is_kept_is_a_repetition() -> None:
    old, head = offer(version(3)).manifest, offer(version(4)).manifest
    kept = {old.version: old.digest, head.version: head.digest}
    assert decide_publish(old, head=head, kept=kept) == Repeat()


def test_same_version_with_other_content_is_refused() -> None:
    other = offer(version(4), random_tensors(99)).manifest
    assert isinstance(decide_publish(other, head=offer(version(4)).manifest), Refuse)
    old, head = offer(version(3)).manifest, offer(version(4)).manifest
    changed = offer(version(3), random_tensors(99)).manifest
    assert isinstance(decide_publish(changed, head=head, kept={old.version: old.digest}), Refuse)


def test_step_before_the_head_is_refused() -> None:
    assert isinstance(decide_publish(offer(version(3)).manifest, head=offer(version(4)).manifest), Refuse)


def test_restored_learner_goes_on_at_an_older_step_in_its_own_lineage() -> None:
    restored = offer(version(3, FORK), tree=FORKED_TREE).manifest
    assert decide_publish(restored, head=offer(version(9)).manifest) == Accept()


def test_learner_of_a_dead_branch_is_refused_even_when_it_is_further() -> None:
    head = offer(version(3, FORK), tree=FORKED_TREE).manifest
    assert isinstance(decide_publish(offer(version(50)).manifest, head=head), Refuse)


def test_lineage_that_does_not_know_the_newest_one_is_refused() -> None:
    sibling = LineageName("1-cccc")
    tree = TREE.add(Lineage(name=sibling, parent=ROOT, fork_step=3))
    head = offer(version(3, FORK), tree=FORKED_TREE).manifest
    assert isinstance(decide_publish(offer(version(4, sibling), tree=tree).manifest, head=head), Refuse)
    knows = FORKED_TREE.add(Lineage(name=sibling, parent=ROOT, fork_step=3))
    assert decide_publish(offer(version(4, sibling), tree=knows).manifest, head=head) == Accept()


def test_tree_that_tells_another_story_is_refused() -> None:
    other = LineageTree().add(Lineage(name=ROOT)).add(Lineage(name=FORK, parent=ROOT, fork_step=7))
    head = offer(version(3, FORK), tree=FORKED_TREE).manifest
    assert isinstance(decide_publish(offer(version(9, FORK), tree=other).manifest, head=head), Refuse)


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "f3"},
        {"shape": (4, 4)},
        {"shape": (-4, -3)},
        {"offset": 8},
        {"size": 4},
        {"name": ""},
        {"name": "__metadata__"},
    ],
)
def test_impossible_tensor_is_refused(change: dict[str, Any]) -> None:
    manifest = offer(version(1), random_tensors(1, num_tensors=1)).manifest
    tensor = manifest.tensors[0]
    spoiled = msgspec.structs.replace(manifest, tensors=(msgspec.structs.replace(tensor, **change),))
    with pytest.raises(RecordError):
        check_manifest(spoiled)


@pytest.mark.parametrize("lineage", ["", "../../etc", "a/b", "x" * 65])
def test_lineage_that_cannot_name_a_file_is_refused(lineage: str) -> None:
    manifest = offer(version(1)).manifest
    spoiled = Manifest(
        version(1, LineageName(lineage)),
        LineageTree({LineageName(lineage): Lineage(name=LineageName(lineage))}),
        manifest.tensors,
        manifest.payload_size,
        manifest.digest,
    )
    with pytest.raises(RecordError):
        check_manifest(spoiled)


@hypothesis.given(data=st.data(), num_tensors=st.integers(0, 6))
def test_regions_are_the_bytes_that_a_plain_slice_of_the_named_tensors_gives(
    data: st.DataObject, num_tensors: int
) -> None:
    given = offer(version(1), random_tensors(1, num_tensors=num_tensors))
    every = [tensor.name for tensor in given.manifest.tensors]
    names = data.draw(st.lists(st.sampled_from(every), unique=True)) if every else []
    slow = b"".join(
        given.payload[tensor.offset : tensor.offset + tensor.size]
        for tensor in given.manifest.tensors
        if not names or tensor.name in names
    )
    offset = data.draw(st.integers(0, len(slow)))
    regions = payload_regions(given.manifest, names=names, offset=offset)
    assert b"".join(given.payload[region.start : region.stop] for region in regions) == slow[offset:]
    assert all(left.stop < right.start for left, right in itertools.pairwise(regions))


def test_pull_of_an_unknown_tensor_or_past_the_end_is_refused() -> None:
    given = offer(version(1))
    with pytest.raises(RecordError, match="no tensor 'nobody'"):
        payload_regions(given.manifest, names=["nobody"], offset=0)
    with pytest.raises(RecordError, match="past its end"):
        payload_regions(given.manifest, names=[], offset=given.manifest.payload_size + 1)


def test_tensor_is_reused_only_while_most_of_its_file_is() -> None:
    base = offer(version(1), random_tensors(1, num_tensors=4)).manifest.tensors
    held = {tensor.digest: 7 for tensor in base}
    total = sum(tensor.size for tensor in base)
    assert set(plan_reuse(base[1:], held_in=held, file_bytes={7: total})) == {t.digest for t in base[1:]}
    assert plan_reuse(base[:1], held_in=held, file_bytes={7: total}) == {}
