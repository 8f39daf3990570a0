"""The oracle and the code that it judges compute the same lags in two different ways."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.ids import GroupId, LineageName, PolicyVersion, RunId, TaskId, TrajectoryId
from tidegate.core.records import Trajectory
from tidegate.core.staleness import Lineage, LineageTree
from tidegate.sim.oracle import NODE_TENSOR, NODES_TENSOR, Oracle

MAX_LAG = 2
MAX_AGE_S = 10.0
# A history: each entry updates the newest policy (None), or restores the policy of an earlier moment.
HISTORIES = st.lists(st.none() | st.integers(0, 1000), max_size=40)


def new_truth() -> Oracle:
    return Oracle(max_lag=MAX_LAG, max_age_s=MAX_AGE_S)


def trajectory(
    name: str, *nodes: int, group: str = "", group_size: int = 1, started_at_s: float = 0.0
) -> Trajectory:
    return Trajectory(
        trajectory_id=TrajectoryId(name),
        run_id=RunId("sim"),
        task_id=TaskId(name),
        group_id=GroupId(group or name),
        group_size=group_size,
        spans=(),
        tensors={NODES_TENSOR: np.array(nodes, dtype=np.int32)},
        num_steps=len(nodes),
        started_at_s=started_at_s,
    )


@given(HISTORIES)
def test_distance_is_the_lineage_trees_for_every_history_of_updates_and_restores(
    history: list[int | None],
) -> None:
    oracle = new_truth()
    tree = LineageTree().add(Lineage(LineageName("0")))
    moments = [(PolicyVersion(LineageName("0"), 0), oracle.root())]
    for entry in history:
        if entry is None:
            version, node = moments[-1]
            moments.append(
                (PolicyVersion(version.lineage, version.step + 1), oracle.update(node, (), now_s=0.0))
            )
        else:
            version, node = moments[entry % len(moments)]
            name = LineageName(str(len(tree.lineages)))
            tree = tree.add(Lineage(name, parent=version.lineage, fork_step=version.step))
            moments.append((PolicyVersion(name, version.step), node))
    for head, head_node in moments[-3:]:
        for version, node in moments:
            assert oracle.distance(head_node, node) == tree.distance(head, version)


def test_lag_is_that_of_the_oldest_step_and_above_the_budget_is_a_violation() -> None:
    oracle = new_truth()
    nodes = [oracle.root()]
    for _ in range(MAX_LAG):
        nodes.append(oracle.update(nodes[-1], (), now_s=0.0))
    oracle.update(nodes[-1], [trajectory("a", nodes[-1], nodes[0])], now_s=0.0)
    assert oracle.violations == []
    assert oracle.lags == {MAX_LAG: 1}
    oracle.update(oracle.head, [trajectory("b", nodes[0])], now_s=0.0)
    assert [violation.invariant for violation in oracle.violations] == ["I1"]


def test_age_above_the_budget_is_a_violation() -> None:
    oracle = new_truth()
    root = oracle.root()
    oracle.update(root, [trajectory("a", root, started_at_s=0.0)], now_s=MAX_AGE_S)
    assert oracle.violations == []
    oracle.update(oracle.head, [trajectory("b", root, started_at_s=0.0)], now_s=MAX_AGE_S + 0.1)
    assert [violation.invariant for violation in oracle.violations] == ["I1"]


def test_training_again_is_a_violation_only_on_the_same_branch() -> None:
    oracle = new_truth()
    root = oracle.root()
    oracle.update(root, [trajectory("a", root)], now_s=0.0)
    sibling = oracle.update(root, [trajectory("a", root)], now_s=0.0)
    assert oracle.violations == []
    oracle.update(sibling, [trajectory("a", root)], now_s=0.0)
    assert [violation.invariant for violation in oracle.violations] == ["I3"]


def test_same_update_by_a_learner_that_lost_its_lineage_is_not_the_one_that_is_recomputed() -> None:
    # Seed 19 with --max-lag 1 --central-inference: a second learner trains a batch and goes on; the first one, which
    # still holds that batch and has not noticed, trains it too; then a third restores and recomputes the second's.
    oracle = new_truth()
    root = oracle.root()
    first, second = oracle.opens_branch(), oracle.opens_branch()
    one, other = [trajectory("a", root)], [trajectory("b", root)]
    surviving = oracle.update(root, one, now_s=0.0, branch=second)
    newest = oracle.update(surviving, other, now_s=0.0, branch=second)
    oracle.update(root, one, now_s=0.0, branch=first)
    again = oracle.update_again(root, one)
    assert again == surviving
    assert oracle.update_again(again, other) == newest
    assert oracle.violations == []


def test_recomputing_an_update_from_another_batch_is_a_violation() -> None:
    oracle = new_truth()
    root = oracle.root()
    batch = [trajectory("a", root), trajectory("b", root)]
    oracle.update(root, batch, now_s=0.0, branch=oracle.opens_branch())
    oracle.update_again(root, batch[::-1])
    assert [violation.invariant for violation in oracle.violations] == ["I3"]


def test_part_of_a_group_is_a_violation() -> None:
    oracle = new_truth()
    root = oracle.root()
    whole = [trajectory(f"a.{index}", root, group="a", group_size=2) for index in range(2)]
    oracle.update(root, whole, now_s=0.0)
    assert oracle.violations == []
    oracle.update(root, [trajectory("b.0", root, group="b", group_size=2)], now_s=0.0)
    assert [violation.invariant for violation in oracle.violations] == ["I6"]


def test_two_policies_under_one_version_are_a_violation() -> None:
    oracle = new_truth()
    version = PolicyVersion(LineageName("0"), 1)
    for node in (1.0, 1.0):
        oracle.serves(version, {NODE_TENSOR: np.array([node], dtype=np.float32)})
    assert oracle.violations == []
    oracle.serves(version, {NODE_TENSOR: np.array([2.0], dtype=np.float32)})
    assert [violation.invariant for violation in oracle.violations] == ["I5"]
