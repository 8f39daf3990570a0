"""The one writer of POLICY: announces a version by compare-and-set, so that two writers cannot both win.

The subject's last sequence is what the compare is against. It is learnt by get-last, and read again whenever a
compare is lost; the announcement found then decides (``state.decide_publish``). A message that is no announcement of
this run announces nothing: it goes to QUARANTINE once, and the next version is announced behind it.
"""

from collections.abc import Mapping
from typing import Protocol

from tidegate.core.errors import ConflictError, RecordError, UnavailableError
from tidegate.core.staleness import LineageTree
from tidegate.runtime.bus import Published, Stored
from tidegate.weight_distribution.announced import manifest_of, policy_body
from tidegate.weight_distribution.state import (
    Accept,
    Manifest,
    Refuse,
    Repeat,
    decide_publish,
    is_of_another_run,
)
from tidegate.weight_distribution.versions import StoredVersion
from tidegate.wire.announcement import Announcement
from tidegate.wire.subjects import HEADER_TRACE_PARENT, Topology

# A compare is lost only to another writer, whose write then decides: more rounds mean two competing writers.
ATTEMPTS_MAX = 4
SOURCE = "weight_distribution"


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

    async def quarantine(
        self, source: str, data: bytes, *, reason: str, headers: Mapping[str, str] | None = None
    ) -> None:
        """Keep a refused message for inspection."""
        ...


class Announcer:
    """Announces versions of one model. Not for concurrent calls: its owner holds a lock."""

    def __init__(self, bus: PolicyStream, topology: Topology, *, model: str) -> None:
        self._bus = bus
        self._stream = topology.stream("POLICY")
        self._subject = topology.policy(model)
        self._sequence: int | None = None
        self._quarantined_sequence: int | None = None
        self.announced: Manifest | None = None
        self.quarantined_total = 0

    async def refresh(self, *, own: LineageTree | None = None) -> Manifest | None:
        """Read what POLICY holds now; None when that is no announcement of this run.

        ``own``: the lineages of the newest version here, None without one.

        Raises:
            UnavailableError: the broker did not answer.
            BackpressureError: QUARANTINE takes nothing now.
        """
        last = await self._bus.last(self._stream, self._subject)
        self._sequence, self.announced = (0 if last is None else last.sequence), None
        if last is None:
            return None
        try:
            found = _announced(last.data, own=own)
        except RecordError as error:
            await self._quarantine(last, reason=str(error))
            return None
        self.announced = found
        return found

    async def _quarantine(self, message: Stored, *, reason: str) -> None:
        if message.sequence == self._quarantined_sequence:
            return
        await self._bus.quarantine(SOURCE, message.data, reason=reason)
        self._quarantined_sequence = message.sequence
        self.quarantined_total += 1

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
                await self.refresh(own=manifest.tree)
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
                    # With what it follows: the broker knows ids for two minutes, and a version that is announced
                    # again behind an unreadable message is no duplicate.
                    message_id=f"{manifest.version}-{manifest.digest.hex()}-{self._sequence}",
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


def _announced(data: bytes, *, own: LineageTree | None) -> Manifest:
    found = manifest_of(Announcement.from_bytes(data))
    if own is not None and is_of_another_run(found.tree, own=own):
        raise RecordError(
            f"POLICY holds {found.version}, of another run",
            why="it shares no lineage with the versions here",
        )
    return found
