"""The life of a published version: taken in, announced, pruned; and the loop that keeps POLICY true to the disk."""

import asyncio

from tidegate.catalogue import weight_distribution as statistics
from tidegate.core.errors import BackpressureError, ConflictError, TidegateError
from tidegate.core.ids import PolicyVersion
from tidegate.runtime.service import ServiceContext
from tidegate.weight_distribution.announced import check_announcement
from tidegate.weight_distribution.announcer import Announcer
from tidegate.weight_distribution.best import held_version
from tidegate.weight_distribution.config import WeightDistributionConfig
from tidegate.weight_distribution.intake import Intake
from tidegate.weight_distribution.state import Accept, Decision, Manifest, Refuse, Repeat, decide_publish
from tidegate.weight_distribution.versions import StoredVersion, VersionStore

# Two learners may run for a moment; a third sender waits. A publish that ends frees its slot.
INTAKES_MAX = 2
FIX_TWO_LEARNERS = "stop the learner that was started first"


class Distribution:
    """Owns the versions and their announcements; the servicer and the loop both act through it."""

    def __init__(self, context: ServiceContext, config: WeightDistributionConfig) -> None:
        self._context = context
        self._config = config
        self.versions = VersionStore(
            context.data_dir / "versions",
            keep_versions=config.keep_versions,
            held=held_version(context.data_dir),
        )
        self._announcer = Announcer(context.bus, context.topology, model="default")
        self._writing = asyncio.Lock()
        self._num_intakes = 0

    def decide(self, manifest: Manifest) -> Decision:
        """Whether a version may be published, as far as the disk knows."""
        head = self.versions.head
        return decide_publish(manifest, head=head.manifest if head else None, kept=self.versions.kept())

    def begin(self, manifest: Manifest, announcement: bytes) -> Intake | None:
        """Start to take a version in; None when it is here already. The caller owes ``publish`` or ``abort``.

        Raises:
            BackpressureError: too many publishes at once.
            ConflictError: the version cannot follow the head.
            RecordError: the manifest is impossible, or no message can announce it.
        """
        check_announcement(manifest, announcement)
        match self.decide(manifest):
            case Repeat():
                return None
            case Refuse(what, why):
                raise ConflictError(what, why=why, fix=FIX_TWO_LEARNERS)
            case Accept():
                pass
        if self._num_intakes >= INTAKES_MAX:
            raise BackpressureError(
                f"{self._num_intakes} versions are being published at once", fix="publish again in a moment"
            )
        intake = self.versions.begin(manifest, announcement)
        self._num_intakes += 1
        return intake

    def abort(self, intake: Intake) -> None:
        """Give the place and the file of an intake back; after ``publish`` its file stays."""
        self._num_intakes -= 1
        intake.abort()

    async def publish(self, intake: Intake, *, inline_payload: bytes | None) -> None:
        """Write, announce, prune.

        Raises:
            ConflictError: another learner was faster.
            CorruptionError: the payload does not match its digests.
            UnavailableError: the broker is away; the version is kept, and a repetition announces it.
        """
        async with self._writing:
            match self.decide(intake.manifest):
                case Refuse(what, why):
                    raise ConflictError(what, why=why, fix=FIX_TWO_LEARNERS)
                case Repeat():
                    stored = self.versions.get(intake.manifest.version)
                case Accept():
                    stored = self.versions.commit(intake)
            await self._announce(stored, inline_payload)
            self.versions.prune()
            self._show_head()

    async def repeat(self, version: PolicyVersion) -> None:
        """A version that is here was published again: see to it that it is announced.

        Raises:
            UnavailableError: the broker is away.
        """
        async with self._writing:
            stored = self.versions.get(version)
            if stored is self.versions.head:
                await self._announce(stored, self._inline(stored))

    async def reconcile(self) -> None:
        """Announce the newest version again if POLICY does not hold it (a lost stream, a crash before announcing).

        A newer announcement than anything on disk is left alone: its learner publishes it again on request.
        """
        async with self._writing:
            head = self.versions.head
            announced = await self._announcer.refresh(own=head.manifest.tree if head else None)
            self._context.stats.set(statistics.QUARANTINED, self._announcer.quarantined_total)
            if head is None or (announced is not None and announced.version == head.manifest.version):
                return
            if isinstance(decide_publish(head.manifest, head=announced), Accept):
                await self._announce(head, self._inline(head))
                self._context.log.info("policy_announced_again", version=str(head.manifest.version))
                self._context.stats.add(statistics.REANNOUNCED)

    async def follow(self) -> None:
        """The loop: compare POLICY with the disk, now and every ``reconcile_period_s``."""
        for problem in self.versions.problems:
            self._context.log.warning("policy_version_lost", problem=problem)
        self._show_head()
        while True:
            try:
                await self.reconcile()
            except ConflictError as error:
                self._context.log.warning("policy_superseded", error=str(error))
            except TidegateError as error:
                if not error.retryable:
                    raise
                self._context.log.warning("policy_reconcile_failed", error=str(error))
            if await self._context.drain.sleep(self._config.reconcile_period_s):
                return

    def _inline(self, stored: StoredVersion) -> bytes | None:
        if stored.manifest.payload_size > self._config.inline_bytes_max:
            return None
        return self.versions.payload(stored.manifest.version)

    async def _announce(self, stored: StoredVersion, inline_payload: bytes | None) -> None:
        try:
            await self._announcer.announce(stored, inline_payload=inline_payload)
        except ConflictError:
            self.versions.discard(stored.manifest.version)
            raise

    def _show_head(self) -> None:
        head = self.versions.head
        stats = self._context.stats
        if head is not None:
            stats.set(statistics.HEAD_STEP, head.manifest.version.step)
            stats.label(statistics.HEAD, str(head.manifest.version))
        stats.set(statistics.KEPT_VERSIONS, len(self.versions.kept()))
        stats.set(statistics.DISK_BYTES, self.versions.disk_bytes())
