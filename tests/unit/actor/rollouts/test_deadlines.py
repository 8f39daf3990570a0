"""Which running rollouts are marked, from the head and the engine at one moment."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from tests.support.clocks import HeldClock
from tests.unit.actor.support import LINEAGE, group_task, version
from tidegate.actor.engines.port import EngineControl, Rollouts, Sample
from tidegate.actor.rollouts.deadlines import DeadlineWatch, RolloutStatus
from tidegate.actor.rollouts.predictions import Predictions
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.core.records import Task, VersionSpan
from tidegate.core.staleness import Lineage, LineageTree
from tidegate.runtime.config import LongTailConfig, StalenessConfig
from tidegate.runtime.live_settings import LiveSections, LiveSettings
from tidegate.runtime.policy_watch import PolicyWatch
from tidegate.runtime.service import ServiceContext

TREE = LineageTree().add(Lineage(LINEAGE))
CUT = LongTailConfig(policy="cut", finish_chance_min=0.1)


class Harness:
    """A watch over one actor's rollouts, with a head and a clock to move."""

    def __init__(self, *, max_lag: int = 2, config: LongTailConfig = CUT) -> None:
        self.clock = HeldClock()
        self.control = EngineControl()
        self.predictions = Predictions(config)
        self.head = SimpleNamespace(head=None)
        live = LiveSettings(LiveSections(StalenessConfig(max_lag=max_lag)))
        context = SimpleNamespace(settings=SimpleNamespace(long_tail=config), clock=self.clock, live=live)
        self.watch = DeadlineWatch(
            cast("ServiceContext", cast("Any", context)),
            cast("PolicyWatch", cast("Any", self.head)),
            self.control,
            self.predictions,
        )

    def publish(self, step: int, *, lineage: LineageName = LINEAGE, tree: LineageTree = TREE) -> None:
        self.head.head = SimpleNamespace(version=PolicyVersion(lineage, step), tree=tree)

    def marked(self, *, after_s: float = 0.0) -> dict[str, str]:
        self.clock.now += after_s
        self.watch.check()
        return {str(task_id): mark.decision.reason for task_id, mark in self.watch.marks.items()}


def made(task: Task, *, oldest: int, started_at_s: float, length: int = 7) -> Rollouts:
    spans = (VersionSpan(version(oldest), 0, 3), VersionSpan(version(oldest + 1), 3, length))
    return Rollouts(
        task, (Sample(tensors={}, spans=spans, num_steps=length),), started_at_s, started_at_s + 1.0
    )


def test_rollout_beyond_the_budget_is_marked_with_how_far_it_was() -> None:
    harness, task = Harness(max_lag=2), group_task("t-1")
    harness.watch.track([task])
    harness.control.begins([task], version(5), now_s=harness.clock.now)
    harness.control.position = 11
    harness.publish(7)
    assert harness.marked(after_s=1.0) == {}
    harness.publish(8)
    assert harness.marked(after_s=1.0) == {"t-1": "stale"}
    mark = harness.watch.marks[task.task_id]
    assert (mark.length, mark.elapsed_s) == (11, pytest.approx(2.0))
    assert harness.control.cut == {"t-1"}
    assert harness.watch.changed.is_set()


def test_oldest_version_counts_however_new_the_one_that_is_served() -> None:
    """Newer weights do not lower the lag: it counts from the first token."""
    harness, task = Harness(max_lag=2), group_task("t-1")
    harness.watch.track([task])
    harness.watch.record_generated(made(task, oldest=5, started_at_s=harness.clock.now))
    harness.publish(8)
    assert harness.marked(after_s=1.0) == {"t-1": "stale"}
    assert harness.watch.marks[task.task_id].length == 7


def test_rollout_that_will_probably_be_late_is_marked_early() -> None:
    harness = Harness(max_lag=4)
    for _ in range(50):
        harness.predictions.record_duration(made(group_task(), oldest=0, started_at_s=0.0))  # all take 1 s
    for seconds in range(100, 200):
        slow = made(group_task(), oldest=0, started_at_s=0.0)
        harness.predictions.record_duration(msgspec.structs.replace(slow, finished_at_s=float(seconds)))
    for step in range(5):
        harness.publish(step)
        assert harness.marked(after_s=1.0) == {}
    task = group_task("t-1")
    harness.watch.track([task])
    harness.control.begins([task], version(4), now_s=harness.clock.now)
    assert harness.marked(after_s=0.5) == {}, "a third of them end within a second"
    assert harness.marked(after_s=2.0) == {"t-1": "stale"}, (
        "a rollout that took 2.5 s takes 100 s: at a version per second, too late"
    )
    assert "end within" in harness.watch.marks[task.task_id].decision.detail


def test_ended_rollout_is_not_marked_whatever_else_runs() -> None:
    harness = Harness(max_lag=1)
    one, two = group_task("t-1"), group_task("t-2")
    harness.watch.track([one, two])
    harness.watch.record_generated(made(one, oldest=0, started_at_s=harness.clock.now))
    harness.watch.record_generated(made(two, oldest=0, started_at_s=harness.clock.now))
    harness.watch.untrack(one.task_id)
    harness.publish(9)
    assert harness.marked() == {"t-2": "stale"}
    harness.watch.track([group_task("t-3")])
    assert harness.marked() == {"t-2": "stale"}, "another start changes nothing"
    harness.watch.untrack(two.task_id)
    assert harness.marked() == {}
    assert harness.control.cut == frozenset()


class Pages:
    """A task that reports its own status."""

    def __init__(self) -> None:
        self.written: RolloutStatus | None = None

    def status(self) -> RolloutStatus | None:
        return self.written


def test_concurrent_tasks_are_marked_each_by_its_oldest_version() -> None:
    harness = Harness(max_lag=2)
    old, new, unstarted = (group_task(name) for name in ("t-old", "t-new", "t-unstarted"))
    for task, oldest in ((old, 5), (new, 8), (unstarted, None)):
        pages = Pages()
        if oldest is not None:
            pages.written = RolloutStatus(task.task_id, version(oldest), harness.clock.now, length=oldest)
        harness.watch.track_group(task, pages)
    harness.publish(8)
    assert harness.marked(after_s=1.0) == {"t-old": "stale"}
    assert harness.watch.marks[old.task_id].length == 5
    harness.watch.untrack(old.task_id)
    harness.publish(11)
    assert harness.marked() == {"t-new": "stale"}


def test_second_round_of_a_group_counts_from_the_first() -> None:
    harness, task = Harness(max_lag=2), group_task("t-1")
    harness.watch.track([task])
    harness.watch.record_generated(made(task, oldest=5, started_at_s=harness.clock.now))
    harness.control.begins([task], version(8), now_s=harness.clock.now)
    harness.publish(8)
    assert harness.marked() == {"t-1": "stale"}


def test_engine_status_of_an_earlier_batch_is_ignored() -> None:
    harness = Harness(max_lag=0)
    harness.control.begins([group_task("gone")], version(0), now_s=0.0)
    harness.watch.track([group_task("t-1")])
    harness.publish(9)
    assert harness.marked() == {}


def test_branch_unknown_to_the_head_is_left_for_the_next_check() -> None:
    harness, task = Harness(), group_task("t-1")
    harness.watch.track([task])
    harness.control.begins([task], PolicyVersion(LineageName("1-new"), 3), now_s=harness.clock.now)
    assert harness.marked() == {}, "before the first policy there is no head"
    harness.publish(9)
    assert harness.marked() == {}
    tree = TREE.add(Lineage(LineageName("1-new"), parent=LINEAGE, fork_step=2))
    harness.publish(9, tree=tree)
    assert harness.marked() == {"t-1": "stale"}
