"""Choose the next batch: whole groups inside the budget, the oldest version first, then by arrival.

The oldest version goes first because it is the next to leave the budget. A group is judged whole (I6): when one member
is beyond the budget, the others could never be trained with it, so all of them are dropped, each with its reason.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec

from tidegate.core.ids import GroupId, PolicyVersion, TrajectoryId
from tidegate.core.records import DropReason, Trajectory, VersionSpan
from tidegate.core.staleness import Expired, Fresh, LineageTree, StalenessLimits, Verdict, judge


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """A trajectory that waits for a gradient. ``seq`` is its place in order of arrival, ``frame_id`` its payload's."""

    seq: int
    trajectory_id: TrajectoryId
    group_id: GroupId
    group_size: int
    spans: tuple[VersionSpan, ...]
    started_at_s: float
    frame_id: int


Group: TypeAlias = tuple[Candidate, ...]


class Drop(msgspec.Struct, frozen=True):
    """A candidate that ends without a gradient, and why."""

    candidate: Candidate
    reason: DropReason
    detail: str


class FreshGroup(msgspec.Struct, frozen=True):
    """A group inside the budget; ``lag`` is its farthest member's."""

    lag: int
    members: Group


class Choice(msgspec.Struct, frozen=True):
    """A full batch, or an empty one while too few groups wait; and the drops of groups beyond the budget."""

    batch: tuple[Candidate, ...]
    dropped: tuple[Drop, ...]


class Judged(msgspec.Struct, frozen=True):
    """Groups inside the budget, and the members of groups beyond it."""

    fresh: tuple[FreshGroup, ...]
    dropped: tuple[Drop, ...]


def judge_groups(
    groups: Iterable[Group], *, head: PolicyVersion, tree: LineageTree, limits: StalenessLimits, now_s: float
) -> Judged:
    """Check every group against the budget.

    Candidates with the same spans share their lag, so the check of the one that started first holds for all of
    them, unless it fails by age.

    Raises:
        UnknownVersionError: a span names a lineage that the run never opened.
    """
    waiting = list(groups)
    started_first: dict[tuple[VersionSpan, ...], float] = {}
    for members in waiting:
        for candidate in members:
            known = started_first.get(candidate.spans)
            if known is None or candidate.started_at_s < known:
                started_first[candidate.spans] = candidate.started_at_s
    verdicts = {
        spans: judge(spans, started_at_s=started_at_s, head=head, tree=tree, limits=limits, now_s=now_s)
        for spans, started_at_s in started_first.items()
    }

    def verdict_of(candidate: Candidate) -> Verdict:
        verdict = verdicts[candidate.spans]
        if not isinstance(verdict, Expired):
            return verdict
        return judge(
            candidate.spans,
            started_at_s=candidate.started_at_s,
            head=head,
            tree=tree,
            limits=limits,
            now_s=now_s,
        )

    fresh: list[FreshGroup] = []
    dropped: list[Drop] = []
    for members in waiting:
        lag = 0
        failed: tuple[Candidate, Verdict] | None = None
        for candidate in members:
            verdict = verdict_of(candidate)
            if not isinstance(verdict, Fresh):
                failed = (candidate, verdict)
                break
            lag = max(lag, verdict.lag)
        if failed is None:
            fresh.append(FreshGroup(lag=lag, members=members))
        else:
            reason: DropReason = "expired" if isinstance(failed[1], Expired) else "stale"
            dropped.extend(drop_group(members, lost=failed[0], reason=reason, detail=str(failed[1])))
    return Judged(fresh=tuple(fresh), dropped=tuple(dropped))


def drop_group(
    members: Iterable[Candidate], *, lost: Candidate, reason: DropReason, detail: str
) -> list[Drop]:
    """Drop a whole group: once one member is lost, the others are dropped for the same reason, which they name."""
    return [
        Drop(
            candidate=candidate,
            reason=reason,
            detail=detail if candidate == lost else f"its group lost {lost.trajectory_id}: {detail}",
        )
        for candidate in members
    ]


def choose_batch(
    groups: Sequence[Group],
    *,
    batch_size: int,
    head: PolicyVersion,
    tree: LineageTree,
    limits: StalenessLimits,
    now_s: float,
) -> Choice:
    """The next batch from the whole groups that wait, for an update of ``head``.

    A batch is full when the remaining capacity is smaller than every group in it; with groups of one size that divides
    ``batch_size`` it holds exactly ``batch_size`` trajectories.

    A group that is larger than a batch could never be trained whole: it is dropped as invalid, and the others go on.

    Raises:
        UnknownVersionError: a span names a lineage that the run never opened.
    """
    judged = judge_groups(groups, head=head, tree=tree, limits=limits, now_s=now_s)
    batch: list[Candidate] = []
    oversized: list[Drop] = []
    smallest = batch_size
    for group in sorted(judged.fresh, key=_urgency):
        size = len(group.members)
        if size > batch_size:
            detail = (
                f"its group {group.members[0].group_id} has {size} trajectories, a batch only {batch_size}:"
                " `batch_size` must be a multiple of `workload.num_samples`"
            )
            oversized += [Drop(candidate=member, reason="invalid", detail=detail) for member in group.members]
        elif size <= batch_size - len(batch):
            batch.extend(group.members)
            smallest = min(smallest, size)
    is_full = batch_size - len(batch) < smallest
    return Choice(batch=tuple(batch) if is_full else (), dropped=(*judged.dropped, *oversized))


def training_order(batch: Sequence[Trajectory]) -> list[int]:
    """The indices of a batch in the order in which a learner trains it: by task, then as they stand in the batch.

    A batch comes in order of arrival, which differs from run to run; the order of training must not, so that the same
    batch gives the same update.
    """
    return sorted(range(len(batch)), key=lambda index: batch[index].task_id)


def _urgency(group: FreshGroup) -> tuple[int, int]:
    return (-group.lag, group.members[0].seq)
