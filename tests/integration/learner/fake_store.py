"""A trajectory store in memory that speaks the real protocol, and fails on demand."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate.core.errors import ConflictError, PermissionDeniedError, TidegateError, UnavailableError
from tidegate.core.ids import PolicyVersion
from tidegate.core.records import Trajectory
from tidegate.core.replay import OPEN_END, surviving_steps
from tidegate.core.staleness import Lineage, LineageTree
from tidegate.runtime.rpc import Registration
from tidegate.v1 import trajectory_store_service_pb2 as pb
from tidegate.v1.trajectory_store_service_pb2_grpc import add_TrajectoryStoreServiceServicer_to_server
from tidegate.wire.chunks import chunk_serializer
from tidegate.wire.clients.trajectory_store import UPDATE_CHUNK_FIELD
from tidegate.wire.convert import lineage_from_proto, tree_to_proto, version_from_proto, version_to_proto
from tidegate.wire.frame import encode_frame


@dataclass
class Lease:
    """A leased batch."""

    batch_id: str
    version: PolicyVersion
    trajectories: list[Trajectory]


@dataclass
class Commit:
    """A batch that was committed: at which version, with which lags."""

    batch_id: str
    version: PolicyVersion
    lags: dict[str, int]
    trajectories: list[Trajectory]


@dataclass
class FakeStore:
    """``failures``: how many of a method's next calls fail, with ``failure``.

    ``lost_answers``: how many act without an answer. ``keeps_payloads``: of committed batches, so that
    their updates can be recomputed. ``refused``: methods that are answered with PERMISSION_DENIED.
    """

    batch_size: int
    tree: LineageTree = field(default_factory=LineageTree)
    available: list[Trajectory] = field(default_factory=list[Trajectory])
    leases: dict[str, Lease] = field(default_factory=dict[str, Lease])
    num_leases_max: int = 0
    commits: list[Commit] = field(default_factory=list[Commit])
    releases: list[tuple[str, dict[str, str]]] = field(default_factory=list[tuple[str, dict[str, str]]])
    opened: list[Lineage] = field(default_factory=list[Lineage])
    consumed: list[tuple[str, PolicyVersion]] = field(default_factory=list[tuple[str, PolicyVersion]])
    checkpointed: list[PolicyVersion] = field(default_factory=list[PolicyVersion])
    failures: Counter[str] = field(default_factory=Counter[str])
    failure: type[TidegateError] = UnavailableError
    lost_answers: Counter[str] = field(default_factory=Counter[str])
    calls: Counter[str] = field(default_factory=Counter[str])
    renewed: Counter[str] = field(default_factory=Counter[str])
    lease_timeout_s: float = 60.0
    keeps_payloads: bool = False
    refused: set[str] = field(default_factory=set[str])

    def registration(self) -> Registration:
        return Registration(
            add=add_TrajectoryStoreServiceServicer_to_server,
            servicer=self,
            name="tidegate.v1.TrajectoryStoreService",
            raw_responses={
                "LeaseBatch": chunk_serializer(4),
                "ReadUpdate": chunk_serializer(UPDATE_CHUNK_FIELD),
            },
        )

    @property
    def head_lineage(self) -> Lineage:
        return self.opened[-1]

    def offer(self, trajectories: Sequence[Trajectory]) -> None:
        self.available.extend(trajectories)

    def _enter(self, method: str) -> None:
        self.calls[method] += 1
        if method in self.refused:
            raise PermissionDeniedError(f"{method} is refused")
        if self.failures[method] > 0:
            self.failures[method] -= 1
            raise self.failure(f"{method} is unreachable")

    def _leave(self, method: str) -> None:
        if self.lost_answers[method] > 0:
            self.lost_answers[method] -= 1
            raise UnavailableError(f"the answer of {method} is lost")

    def _check_open(self, version: PolicyVersion) -> None:
        if version.lineage != self.head_lineage.name:
            raise ConflictError(f"Lineage {version.lineage} is closed")

    async def OpenLineage(self, request: pb.OpenLineageRequest, context: Any) -> pb.OpenLineageResponse:
        self._enter("OpenLineage")
        lineage = lineage_from_proto(request.lineage)
        self.tree = self.tree.add(lineage)
        if lineage not in self.opened:
            self.opened.append(lineage)
        self.consumed.extend(
            (batch.batch_id, version_from_proto(batch.version)) for batch in request.consumed
        )
        trained = {batch.batch_id for batch in request.consumed}
        for lease in self.leases.values():
            if lease.batch_id not in trained:
                self.available.extend(lease.trajectories)
        self.leases.clear()
        self._leave("OpenLineage")
        return pb.OpenLineageResponse(lineages=tree_to_proto(self.tree))

    async def LeaseBatch(self, request: pb.LeaseBatchRequest, context: Any) -> AsyncIterator[Any]:
        self._enter("LeaseBatch")
        version = version_from_proto(request.version)
        self._check_open(version)
        lease = next((lease for lease in self.leases.values() if lease.version == version), None)
        deadline_s = asyncio.get_running_loop().time() + request.max_wait_s
        while lease is None:
            if len(self.available) >= self.batch_size:
                taken, self.available = self.available[: self.batch_size], self.available[self.batch_size :]
                batch_id = f"{version}#{self.calls['LeaseBatch']}"
                lease = self.leases[batch_id] = Lease(batch_id, version, taken)
                self.num_leases_max = max(self.num_leases_max, len(self.leases))
            elif asyncio.get_running_loop().time() > deadline_s:
                yield pb.LeaseBatchResponse()
                return
            else:
                await asyncio.sleep(0.005)
        self._leave("LeaseBatch")
        frames = [encode_frame([trajectory]) for trajectory in lease.trajectories]
        yield pb.LeaseBatchResponse(
            batch_id=lease.batch_id,
            frame_sizes=[len(frame) for frame in frames],
            trajectory_ids=[trajectory.trajectory_id for trajectory in lease.trajectories],
            ages_s=[time.time() - trajectory.started_at_s for trajectory in lease.trajectories],
        )
        yield memoryview(b"".join(frames))

    async def ReadUpdate(self, request: pb.ReadUpdateRequest, context: Any) -> AsyncIterator[Any]:
        self._enter("ReadUpdate")
        asked = version_from_proto(request.version)
        found = [
            commit
            for commit in self.commits
            if commit.version.step == asked.step and self._survives(commit.version)
        ]
        if not found or not self.keeps_payloads:
            yield pb.ReadUpdateResponse()
            return
        (commit,) = found
        # In another order than it was trained in.
        trajectories = commit.trajectories[::-1]
        frames = [encode_frame([trajectory]) for trajectory in trajectories]
        yield pb.ReadUpdateResponse(
            version=version_to_proto(commit.version),
            frame_sizes=[len(frame) for frame in frames],
            trajectory_ids=[trajectory.trajectory_id for trajectory in trajectories],
            lags=[commit.lags[trajectory.trajectory_id] for trajectory in trajectories],
        )
        yield memoryview(b"".join(frames))

    def _survives(self, version: PolicyVersion) -> bool:
        newest = PolicyVersion(lineage=self.head_lineage.name, step=OPEN_END)
        return version.step < surviving_steps(newest, self.tree).get(version.lineage, 0)

    async def RenewLeases(self, request: pb.RenewLeasesRequest, context: Any) -> pb.RenewLeasesResponse:
        self._enter("RenewLeases")
        self.renewed.update(request.batch_ids)
        committed = {commit.batch_id for commit in self.commits}
        lost = [name for name in request.batch_ids if name not in self.leases and name not in committed]
        return pb.RenewLeasesResponse(lost_batch_ids=lost, lease_timeout_s=self.lease_timeout_s)

    async def CommitBatch(self, request: pb.CommitBatchRequest, context: Any) -> pb.CommitBatchResponse:
        self._enter("CommitBatch")
        if any(commit.batch_id == request.batch_id for commit in self.commits):
            return pb.CommitBatchResponse()
        version = version_from_proto(request.version)
        self._check_open(version)
        lease = self.leases.pop(request.batch_id)
        lags = {item.trajectory_id: item.stale_by_versions for item in request.consumptions}
        assert lags.keys() == {trajectory.trajectory_id for trajectory in lease.trajectories}
        self.commits.append(Commit(request.batch_id, version, lags, lease.trajectories))
        self._leave("CommitBatch")
        return pb.CommitBatchResponse()

    async def ReleaseBatch(self, request: pb.ReleaseBatchRequest, context: Any) -> pb.ReleaseBatchResponse:
        self._enter("ReleaseBatch")
        lease = self.leases.pop(request.batch_id)
        dropped = {item.trajectory_id: item.reason for item in request.dropped}
        self.releases.append((request.batch_id, dropped))
        self.available[:0] = [item for item in lease.trajectories if item.trajectory_id not in dropped]
        return pb.ReleaseBatchResponse()

    async def MarkCheckpointed(
        self, request: pb.MarkCheckpointedRequest, context: Any
    ) -> pb.MarkCheckpointedResponse:
        self._enter("MarkCheckpointed")
        self.checkpointed.append(version_from_proto(request.version))
        return pb.MarkCheckpointedResponse()

    async def _unasked(self, request: Any, context: Any) -> Any:
        raise AssertionError("a learner has no business here")

    SampleBatch = WatchOutcomes = DropUnarrived = GetLedger = ReadLedger = VerifyLedger = GetTrajectory = (
        _unasked
    )
    UploadPayload = _unasked
