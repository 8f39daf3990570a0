"""Announcements as they arrive and leave: from the wire's message to a manifest, and to the body on POLICY."""

from tidegate.weight_distribution.state import Manifest, Tensor
from tidegate.wire.announcement import Announcement


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


def policy_body(announcement: bytes, *, inline_payload: bytes | None) -> bytes:
    """The body of a POLICY message: the announcement, with its tensors when they travel inline."""
    if inline_payload is None:
        return announcement
    message = Announcement.from_bytes(announcement).message
    message.inline_payload = inline_payload
    return message.SerializeToString()
