"""The policies of an actor: pulled, checked against its engine, and served; or pulled for an evaluation alone."""

import asyncio
from typing import Protocol

from tidegate.actor.rollouts.served_policy import ServedPolicy
from tidegate.catalogue import actor as statistics
from tidegate.core.errors import RecordError, UnavailableError
from tidegate.core.records import PolicySnapshot
from tidegate.core.staleness import LineageTree
from tidegate.models.model_folder import base_digest
from tidegate.runtime.config import PolicyConfig
from tidegate.runtime.policy_follower import FollowerStatistics, PolicyFollower, PolicyPull
from tidegate.runtime.policy_watch import PolicyWatch
from tidegate.runtime.service import ServiceContext
from tidegate.wire.announcement import Announcement

# A larger policy is checked in a thread: 4 ms beside the event loop's 100.
CHECKED_IN_LOOP_BYTES = 16 << 20
STATISTICS = FollowerStatistics(
    refused=statistics.POLICIES_REFUSED,
    retries=statistics.PULL_RETRIES,
    pull_ms=statistics.WEIGHT_PULL_MS,
    step=statistics.SERVING_STEP,
    version=statistics.SERVING_VERSION,
)


class ChecksPolicy(Protocol):
    """The part of an engine that checks policies, in the event loop or in a thread of its own."""

    def check_policy(self, snapshot: PolicySnapshot) -> None:
        """Check that the engine can serve a policy.

        Raises:
            RecordError: it cannot.
        """
        ...


class ActorPolicies:
    """An actor as the user of policies (``runtime.policy_follower``)."""

    def __init__(self, policy: PolicyConfig, served_policy: ServedPolicy, engine: ChecksPolicy) -> None:
        self._policy = policy
        self._served_policy = served_policy
        self._engine = engine
        self._base_digest: str | None = None

    async def check(self, announcement: Announcement) -> None:
        """Check that adapters belong to this actor's model; their shapes alone also fit other models of its size.

        Raises:
            RecordError: they belong to another model.
        """
        if self._base_digest is None:
            policy = self._policy
            # Reads the whole folder, once per process.
            self._base_digest = await asyncio.to_thread(
                base_digest, policy.kind, path=policy.path, lora_rank=policy.lora.rank
            )
        theirs = announcement.message.base_digest
        if theirs != self._base_digest:
            raise RecordError(
                f"Policy {announcement.version} has adapters of the model {theirs or 'none'!r},"
                f" and this actor's are of {self._base_digest or 'none'!r}",
                why="the learner's policy.path holds another config or other safetensors, or its policy.lora differs",
                fix="give both the same folder (`tidegate model` prints its digest) and restart the wrong one",
            )

    async def prepare(self, snapshot: PolicySnapshot) -> None:
        """See ``Engine.check_policy``."""
        await _check(self._engine, snapshot)

    def serve(self, snapshot: PolicySnapshot, tree: LineageTree, *, now_s: float) -> None:
        """Offer it to the engine."""
        self._served_policy.offer(snapshot, tree, now_s=now_s)


def policy_follower(
    context: ServiceContext,
    watch: PolicyWatch,
    served_policy: ServedPolicy,
    engine: ChecksPolicy,
    *,
    attempts: int,
) -> PolicyFollower:
    """The loop that brings each new version to an actor's engine. ``attempts``: as ``actor.pull_attempts``."""
    policies = ActorPolicies(context.settings.policy, served_policy, engine)
    return PolicyFollower(context, watch, policies, STATISTICS, attempts=attempts)


class HeadPolicy:
    """The newest announced policy for an actor that holds none: pulled when an evaluation needs it."""

    def __init__(
        self, context: ServiceContext, watch: PolicyWatch, engine: ChecksPolicy, *, attempts: int
    ) -> None:
        """``attempts``: as ``actor.pull_attempts``."""
        self._watch = watch
        self._engine = engine
        self._pull = PolicyPull(context, watch, STATISTICS, attempts=attempts)

    async def newest(self) -> PolicySnapshot:
        """The newest policy.

        Raises:
            UnavailableError: there is none, or a newer one came while it was pulled.
            TidegateError: it does not fit, or all attempts failed.
        """
        head = self._watch.head
        if head is None:
            raise UnavailableError(
                "There is no policy to evaluate yet", why="none was announced, or POLICY could not be read"
            )
        snapshot = await self._pull.bring(head)
        if snapshot is None:
            raise UnavailableError("The newest policy could not be pulled", why="it was replaced meanwhile")
        await _check(self._engine, snapshot)
        self._pull.keep(snapshot, head)
        return snapshot


async def _check(engine: ChecksPolicy, snapshot: PolicySnapshot) -> None:
    """Check a policy; beside the event loop if that takes long."""
    if sum(tensor.nbytes for tensor in snapshot.tensors.values()) > CHECKED_IN_LOOP_BYTES:
        await asyncio.to_thread(engine.check_policy, snapshot)
    else:
        engine.check_policy(snapshot)
