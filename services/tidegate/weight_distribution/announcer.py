"""The one writer of POLICY: announces a version by compare-and-set, so that two writers cannot both win.

The subject's last sequence is what the compare is against. It is learnt by get-last, and read again whenever a
compare is lost; the announcement found then decides (``state.decide_publish``).
"""

from collections.abc import Mapping
from typing import Protocol

from tidegate.core.errors import ConflictError, UnavailableError
from tidegate.runtime.bus import Published, Stored
from tidegate.weight_distribution.announced import manifest_of, policy_body
from tidegate.weight_distribution.state import Accept, Manifest, Refuse, Repeat, decide_publish
from tidegate.weight_distribution.versions import StoredVersion
from tidegate.wire.announcement import Announcement
from tidegate.wire.subjects import HEADER_TRACE_PARENT, Topology

# A compare is lost only to another writer, whose write then decides: more rounds mean two competing writers.
ATTEMPTS_MAX = 4


class PolicyStream(Protocol):
    """The part of the bus that announcing needs."""

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
        """Store a message, or fail when the subject moved past ``expected_last_sequence``."""
        ...

    async def last(self, stream: str, subject: str) -> Stored | None:
        """The newest message of a subject."""
        ...


class Announcer:
    """Announces versions of one model. Not for concurrent calls: its owner holds a lock."""

    def __init__(self, bus: PolicyStream, topology: Topology, *, model: str) -> None:
        self._bus = bus
        self._stream = topology.stream("POLICY")
        self._subject = topology.policy(model)
        self._sequence: int | None = None
        self.announced: Manifest | None = None

    async def refresh(self) -> Manifest | None:
        """Read what POLICY holds now.

        Raises:
            UnavailableError: the broker did not answer.
            RecordError: the message found is no announcement.
        """
        last = await self._bus.last(self._stream, self._subject)
        self._sequence = 0 if last is None else last.sequence
        self.announced = None if last is None else manifest_of(Announcement.from_bytes(last.data))
        return self.announced

    async def announce(self, stored: StoredVersion, *, inline_payload: bytes | None) -> None:
        """Make ``stored`` the newest announcement; announcing it again changes nothing.

        Raises:
            ConflictError: POLICY holds a version that this one cannot follow.
            UnavailableError: the broker did not answer; whether it was announced is unknown, so repeat it.
        """
        manifest = stored.manifest
        body = policy_body(stored.announcement, inline_payload=inline_payload)
        trace_parent = Announcement.from_bytes(stored.announcement).message.trace_parent
        for _ in range(ATTEMPTS_MAX):
            if self._sequence is None:
                await self.refresh()
            match decide_publish(manifest, head=self.announced):
                case Repeat():
                    return
                case Refuse(what, why):
                    raise ConflictError(what, why=why, fix="stop the learner that was started first")
                case Accept():
                    pass
            try:
                published = await self._bus.publish(
                    self._subject,
                    body,
                    message_id=f"{manifest.version}-{manifest.digest.hex()}",
                    headers={HEADER_TRACE_PARENT: trace_parent} if trace_parent else None,
                    expected_last_sequence=self._sequence,
                )
            except ConflictError:
                self._sequence = None
                continue
            except UnavailableError:
                self._sequence = None  # it may have been stored all the same
                raise
            self.announced = manifest
            # A duplicate names the sequence of its first copy, which need not be the last of the subject.
            self._sequence = None if published.duplicate else published.sequence
            return
        raise UnavailableError(
            f"Policy {manifest.version} lost {ATTEMPTS_MAX} compares on {self._subject}",
            why="another process writes announcements at the same time",
        )
