"""Leader election: only the holder of a renewed Lease acts on the cluster. The chart makes the Lease, without a holder.

The rules are those of client-go's leader election. Clocks of other machines are never compared with ours: a holder
counts as lost when its Lease did not change for its declared duration, on our monotonic clock since we observed the
last change.
"""

from datetime import UTC, datetime

import msgspec

from tidegate.admission.kubernetes.access import Access
from tidegate.admission.kubernetes.objects import LeaseObject, LeaseSpec
from tidegate.core.errors import ConflictError
from tidegate.runtime.kubernetes_api import Api

# Share of the Lease's duration in which a leader may act without renewing; the rest covers requests in flight.
ACT_SHARE = 0.6


class ObservedLease(msgspec.Struct, frozen=True):
    """A Lease and the monotonic time at which its last change was observed."""

    spec: LeaseSpec
    at_s: float


def may_take(seen: ObservedLease, *, identity: str, now_s: float) -> bool:
    """Whether a Lease is ours, free, or held by an instance that did not renew it for its duration."""
    spec = seen.spec
    if spec.holder_identity in ("", identity):
        return True
    return now_s - seen.at_s > spec.lease_duration_seconds


class Election:
    """Renews the Lease, or waits for it; ``leads`` turns false by itself when renewing fails for too long."""

    def __init__(self, api: Api, access: Access, *, lease_s: int) -> None:
        self._api, self._access, self._lease_s = api, access, lease_s
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{access.namespace}/leases/{access.lease}"
        self._seen: ObservedLease | None = None
        self._renewed_at_s: float | None = None

    def leads(self, *, now_s: float) -> bool:
        """Whether we may act on the cluster at this moment."""
        return self._renewed_at_s is not None and now_s - self._renewed_at_s <= ACT_SHARE * self._lease_s

    @property
    def other(self) -> str:
        """Another instance that held the Lease when it was read last; empty for none."""
        holder = self._seen.spec.holder_identity if self._seen is not None else ""
        return "" if holder == self._access.identity else holder

    async def renew(self, *, now_s: float, wall_s: float) -> bool:
        """Renew the Lease, or take it if allowed; returns whether we lead.

        Raises:
            NotFoundError: the Lease was deleted; an upgrade of the release creates it again.
            TidegateError: the API server did not answer; we lead until ``ACT_SHARE`` of the Lease is over.
        """
        lease = await self._api.get(self._path, LeaseObject)
        if self._seen is None or self._seen.spec != lease.spec:
            self._seen = ObservedLease(lease.spec, now_s)
        if not may_take(self._seen, identity=self._access.identity, now_s=now_s):
            self._renewed_at_s = None
            return False
        return await self._write(lease, now_s=now_s, wall_s=wall_s)

    async def release(self, *, wall_s: float) -> None:
        """Release the Lease, so that another instance can take it immediately.

        Raises:
            TidegateError: the API server did not answer; the Lease expires by itself.
        """
        if self._renewed_at_s is None:
            return
        self._renewed_at_s = None
        lease = await self._api.get(self._path, LeaseObject)
        if lease.spec.holder_identity == self._access.identity:
            spec = msgspec.structs.replace(lease.spec, holder_identity="", lease_duration_seconds=1)
            await self._api.replace(self._path, msgspec.structs.replace(lease, spec=spec), LeaseObject)

    async def _write(self, lease: LeaseObject, *, now_s: float, wall_s: float) -> bool:
        time, mine = _micro_time(wall_s), lease.spec.holder_identity == self._access.identity
        spec = LeaseSpec(
            holder_identity=self._access.identity,
            lease_duration_seconds=self._lease_s,
            acquire_time=lease.spec.acquire_time if mine else time,
            renew_time=time,
            lease_transitions=lease.spec.lease_transitions + (0 if mine else 1),
        )
        try:
            written = await self._api.replace(
                self._path, msgspec.structs.replace(lease, spec=spec), LeaseObject
            )
        except ConflictError:
            self._renewed_at_s = None  # another instance took it between our read and our write
            return False
        self._seen, self._renewed_at_s = ObservedLease(written.spec, now_s), now_s
        return True


def _micro_time(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
