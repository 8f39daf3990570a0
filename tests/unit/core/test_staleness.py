from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.errors import UnknownVersionError
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.core.records import VersionSpan
from tidegate.core.staleness import (
    Expired,
    Fresh,
    Lineage,
    LineageTree,
    Stale,
    StalenessLimits,
    judge,
    lag_of,
    span_of,
)

STEPS_MAX = 6


def name(number: int) -> LineageName:
    return LineageName(f"{number}-x")


def version(number: int, step: int) -> PolicyVersion:
    return PolicyVersion(name(number), step)


@st.composite
def histories(draw: st.DrawFn) -> tuple[LineageTree, list[PolicyVersion]]:
    """A tree as restores make it, and every version that was published: each fork leaves a checkpoint's version."""
    tree = LineageTree().add(Lineage(name(0)))
    published = [version(0, step) for step in range(draw(st.integers(1, STEPS_MAX)))]
    for number in range(1, draw(st.integers(1, 4))):
        fork = draw(st.sampled_from(published))
        tree = tree.add(Lineage(name(number), parent=fork.lineage, fork_step=fork.step))
        last = fork.step + draw(st.integers(0, STEPS_MAX))
        published += [version(number, step) for step in range(fork.step, last + 1)]
    return tree, published


def edges(
    tree: LineageTree, published: list[PolicyVersion]
) -> dict[PolicyVersion, list[tuple[PolicyVersion, int]]]:
    """The history as a graph: an update costs 1; a fork is the same policy under a new name and costs nothing."""
    graph: dict[PolicyVersion, list[tuple[PolicyVersion, int]]] = {item: [] for item in published}
    for item in published:
        lineage = tree.lineages[item.lineage]
        before = PolicyVersion(item.lineage, item.step - 1)
        if before in graph:
            graph[item].append((before, 1))
            graph[before].append((item, 1))
        elif lineage.parent is not None:
            twin = PolicyVersion(lineage.parent, lineage.fork_step)
            graph[item].append((twin, 0))
            graph[twin].append((item, 0))
    return graph


def walk(
    graph: dict[PolicyVersion, list[tuple[PolicyVersion, int]]], start: PolicyVersion
) -> dict[PolicyVersion, int]:
    """Distances by search, the slow twin of ``LineageTree.distance``."""
    distances = {start: 0}
    queue = deque([start])
    while queue:
        here = queue.popleft()
        for there, cost in graph[here]:
            if distances[here] + cost < distances.get(there, 1 << 30):
                distances[there] = distances[here] + cost
                queue.append(there)
    return distances


@given(histories())
def test_distance_is_the_number_of_updates_on_the_way_between_two_versions(
    history: tuple[LineageTree, list[PolicyVersion]],
) -> None:
    tree, published = history
    graph = edges(tree, published)
    for head in published:
        distances = walk(graph, head)
        assert {item: tree.distance(head, item) for item in published} == distances


class CountedLineages(dict[LineageName, Lineage]):
    """Counts the look-ups."""

    num_read = 0

    def get(self, key: LineageName, default: Any = None) -> Any:
        self.num_read += 1
        return super().get(key, default)


def test_versions_near_the_head_cost_nothing_more_after_a_thousand_restarts() -> None:
    chain = {
        name(number): Lineage(name(number), name(number - 1) if number else None, 10 * number)
        for number in range(1000)
    }
    tree = LineageTree(CountedLineages(chain))
    head = version(999, 10_002)
    assert tree.distance(head, version(999, 9_995)) == 7
    assert tree.distance(head, version(998, 9_985)) == 17
    assert tree.descends(head, version(997, 9_975))
    assert isinstance(tree.lineages, CountedLineages)
    assert tree.lineages.num_read == 1 + 2 + 3


@given(histories())
def test_descent_is_a_way_back_through_updates_alone(
    history: tuple[LineageTree, list[PolicyVersion]],
) -> None:
    tree, published = history
    back: dict[PolicyVersion, PolicyVersion] = {}
    for item in published:
        lineage = tree.lineages[item.lineage]
        before = PolicyVersion(item.lineage, item.step - 1)
        if before in published:
            back[item] = before
        elif lineage.parent is not None:
            back[item] = PolicyVersion(lineage.parent, lineage.fork_step)
    for item in published:
        ancestors, here = {item}, item
        while here in back:
            here = back[here]
            ancestors.add(here)
        for other in published:
            assert tree.descends(item, other) == (other in ancestors)


@given(histories())
def test_some_actor_can_always_start_a_task_once_it_serves_the_newest_version(
    history: tuple[LineageTree, list[PolicyVersion]],
) -> None:
    """A task asks for at most the head of its time. The newest head must satisfy it after any later restore."""
    tree, published = history
    head = published[-1]
    assert all(tree.satisfies(head, required) for required in published)


def test_task_of_a_dead_branch_runs_under_the_sibling_that_replaced_it() -> None:
    tree = LineageTree().add(Lineage(name(0)))
    tree = tree.add(Lineage(name(1), parent=name(0), fork_step=10))
    tree = tree.add(Lineage(name(2), parent=name(0), fork_step=10))
    assert tree.satisfies(version(2, 11), version(1, 15))
    assert not tree.satisfies(version(1, 15), version(2, 11))


def test_actor_waits_for_a_version_it_does_not_have_yet() -> None:
    tree = LineageTree().add(Lineage(name(0)))
    assert tree.satisfies(version(0, 3), version(0, 3))
    assert not tree.satisfies(version(0, 2), version(0, 3))
    assert not tree.satisfies(version(0, 9), version(1, 3))


def test_version_of_an_unopened_lineage_is_refused_everywhere() -> None:
    tree = LineageTree().add(Lineage(name(0)))
    stranger, known = version(7, 1), version(0, 1)
    for call in (
        lambda: tree.distance(known, stranger),
        lambda: tree.distance(stranger, known),
        lambda: tree.descends(stranger, known),
        lambda: tree.satisfies(stranger, known),
    ):
        with pytest.raises(UnknownVersionError, match="never opened"):
            call()


def test_same_branch_twice_changes_nothing_and_another_of_that_name_is_refused() -> None:
    tree = LineageTree().add(Lineage(name(0))).add(Lineage(name(1), parent=name(0), fork_step=4))
    assert tree.add(Lineage(name(1), parent=name(0), fork_step=4)) == tree
    with pytest.raises(UnknownVersionError, match="two learners"):
        tree.add(Lineage(name(1), parent=name(0), fork_step=5))
    with pytest.raises(UnknownVersionError, match="no learner opened"):
        tree.add(Lineage(name(3), parent=name(2), fork_step=0))


@given(histories(), st.data())
def test_lag_is_that_of_the_oldest_step_and_span_of_the_widest_pair(
    history: tuple[LineageTree, list[PolicyVersion]], data: st.DataObject
) -> None:
    tree, published = history
    used = data.draw(st.lists(st.sampled_from(published), min_size=1, max_size=5))
    spans = tuple(VersionSpan(item, start, start + 1) for start, item in enumerate(used))
    head = data.draw(st.sampled_from(published))
    distances = walk(edges(tree, published), head)
    assert lag_of(spans, head, tree) == max(distances[item] for item in used)
    assert span_of(spans, tree) == max(tree.distance(one, other) for one in used for other in used)


@given(
    lag=st.integers(0, 40),
    max_lag=st.integers(0, 20),
    age_s=st.floats(0, 1000),
    max_age_s=st.floats(0.1, 500),
)
def test_only_what_is_inside_both_budgets_is_fresh(
    lag: int, max_lag: int, age_s: float, max_age_s: float
) -> None:
    tree = LineageTree().add(Lineage(name(0)))
    verdict = judge(
        (VersionSpan(version(0, 100 - lag), 0, 4),),
        started_at_s=1e4,
        head=version(0, 100),
        tree=tree,
        limits=StalenessLimits(max_lag=max_lag, max_age_s=max_age_s),
        now_s=1e4 + age_s,
    )
    age_s = (1e4 + age_s) - 1e4
    if lag > max_lag:
        assert verdict == Stale(lag=lag, limit=max_lag)
    elif age_s > max_age_s:
        assert verdict == Expired(age_s=age_s, limit_s=max_age_s)
    else:
        assert verdict == Fresh(lag=lag, span=0, age_s=age_s)


def test_age_that_is_no_number_is_not_fresh() -> None:
    tree = LineageTree().add(Lineage(name(0)))
    verdict = judge(
        (VersionSpan(version(0, 1), 0, 4),),
        started_at_s=float("nan"),
        head=version(0, 1),
        tree=tree,
        limits=StalenessLimits(max_lag=0, max_age_s=300.0),
        now_s=1e4,
    )
    assert isinstance(verdict, Expired)


def test_verdicts_contain_their_numbers() -> None:
    assert str(Stale(lag=5, limit=4)) == "5 versions behind the learner (max_lag 4)"
    assert str(Expired(age_s=301.26, limit_s=300.0)) == "301.3 s old (max_age_s 300)"
