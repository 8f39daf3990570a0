"""Announcements as they arrive and leave: from the wire's message to a manifest, and to the body on POLICY."""

from tidegate.core.errors import RecordError
from tidegate.weight_distribution.state import Manifest, Tensor
from tidegate.wire.announcement import Announcement
from tidegate.wire.subjects import KIB, MESSAGE_BYTES_MAX

# Of a message with its headers: the manifest and the lineages of the run.
ANNOUNCEMENT_BYTES_MAX = MESSAGE_BYTES_MAX - 4 * KIB


def manifest_of(announcement: Announcement) -> Manifest:
    """What decisions need of an announcement."""
    message = announcement.message
    return Manifest(
        version=announcement.version,
        tree=announcement.tree,
        tensors=tuple(
            Tensor(
                name=entry.name,
                dtype=entry.dtype,
                shape=tuple(entry.shape),
                offset=entry.offset,
                size=entry.size,
                digest=entry.digest,
            )
            for entry in message.tensors
        ),
        payload_size=message.payload_size,
        digest=message.digest,
    )


def check_announcement(manifest: Manifest, announcement: bytes) -> None:
    """Refuse, before its tensors are sent, a version that no message can announce.

    Raises:
        RecordError: it has too many tensors.
    """
    if len(announcement) > ANNOUNCEMENT_BYTES_MAX:
        raise RecordError(
            f"Policy {manifest.version} has {len(manifest.tensors):,} tensors, whose names and digests take"
            f" {len(announcement):,} bytes",
            why=f"it is announced in one message of at most {ANNOUNCEMENT_BYTES_MAX:,} bytes",
            fix="train adapters (policy.lora.rank), or a model whose experts are one tensor a layer",
        )


def policy_body(announcement: bytes, *, inline_payload: bytes | None) -> bytes:
    """The body of a POLICY message: the announcement, with its tensors when they travel inline and fit."""
    if inline_payload is None or len(announcement) + len(inline_payload) > ANNOUNCEMENT_BYTES_MAX:
        return announcement
    message = Announcement.from_bytes(announcement).message
    message.inline_payload = inline_payload
    return message.SerializeToString()
