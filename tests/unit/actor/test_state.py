"""Which tasks may start, and the record of a rollout."""

import msgspec
import numpy as np

from tests.unit.actor.support import evaluation_task, group_task, segment_task, version
from tidegate.actor.engines.port import Rollouts, Sample
from tidegate.actor.state import (
    Provenance,
    may_start,
    records_of,
    redelivered,
    rewarded,
    split_startable,
)
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.core.records import EpisodeEnd, StageTiming, VersionSpan
from tidegate.core.staleness import Lineage, LineageTree

TREE = LineageTree().add(Lineage(LineageName("0-a")))


def test_task_waits_for_the_policy_that_it_requires() -> None:
    task = msgspec.structs.replace(segment_task(), required_version=version(3))
    assert not may_start(task, own=None, tree=TREE)
    assert not may_start(task, own=version(2), tree=TREE)
    assert may_start(task, own=version(3), tree=TREE)


def test_task_of_an_abandoned_branch_starts_under_its_successor() -> None:
    tree = TREE.add(Lineage(LineageName("1-b"), parent=LineageName("0-a"), fork_step=2))
    task = msgspec.structs.replace(segment_task(), required_version=version(9))
    assert may_start(task, own=PolicyVersion(LineageName("1-b"), 2), tree=tree)


def test_batch_takes_what_may_start_in_order_and_leaves_the_rest() -> None:
    later = msgspec.structs.replace(group_task("later"), required_version=version(5))
    tasks = [later, group_task("first"), group_task("second"), group_task("third")]
    assert split_startable(tasks, own=version(1), tree=TREE, batch_max=2) == [1, 2]
    assert split_startable(tasks, own=version(5), tree=TREE, batch_max=8) == [0, 1, 2, 3]
    assert split_startable(tasks, own=None, tree=TREE, batch_max=8) == []


def test_batch_of_similar_lengths_starts_with_the_oldest_task() -> None:
    tasks = [group_task(name) for name in ("long", "short", "longish", "tiny", "as long")]
    lengths = [100.0, 10.0, 80.0, 1.0, 100.0]

    def start(batch_max: int) -> list[int]:
        return split_startable(tasks, own=version(1), tree=TREE, batch_max=batch_max, lengths=lengths)

    assert start(1) == [0]
    assert start(2) == [0, 4]
    assert start(3) == [0, 2, 4]
    assert start(8) == [0, 1, 2, 3, 4]
    equal = split_startable(tasks, own=version(1), tree=TREE, batch_max=3, lengths=[5.0] * 5)
    assert equal == [0, 1, 2], "without a difference, in order"


def test_evaluation_runs_alone() -> None:
    tasks = [group_task("first"), evaluation_task(), group_task("second")]
    assert split_startable(tasks, own=version(1), tree=TREE, batch_max=8) == [0, 2]
    assert split_startable(tasks[1:], own=version(1), tree=TREE, batch_max=8) == [0]


def test_records_of_a_group_hold_ids_versions_timings_and_texts() -> None:
    task = group_task("task-7", num_samples=2)
    spans = (VersionSpan(version(3), 0, 1), VersionSpan(version(4), 1, 2))
    tensors = {"tokens": np.array([5, 2], np.int32), "behavior_logprobs": np.zeros(2, np.float32)}
    samples = tuple(
        Sample(tensors=tensors, spans=spans, num_steps=2, completion=text, finish_reason="stop")
        for text in ("085", "084")
    )
    rollouts = Rollouts(task, samples, started_at_s=10.0, finished_at_s=11.0)
    first, second = records_of(rollouts, Provenance("actor-1", taken_at_s=9.0), trace_parents=["t-0", "t-1"])
    assert (first.trajectory_id, second.trajectory_id) == ("task-7.0", "task-7.1")
    assert (first.group_id, first.group_size) == ("task-7", 2)
    assert (first.completion, second.completion) == ("085", "084")
    assert (first.prompt, first.answer, first.curriculum_bin) == ("47+38=", "085", "carries-1")
    assert first.spans == spans
    assert (first.started_at_s, first.finished_at_s, first.length_tokens) == (10.0, 11.0, 2)
    assert (first.trace_parent, second.trace_parent) == ("t-0", "t-1")
    assert first.sampler == task.sampler
    assert first.reward is None
    assert first.stages == (
        StageTiming("task.lease", "task_queue", 1.0, 9.0),
        StageTiming("trajectory.generate", "actor-1", 10.0, 11.0),
    )


def test_record_of_a_segment_holds_its_episodes_and_counts_steps_not_tokens() -> None:
    episode = EpisodeEnd(21.0, 21, 4)
    sample = Sample(tensors={}, spans=(VersionSpan(version(1), 0, 8),), num_steps=30, episodes=(episode,))
    rollouts = Rollouts(segment_task(), (sample,), started_at_s=2.0, finished_at_s=3.0)
    [record] = records_of(rollouts, Provenance("actor-0", taken_at_s=1.5), trace_parents=["t"])
    assert (record.num_steps, record.length_tokens, record.group_size) == (30, 0, 1)
    assert record.episodes == (episode,)
    assert record.env_id == "CartPole-v1"


def test_rewarded_record_is_one_hop_older() -> None:
    sample = Sample(tensors={}, spans=(VersionSpan(version(1), 0, 1),), num_steps=1)
    rollouts = Rollouts(group_task(num_samples=1), (sample,), started_at_s=2.0, finished_at_s=3.0)
    [record] = records_of(rollouts, Provenance("actor-0", taken_at_s=1.5), trace_parents=["t"])
    stage = StageTiming("reward.score", "environment", 3.0, 4.0)
    judged = rewarded(record, reward=0.5, components={"digits": 0.5}, log="half", stage=stage)
    assert (judged.reward, judged.reward_components, judged.verifier_log) == (0.5, {"digits": 0.5}, "half")
    assert judged.stages == (*record.stages, stage)


def test_redelivered_segment_draws_other_actions_and_a_prompt_does_not() -> None:
    task = msgspec.structs.replace(segment_task(), seed=7)
    seeds = [redelivered(task, num_delivered=number).seed for number in (2, 2, 3)]
    assert seeds[0] == seeds[1]
    assert len({7, *seeds}) == 3
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert redelivered(group_task(), num_delivered=2) == group_task()
