"""Which tokens of another actor are resumed: those that can still be trained on, and no others."""

import msgspec
import numpy as np
import pytest

from tests.unit.actor.episodes_harness import TREE, task_of
from tests.unit.actor.support import LINEAGE, version
from tidegate.actor.rollouts.resumption import ResumedGroup, resume
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.core.records import VersionSpan
from tidegate.core.staleness import Lineage, StalenessLimits
from tidegate.wire.progress import Progress, SampleProgress

LIMITS = StalenessLimits(max_lag=2, max_age_s=60.0)
HEAD = version(10)


def sample(index: int, *versions: PolicyVersion) -> SampleProgress:
    """Four tokens of each version, in order."""
    length = 4 * len(versions)
    return SampleProgress(
        index=index,
        tokens=np.arange(length, dtype=np.int32),
        logprobs=np.full(length, -0.5, np.float32),
        spans=tuple(
            VersionSpan(chosen_by, 4 * position, 4 * position + 4)
            for position, chosen_by in enumerate(versions)
        ),
    )


def resumed(*samples: SampleProgress, now_s: float = 110.0, left_out: int = 0) -> ResumedGroup:
    task = task_of(num_samples=3, max_new_tokens=60)
    progress = Progress(
        run_id=task.run_id,
        task_id=task.task_id,
        attempt=task.attempt,
        num_samples=3,
        started_at_s=100.0,
        max_new_tokens=40,
        samples=samples,
        tokens_left_out=left_out,
    )
    return resume(progress, task, head=HEAD, tree=TREE, limits=LIMITS, now_s=now_s)


def test_samples_inside_the_budget_continue_and_the_others_restart() -> None:
    found = resumed(sample(0, version(8), version(10)), sample(2, version(7)), left_out=5)
    assert [episode.num_tokens for episode in found.group.episodes] == [8, 0, 0]
    assert (found.tokens_resumed, found.tokens_lost) == (8, 9)
    assert found.group.started_at_s == 100.0, "its age counts from the first token"
    assert found.group.task.sampler.max_new_tokens == 40, "all samples are written under the same cap"


def test_newer_tokens_do_not_lower_the_lag_of_the_first() -> None:
    found = resumed(sample(0, version(7), version(10)))
    assert (found.tokens_resumed, found.tokens_lost) == (0, 8)
    assert found.group.started_at_s == 110.0
    assert found.group.task.sampler.max_new_tokens == 60


def test_too_old_group_restarts_whatever_its_versions() -> None:
    found = resumed(sample(0, version(10)), now_s=161.0)
    assert (found.tokens_resumed, found.tokens_lost) == (0, 4)


@pytest.mark.parametrize("ahead_s", [0.0, 3.0, 3600.0])
def test_clock_of_the_other_actor_that_is_ahead_makes_nothing_younger(ahead_s: float) -> None:
    task = task_of(num_samples=3, max_new_tokens=60)
    first = resume(
        Progress(task.run_id, task.task_id, task.attempt, 3, 100.0 + ahead_s, 40, (sample(0, version(10)),)),
        task,
        head=HEAD,
        tree=TREE,
        limits=LIMITS,
        now_s=105.0 + ahead_s,
    ).group
    written = first.progress(now_s=110.0 + ahead_s)
    found = resume(written, task, head=HEAD, tree=TREE, limits=LIMITS, now_s=112.0)
    assert found.tokens_resumed == 4
    assert 100.0 <= found.group.started_at_s <= 102.0, (
        "late by at most the time from its writing to its reading"
    )


def test_tokens_of_an_unknown_lineage_restart() -> None:
    found = resumed(sample(0, PolicyVersion(LineageName("1-b"), 10)))
    assert found.tokens_resumed == 0


def test_tokens_of_a_dead_branch_count_their_way_back() -> None:
    task = task_of(num_samples=3, max_new_tokens=60)
    branch = LineageName("1-b")
    tree = TREE.add(Lineage(branch, parent=LINEAGE, fork_step=9))
    progress = Progress(
        task.run_id,
        task.task_id,
        task.attempt,
        3,
        100.0,
        40,
        (sample(0, version(10)), sample(1, version(12))),
    )
    head = PolicyVersion(branch, 10)
    found = resume(progress, task, head=head, tree=tree, limits=LIMITS, now_s=101.0)
    assert [episode.num_tokens for episode in found.group.episodes] == [4, 0, 0]


def test_resumed_group_is_checkpointed_unchanged() -> None:
    """Nothing is lost on its way through a second actor that writes nothing."""
    first = sample(1, version(9), version(10))
    reply = msgspec.structs.replace(
        first, replies=((4, 6),), reply="higher", reward=0.5, logprobs=_silent(first, 4, 6)
    )
    [again] = resumed(reply).group.progress(now_s=110.0).samples
    for name in SampleProgress.__struct_fields__:
        ours, theirs = getattr(again, name), getattr(reply, name)
        assert np.array_equal(ours, theirs) if name in ("tokens", "logprobs") else ours == theirs, name


def _silent(of: SampleProgress, start: int, stop: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    logprobs = of.logprobs.copy()
    logprobs[start:stop] = 0.0
    return logprobs
