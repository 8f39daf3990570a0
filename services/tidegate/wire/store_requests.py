"""What the store's calls may ask for, checked before anything is done. The bounds are those of ``wire.bounds``."""

from collections.abc import Sequence

from tidegate.core.errors import RecordError
from tidegate.core.ids import PolicyVersion
from tidegate.v1 import policy_pb2
from tidegate.v1 import trajectory_store_service_pb2 as pb
from tidegate.wire.bounds import (
    BATCH_MAX,
    IDS_MAX,
    INT32_MAX,
    LINEAGES_MAX,
    NAME_CHARS_MAX,
    STEP_MAX,
    TIME_S_MAX,
    check_count,
    check_id,
    check_lineage,
    check_lineages,
    check_name,
    check_number,
    check_version,
)

# Batches whose commit a checkpoint does not prove; the learner has a few.
CONSUMED_MAX = 4096
OUTCOMES_MAX = 100_000
# A reader that is given the present state of every row passes negative cursors back (``outcome_log``).
CURSOR_MIN = -(2**63 - 1)
# A learner trains one batch, has the next one leased and waits for the commit of at most two.
HELD_MAX = 16
# Updates that a learner can be ahead of what it committed and announced: those in flight, a handful.
STEPS_AHEAD_MAX = 1024


def check_next_batch(
    request: pb.LeaseBatchRequest | pb.SampleBatchRequest, *, head: PolicyVersion | None
) -> None:
    """Refuse a request for a batch that no learner makes; ``head`` is the newest version that the store knows.

    Raises:
        RecordError: its version is none, or far ahead of ``head``; or a number is out of range.
    """
    check_version(request.version, "The version to be updated")
    check_number(request.batch_size, "batch_size", least=1, most=BATCH_MAX)
    check_number(request.max_lag, "max_lag", least=0, most=INT32_MAX)
    check_number(request.max_age_s, "max_age_s", least=0.0, most=TIME_S_MAX)
    check_wait(request.max_wait_s)
    check_held(request.held_batch_ids, learner_id=request.learner_id)
    _check_ahead(request.version, "A batch was requested for", head=head)


def check_held(batch_ids: Sequence[str], *, learner_id: str) -> None:
    """Refuse more leases than a learner has: each is looked up, at every change while a request waits.

    Raises:
        RecordError: there are too many, or the learner has no name.
    """
    check_count(len(batch_ids), "leases of one learner", max_count=HELD_MAX)
    check_name(learner_id, "learner_id")


def check_wait(max_wait_s: float) -> None:
    """Refuse a wait that is no number; one that is too long is answered sooner.

    Raises:
        RecordError: it is not a number, or negative.
    """
    check_number(max_wait_s, "max_wait_s", least=0.0, most=TIME_S_MAX)


def check_commit(request: pb.CommitBatchRequest, *, head: PolicyVersion | None) -> None:
    """Refuse a commit that names no batch or version; ``head`` is the newest version that the store knows.

    Raises:
        RecordError: an id, the version or a number is out of range; or the version is far ahead of ``head``.
    """
    check_id(request.batch_id, "Batch")
    check_version(request.version, "The version that was trained")
    _check_ahead(request.version, "A commit names", head=head)
    _check_consumptions(request.consumptions)
    check_number(request.sampled.max_lag, "max_lag", least=0, most=INT32_MAX)


def check_dropped(batch_id: str | None, dropped: Sequence[pb.DroppedTrajectory]) -> None:
    """Refuse a list of drops that is too long to be written at once, or names what can be no trajectory.

    Raises:
        RecordError: an id is none, or there are too many.
    """
    if batch_id is not None:
        check_id(batch_id, "Batch")
    # A batch may have left the budget as a whole.
    check_count(len(dropped), "dropped trajectories", max_count=IDS_MAX if batch_id is None else BATCH_MAX)
    for item in dropped:
        check_id(item.trajectory_id, "Trajectory")
        check_name(item.reason, "A reason", chars_max=NAME_CHARS_MAX)


def check_opening(request: pb.OpenLineageRequest, *, num_lineages: int, newest_of_parent: int | None) -> None:
    """Refuse a lineage that no learner opens, and one more than a tree may have.

    ``num_lineages``: that the store has then. ``newest_of_parent``: the newest step of the parent, None of one that the
    store does not know.

    Raises:
        RecordError: a name, step or count is out of range.
    """
    check_lineage(request.lineage)
    if newest_of_parent is not None:
        what = f"The fork step of lineage {request.lineage.name}"
        check_number(request.lineage.fork_step, what, least=0, most=newest_of_parent + STEPS_AHEAD_MAX)
    check_lineages(request.ancestors)
    if num_lineages > LINEAGES_MAX:
        raise RecordError(
            f"The learner of this run has started {LINEAGES_MAX:,} times, which is as often as it may",
            why="each start opens a lineage, and every version is announced with all of them",
            fix="begin another run from this one's newest version: begin_from in its run file",
        )
    check_name(request.learner_id, "learner_id")
    check_count(len(request.consumed), "consumed batches", max_count=CONSUMED_MAX)
    for batch in request.consumed:
        check_id(batch.batch_id, "Batch")
        check_version(batch.version, "The version that was trained")
        _check_consumptions(batch.consumptions)
        check_number(batch.max_lag, "max_lag", least=0, most=INT32_MAX)
        for item in batch.units:
            check_id(item.trajectory_id, "Trajectory")


def check_checkpointed(version: policy_pb2.PolicyVersion, *, newest: int) -> None:
    """Refuse a checkpoint of updates that were not made: the payloads of all before it are removed.

    ``newest``: the newest step of its lineage that the store knows.

    Raises:
        RecordError: it is no version, or far ahead of ``newest``.
    """
    check_version(version, "The checkpointed version")
    check_number(version.step, "The checkpointed step", least=0, most=newest + STEPS_AHEAD_MAX)


def check_watch(request: pb.WatchOutcomesRequest) -> None:
    """Refuse a poll with a cursor or limit that cannot be.

    Raises:
        RecordError: a number is out of range.
    """
    check_number(request.cursor, "cursor", least=CURSOR_MIN, most=STEP_MAX)
    check_number(request.limit, "limit", least=1, most=OUTCOMES_MAX)
    check_wait(request.max_wait_s)


def _check_ahead(version: policy_pb2.PolicyVersion, what: str, *, head: PolicyVersion | None) -> None:
    """A version of the open lineage becomes its head, which decides what is stale."""
    if head is not None and version.lineage == head.lineage and version.step > head.step + STEPS_AHEAD_MAX:
        raise RecordError(
            f"{what} {version.lineage}@{version.step}, and the newest version is {head}",
            why=f"a learner is at most {STEPS_AHEAD_MAX} updates ahead of what it committed",
        )


def _check_consumptions(consumptions: Sequence[pb.Consumption]) -> None:
    check_count(len(consumptions), "consumptions", max_count=BATCH_MAX)
    for item in consumptions:
        check_id(item.trajectory_id, "Trajectory")
        check_number(item.stale_by_versions, "stale_by_versions", least=0, most=INT32_MAX)
        check_number(item.span, "span", least=0, most=INT32_MAX)
        check_number(item.age_s, "age_s", least=-TIME_S_MAX, most=TIME_S_MAX)
