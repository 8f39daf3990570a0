"""An announcement of a policy, as published on POLICY."""

from google.protobuf.message import DecodeError

from tidegate.core.errors import RecordError, UnknownVersionError
from tidegate.core.ids import PolicyVersion
from tidegate.core.records import Array, PolicySnapshot
from tidegate.core.staleness import LineageTree
from tidegate.v1 import policy_pb2
from tidegate.wire.bounds import (
    SIZE_MAX,
    TENSORS_MAX,
    check_count,
    check_name,
    check_number,
    check_shape,
    check_version,
    is_time,
    is_trace_parent,
)
from tidegate.wire.convert import tree_from_proto, version_from_proto
from tidegate.wire.policy_payload import tensors_of


class Announcement:
    """A version with its lineage tree and manifest; ``inline_snapshot`` when the message contains the tensors."""

    def __init__(self, message: policy_pb2.PolicyAnnouncement) -> None:
        """Read the version and the tree once; tensors stay raw until asked for.

        Raises:
            RecordError: it announces what no learner can publish.
        """
        check_version(message.version, "An announced policy")
        check_manifest_bounds(message)
        try:
            tree = tree_from_proto(message.lineages)
        except UnknownVersionError as error:
            raise RecordError(
                "A policy announcement's lineages do not form a tree", why=str(error)
            ) from error
        self.message = message
        self.version: PolicyVersion = version_from_proto(message.version)
        self.tree: LineageTree = tree
        if self.version.lineage not in tree.lineages:
            raise RecordError(
                f"Policy {self.version} comes with a lineage tree that does not hold its lineage"
            )

    @classmethod
    def from_bytes(cls, data: bytes) -> "Announcement":
        """Decode the body of a POLICY message.

        Raises:
            RecordError: the bytes are no announcement.
        """
        message = policy_pb2.PolicyAnnouncement()
        try:
            message.ParseFromString(data)
        except DecodeError as error:
            raise RecordError("A policy announcement cannot be parsed", why=str(error)) from error
        return cls(message)

    def digests(self) -> dict[str, bytes]:
        """Tensor name to digest, to compare with another version."""
        return {entry.name: entry.digest for entry in self.message.tensors}

    def inline_snapshot(self) -> PolicySnapshot | None:
        """The policy, if the message contains it.

        Raises:
            CorruptionError: the payload does not match its digests.
        """
        if not self.message.inline_payload and self.message.payload_size:
            return None
        return self.snapshot(tensors_of(self.message.tensors, self.message.inline_payload))

    @property
    def names(self) -> list[str]:
        """All tensors, in manifest order."""
        return [entry.name for entry in self.message.tensors]

    def snapshot(self, tensors: dict[str, Array]) -> PolicySnapshot:
        """The policy, built from tensors that were verified against the manifest."""
        return PolicySnapshot(
            self.version,
            tensors,
            published_at_s=self.message.published_at_s,
            base_digest=self.message.base_digest,
        )


def check_manifest_bounds(message: policy_pb2.PolicyAnnouncement) -> None:
    """Refuse a manifest before its tensors are listed; whether they fit together, weight distribution decides.

    Raises:
        RecordError: it lists too much, or a number is out of range.
    """
    check_count(len(message.tensors), "tensors of a policy", max_count=TENSORS_MAX)
    check_number(message.payload_size, "A policy's payload size", least=0, most=SIZE_MAX)
    for entry in message.tensors:
        check_name(entry.name, "A tensor's name")
        check_shape(entry.shape, "A policy's tensor")
        check_number(entry.offset, "A tensor's offset", least=0, most=SIZE_MAX)
        check_number(entry.size, "A tensor's size", least=0, most=SIZE_MAX)
    if not is_time(message.published_at_s) or not is_trace_parent(message.trace_parent):
        raise RecordError("A policy announcement has a time or trace context that cannot be exported")
