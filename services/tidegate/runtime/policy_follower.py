"""Following the newest policy: each announced version is pulled, verified, checked and then served.

The newest policy is a level, not a queue: a version that is superseded before its tensors arrived is never loaded.
Tensors are known by their digests, so only changed tensors travel and an interrupted pull resumes where it stopped. A
policy is served once all of its tensors are verified.
"""

from collections.abc import Iterator
from typing import Protocol, TypeAlias

import msgspec

from tidegate.catalogue.kinds import Counter, Gauge, Text
from tidegate.catalogue.telemetry import (
    ATTR_VERSION,
    METRIC_WEIGHTS_LOAD,
    METRIC_WEIGHTS_PROPAGATION,
    SPAN_WEIGHTS_LOAD,
)
from tidegate.core.errors import CorruptionError, NotFoundError, TidegateError
from tidegate.core.ids import PolicyVersion
from tidegate.core.records import Array, PolicySnapshot
from tidegate.core.staleness import LineageTree
from tidegate.runtime.policy_watch import PolicyWatch
from tidegate.runtime.retrying import Backoff, DrainingError, FailedAttempt, StopWhenDraining, retry
from tidegate.runtime.service import ServiceContext
from tidegate.wire.announcement import Announcement
from tidegate.wire.clients.weight_distribution import WeightDistributionClient

# Bytes of tensors per call; complete tensors survive a later connection failure.
PIECE_BYTES = 16 * 1024 * 1024
BACKOFF = Backoff(start_s=0.05, max_s=2.0)
# Maximum delay until a drain is noticed; an announcement ends the wait immediately.
HEAD_WAIT_S = 0.25

_Content: TypeAlias = tuple[bytes, str, tuple[int, ...]]


class FollowerStatistics(msgspec.Struct, frozen=True):
    """The statistics of a follower, as its service declares them.

    ``refused``: versions that could not be loaded. ``retries``: repeated pulls. ``pull_ms``: time to load the newest
    version. ``step`` and ``version``: what is served.
    """

    refused: Counter
    retries: Counter
    pull_ms: Gauge
    step: Gauge
    version: Text


class ServesPolicies(Protocol):
    """The user of a follower's policies."""

    async def check(self, announcement: Announcement) -> None:
        """Whether an announced version may be pulled.

        Raises:
            TidegateError: it belongs to another model.
        """
        ...

    async def prepare(self, snapshot: PolicySnapshot) -> None:
        """Whether a pulled policy can be served; may prepare what it needs.

        Raises:
            TidegateError: it cannot.
        """
        ...

    def serve(self, snapshot: PolicySnapshot, tree: LineageTree, *, now_s: float) -> None:
        """Serve a prepared policy from now on."""
        ...


class PolicyPull:
    """Pulls announced policies; what two versions share travels once."""

    def __init__(
        self, context: ServiceContext, watch: PolicyWatch, statistics: FollowerStatistics, *, attempts: int
    ) -> None:
        """``attempts``: attempts at one version before checking for a newer one."""
        self._context = context
        self._watch = watch
        self._statistics = statistics
        self._attempts = attempts
        self._client = WeightDistributionClient(context.channel("weight_distribution"))
        # Verified tensors by content: those of the version that is kept, and of the newest pull.
        self._known: dict[_Content, Array] = {}
        self._kept = frozenset[_Content]()

    async def bring(self, announcement: Announcement) -> PolicySnapshot | None:
        """The announced policy; None when a newer one was announced meanwhile, or the service drains.

        Raises:
            TidegateError: all attempts failed.
        """
        inline = announcement.inline_snapshot()
        return inline if inline is not None else await self._pull(announcement)

    def keep(self, snapshot: PolicySnapshot, announcement: Announcement) -> None:
        """Keep this version's tensors for the next pull, and no others."""
        self._known = {content: snapshot.tensors[name] for name, content in _contents(announcement).items()}
        self._kept = frozenset(self._known)

    async def _pull(self, announcement: Announcement) -> PolicySnapshot | None:
        context = self._context

        def note(failed: FailedAttempt) -> None:
            context.log.warning(
                "policy_pull_failed",
                version=str(announcement.version),
                attempt=failed.number,
                error=str(failed.error),
            )

        try:
            return await retry(
                lambda: self._pull_pieces(announcement),
                BACKOFF,
                attempts=self._attempts,
                draining=StopWhenDraining(context.drain),
                is_retryable=lambda error: _may_pass(error) and self._is_newest(announcement),
                on_retry=note,
            )
        except DrainingError:
            return None
        except TidegateError as error:
            if _may_pass(error) and not self._is_newest(announcement):
                return None
            raise

    def _is_newest(self, announcement: Announcement) -> bool:
        head = self._watch.head
        return head is None or head.version == announcement.version

    async def _pull_pieces(self, announcement: Announcement) -> PolicySnapshot:
        contents = _contents(announcement)
        # Without what earlier pulls left of versions that were refused or replaced: each may be a whole policy.
        wanted = self._kept.union(contents.values())
        self._known = {content: tensor for content, tensor in self._known.items() if content in wanted}
        try:
            for names in _pieces(announcement, known=set(self._known)):
                for name, tensor in (await self._client.pull(announcement, names)).items():
                    self._known[contents[name]] = tensor
        except TidegateError:
            self._context.stats.add(self._statistics.retries)
            raise
        return announcement.snapshot({name: self._known[content] for name, content in contents.items()})


class PolicyFollower:
    """Brings each newly announced policy to its user. Waits for an announcement; the learner unblocks it."""

    def __init__(
        self,
        context: ServiceContext,
        watch: PolicyWatch,
        user: ServesPolicies,
        statistics: FollowerStatistics,
        *,
        attempts: int,
    ) -> None:
        """``attempts``: as of ``PolicyPull``."""
        self._context = context
        self._watch = watch
        self._user = user
        self._statistics = statistics
        self._pull = PolicyPull(context, watch, statistics, attempts=attempts)
        # The last version that was served or refused; it is not retried.
        self._seen: PolicyVersion | None = None

    async def run(self) -> None:
        """Serve each new version until draining."""
        context = self._context
        while not context.drain.requested:
            announcement = await self._watch.changed(self._seen, timeout_s=HEAD_WAIT_S)
            if announcement is None:
                continue
            started_at_s = context.clock.now_s()
            try:
                snapshot = await self._bring(announcement)
            except TidegateError as error:
                # Keep serving the previous policy. All retries failed: read the head again.
                context.stats.add(self._statistics.refused)
                context.log.warning("policy_refused", version=str(announcement.version), error=str(error))
                if _may_pass(error):
                    await context.drain.sleep(BACKOFF.max_s)
                else:
                    self._seen = announcement.version
                continue
            if snapshot is not None:
                self._take(snapshot, announcement, started_at_s=started_at_s)

    async def _bring(self, announcement: Announcement) -> PolicySnapshot | None:
        await self._user.check(announcement)
        snapshot = await self._pull.bring(announcement)
        if snapshot is not None:
            await self._user.prepare(snapshot)
        return snapshot

    def _take(self, snapshot: PolicySnapshot, announcement: Announcement, *, started_at_s: float) -> None:
        context, statistics = self._context, self._statistics
        now_s = context.clock.now_s()
        self._seen = snapshot.version
        self._pull.keep(snapshot, announcement)
        self._user.serve(snapshot, announcement.tree, now_s=now_s)
        context.stats.set(statistics.pull_ms, 1e3 * (now_s - started_at_s))
        context.stats.set(statistics.step, snapshot.version.step)
        context.stats.label(statistics.version, str(snapshot.version))
        telemetry = context.telemetry
        if telemetry.enabled:
            telemetry.observe(METRIC_WEIGHTS_LOAD, now_s - started_at_s)
            telemetry.observe(METRIC_WEIGHTS_PROPAGATION, max(0.0, now_s - snapshot.published_at_s))
            telemetry.emit(
                SPAN_WEIGHTS_LOAD,
                parent=announcement.message.trace_parent,
                started_at_s=started_at_s,
                finished_at_s=now_s,
                attributes={ATTR_VERSION: str(snapshot.version)},
                kind="consumer",
            )


def _may_pass(error: TidegateError) -> bool:
    """Whether a failed pull may succeed later: the peer was unavailable, or bytes were corrupted in transit."""
    return error.retryable or isinstance(error, CorruptionError | NotFoundError)


def _contents(announcement: Announcement) -> dict[str, _Content]:
    """Each tensor's content by name. The shape is part of the content, because fresh biases of any shape are zeros."""
    return {
        entry.name: (entry.digest, entry.dtype, tuple(entry.shape)) for entry in announcement.message.tensors
    }


def _pieces(announcement: Announcement, *, known: set[_Content]) -> Iterator[set[str]]:
    """Names of the tensors that are not ``known``, in manifest order, in pieces of about ``PIECE_BYTES``."""
    contents = _contents(announcement)
    piece: set[str] = set()
    size = 0
    for entry in announcement.message.tensors:
        if contents[entry.name] in known:
            continue
        piece.add(entry.name)
        size += entry.size
        if size >= PIECE_BYTES:
            yield piece
            piece, size = set[str](), 0
    if piece:
        yield piece
