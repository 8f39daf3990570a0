"""What weight distribution decides, without touching disk or broker: which versions it takes, and which bytes it sends.

Versions are immutable. A version follows another when it was trained from it, or when it opens a lineage that knows
the other one; everything else means that two learners run, and the older one is refused.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from tidegate.core.errors import RecordError
from tidegate.core.ids import PolicyVersion
from tidegate.core.staleness import LineageTree
from tidegate.wire.bounds import TENSORS_MAX, check_count, check_shape, check_version, shown

DTYPE_BYTES: dict[str, int] = {
    "f2": 2, "f4": 4, "f8": 8, "i1": 1, "i2": 2, "i4": 4, "i8": 8, "u1": 1, "u2": 2, "u4": 4, "u8": 8, "b1": 1,
}  # fmt: skip
# Reading a tensor from an older file keeps that whole file alive. Below this share of it, writing the tensor again
# is cheaper: it bounds the disk at three times the kept versions' own size.
REUSE_SHARE_MIN = 0.5


class Tensor(msgspec.Struct, frozen=True):
    """One tensor of a manifest: raw little-endian bytes ``[offset, offset + size)`` of the joined payload."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int
    digest: bytes


class Manifest(msgspec.Struct, frozen=True):
    """A version as it was published: its place in the tree and the digests of its content."""

    version: PolicyVersion
    tree: LineageTree
    tensors: tuple[Tensor, ...]
    payload_size: int
    digest: bytes


class Accept(msgspec.Struct, frozen=True):
    """The version is new and follows the head."""


class Repeat(msgspec.Struct, frozen=True):
    """The version is here already, with the same content: a retry of a publish whose answer was lost."""


class Refuse(msgspec.Struct, frozen=True):
    """The version cannot follow; ``what`` and ``why`` are for the learner that sent it."""

    what: str
    why: str


Decision: TypeAlias = Accept | Repeat | Refuse


def check_manifest(manifest: Manifest) -> None:
    """Refuse a manifest that does not describe one gapless payload.

    Raises:
        RecordError: a name, dtype, shape, offset or size is impossible.
    """
    name = f"Policy {manifest.version}"
    check_version(manifest.version, name)
    if manifest.version.lineage not in manifest.tree.lineages:
        raise RecordError(f"{name} comes with a lineage tree that does not hold its own lineage")
    check_count(len(manifest.tensors), f"tensors of {name}", max_count=TENSORS_MAX)
    offset = 0
    names: set[str] = set()
    for tensor in manifest.tensors:
        item_bytes = DTYPE_BYTES.get(tensor.dtype)
        if item_bytes is None:
            raise RecordError(f"Tensor {tensor.name!r} of {name} has the unknown dtype {tensor.dtype!r}")
        if not tensor.name or tensor.name in names or tensor.name == "__metadata__":
            raise RecordError(f"{name} has a tensor name that is empty, taken or reserved: {tensor.name!r}")
        check_shape(tensor.shape, f"Tensor {shown(tensor.name)} of {name}")
        if math.prod(tensor.shape) * item_bytes != tensor.size:
            raise RecordError(
                f"Tensor {tensor.name!r} of {name} has {tensor.size} bytes for shape {tensor.shape}"
            )
        if tensor.offset != offset:
            raise RecordError(
                f"Tensor {tensor.name!r} of {name} starts at {tensor.offset} instead of {offset}"
            )
        names.add(tensor.name)
        offset += tensor.size
    if offset != manifest.payload_size:
        raise RecordError(f"{name} promises {manifest.payload_size} bytes and lists {offset}")


def is_of_another_run(announced: LineageTree, *, own: LineageTree) -> bool:
    """Whether what POLICY holds cannot belong to this run: each tree of a run holds those that it began with."""
    return announced.lineages.keys().isdisjoint(own.lineages)


def decide_publish(
    candidate: Manifest, *, head: Manifest | None, kept: Mapping[PolicyVersion, bytes] | None = None
) -> Decision:
    """Whether ``candidate`` may become the head.

    ``head`` is the newest version so far, here or on POLICY; ``kept`` the digests of all versions still here.
    """
    known = (kept or {}).get(candidate.version)
    if head is not None and head.version == candidate.version:
        known = head.digest
    if known is not None:
        if known == candidate.digest:
            return Repeat()
        return Refuse(
            what=f"Policy {candidate.version} was published before with other tensors",
            why="versions are immutable; two learners train the same lineage, or one went back without a new lineage",
        )
    if head is None:
        return Accept()
    ours, theirs = head.tree.lineages, candidate.tree.lineages
    for name in ours.keys() & theirs.keys():
        if ours[name] != theirs[name]:
            return Refuse(
                what=f"Policy {candidate.version} contradicts the known history of lineage {name}",
                why=f"it forked from {ours[name].parent}@{ours[name].fork_step} as far as is known here",
            )
    if candidate.version.lineage == head.version.lineage:
        if candidate.version.step > head.version.step:
            return Accept()
        return Refuse(
            what=f"Policy {candidate.version} is older than {head.version}, which was published already",
            why="another learner published past it",
        )
    if candidate.version.lineage in ours:
        return Refuse(
            what=f"Policy {candidate.version} belongs to a branch that ended",
            why=f"a learner that started later opened lineage {head.version.lineage}",
        )
    if head.version.lineage not in theirs:
        return Refuse(
            what=f"Policy {candidate.version} does not know lineage {head.version.lineage}, which is the newest here",
            why="its learner opened its lineage at another trajectory store, or before the newest learner did",
        )
    return Accept()


class Region(msgspec.Struct, frozen=True):
    """Bytes ``[start, stop)`` of a joined payload."""

    start: int
    stop: int


def payload_regions(manifest: Manifest, *, names: Sequence[str], offset: int) -> list[Region]:
    """The parts of the payload that a pull asks for, in manifest order, neighbours joined.

    ``names`` empty means every tensor. ``offset`` counts in the joined bytes of the named tensors: what an
    interrupted pull has already.

    Raises:
        RecordError: a name is not in the manifest, or the offset is past the end.
    """
    wanted = set(names)
    unknown = wanted - {tensor.name for tensor in manifest.tensors}
    if unknown:
        raise RecordError(f"Policy {manifest.version} has no tensor {sorted(unknown)[0]!r}")
    regions: list[Region] = []
    skip = offset
    for tensor in manifest.tensors:
        if wanted and tensor.name not in wanted:
            continue
        skipped = min(skip, tensor.size)
        skip -= skipped
        start, stop = tensor.offset + skipped, tensor.offset + tensor.size
        if start == stop:
            continue
        if regions and regions[-1].stop == start:
            start = regions.pop().start
        regions.append(Region(start=start, stop=stop))
    if offset < 0 or skip:
        raise RecordError(f"A pull of {manifest.version} resumes at byte {offset}, past its end")
    return regions


def plan_reuse(
    tensors: Sequence[Tensor], *, held_in: Mapping[bytes, int], file_bytes: Mapping[int, int]
) -> dict[bytes, int]:
    """Which tensors need no writing, because an older file holds the same bytes: digest to that file.

    ``held_in`` maps digests to files, ``file_bytes`` files to their size. A file of which less than
    ``REUSE_SHARE_MIN`` would be read is let go instead (see there).
    """
    used_bytes: dict[int, int] = {}
    found: dict[bytes, int] = {}
    for tensor in tensors:
        file = held_in.get(tensor.digest)
        if file is not None and tensor.digest not in found:
            found[tensor.digest] = file
            used_bytes[file] = used_bytes.get(file, 0) + tensor.size
    return {
        digest: file
        for digest, file in found.items()
        if used_bytes[file] >= REUSE_SHARE_MIN * file_bytes[file]
    }
