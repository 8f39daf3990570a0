"""Resumes partial rollouts of another actor: which samples continue, and which restart."""

from collections.abc import Sequence

import msgspec

from tidegate.actor.rollouts.episode import Episode, Group
from tidegate.core.errors import UnknownVersionError
from tidegate.core.ids import PolicyVersion
from tidegate.core.records import Task
from tidegate.core.staleness import LineageTree, StalenessLimits, clock_ahead_s
from tidegate.wire.progress import Progress, SampleProgress


class ResumedGroup(msgspec.Struct, frozen=True, eq=False):
    """A group to continue, with its numbers of resumed and of lost tokens, both as chosen by the policy."""

    group: Group
    tokens_resumed: int
    tokens_lost: int


def fresh(task: Task, *, now_s: float) -> Group:
    """A group without tokens."""
    return Group(task, [Episode(index) for index in range(task.num_samples)], started_at_s=now_s)


def resume(
    progress: Progress,
    task: Task,
    *,
    head: PolicyVersion,
    tree: LineageTree,
    limits: StalenessLimits,
    now_s: float,
) -> ResumedGroup:
    """The group in ``progress``, under its original cap.

    Samples whose oldest version exceeds the staleness budget restart, because they could not be trained on. The whole
    group restarts once it is too old. A resumed group keeps its start time, as its age counts from there, less what the
    other actor's clock is seen to be ahead, which the store cannot see at the end that this actor's clock gives it.
    """
    found: Sequence[SampleProgress] = progress.samples
    started_at_s = progress.started_at_s - clock_ahead_s(progress.written_at_s, received_at_s=now_s)
    if now_s - started_at_s > limits.max_age_s:
        found = []
    kept = [sample for sample in found if _is_inside(sample, head=head, tree=tree, limits=limits)]
    num_kept = sum(sample.num_chosen for sample in kept)
    num_written = sum(sample.num_chosen for sample in progress.samples) + progress.tokens_left_out
    if not kept:
        return ResumedGroup(fresh(task, now_s=now_s), 0, num_written)
    by_index = {sample.index: sample for sample in kept}
    sampler = msgspec.structs.replace(task.sampler, max_new_tokens=progress.max_new_tokens)
    group = Group(
        msgspec.structs.replace(task, sampler=sampler),
        [
            Episode.resumed(by_index[index]) if index in by_index else Episode(index)
            for index in range(task.num_samples)
        ],
        started_at_s=started_at_s,
    )
    return ResumedGroup(group, num_kept, num_written - num_kept)


def _is_inside(
    sample: SampleProgress, *, head: PolicyVersion, tree: LineageTree, limits: StalenessLimits
) -> bool:
    try:
        return all(tree.distance(head, span.version) <= limits.max_lag for span in sample.spans)
    except UnknownVersionError:
        return False
