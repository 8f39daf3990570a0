"""What really happened, recorded independently of everything that the services record.

Every policy that ever existed is a node of a tree: an update makes a child, a restored learner continues from the node
in its checkpoint. Policies carry their node as a tensor, and rollouts the nodes that made their steps. So the lag of a
trajectory, and whether it was used before, are known without a version, a lineage or a ledger.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from tidegate.core.ids import PolicyVersion, TaskId, TrajectoryId
from tidegate.core.records import Array, Trajectory

NODE_TENSOR = "node"
NODES_TENSOR = "nodes"
# A token is the node that chose it, plus this many times its answer.
ANSWER_UNIT = 1_000_000
# Further violations are not recorded.
VIOLATIONS_MAX = 20


class Violation(msgspec.Struct, frozen=True):
    """An invariant that does not hold: its name in docs/invariants.md, and the observation."""

    invariant: str
    detail: str

    def __str__(self) -> str:
        """The line that a failing run prints."""
        return f"{self.invariant}: {self.detail}"


class Oracle:
    """The tree of policies, who was trained where, and what was found wrong."""

    def __init__(self, *, max_lag: int, max_age_s: float) -> None:
        """``max_lag`` and ``max_age_s``: the staleness budget of every gradient."""
        self._max_lag = max_lag
        self._max_age_s = max_age_s
        self._parents: list[int] = []
        self._depths: list[int] = []
        self._node_of: dict[PolicyVersion, int] = {}
        # By the policy before and the batch: the branch that made the update, and the policy that it made.
        self._made_by: dict[tuple[int, tuple[TrajectoryId, ...]], tuple[int, int]] = {}
        self._num_branches = 0
        self._trained_by: dict[TrajectoryId, list[int]] = {}
        # Lags by trajectory, of the update that made a policy.
        self._lags_in: dict[int, dict[TrajectoryId, int]] = {}
        # Tasks whose rollouts an engine finished, by actor, since its process started.
        self._finished: dict[str, set[TaskId]] = {}
        # Those of actors that drained since: their rollouts must have been published.
        self._published: set[TaskId] = set()
        # When rollouts really started, by their task and what their actor's clock said.
        self._starts: dict[tuple[TaskId, float], float] = {}
        # The policy of the learner that made the last update or was restored last.
        self.head = 0
        self.num_updates = 0
        self.lags: dict[int, int] = {}
        self.violations: list[Violation] = []

    def violate(self, invariant: str, detail: str) -> None:
        """Record a violation."""
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(Violation(invariant, detail))

    # -- policies --------------------------------------------------------------------------------------------------

    def root(self) -> int:
        """A new, untrained policy."""
        return self._add(parent=-1, depth=0)

    def _add(self, *, parent: int, depth: int) -> int:
        self._parents.append(parent)
        self._depths.append(depth)
        self.head = len(self._parents) - 1
        return self.head

    def distance(self, one: int, other: int) -> int:
        """Updates between two policies through their nearest common ancestor."""
        steps = 0
        while one != other:
            if self._depths[one] == self._depths[other] == 0:
                break
            if self._depths[one] >= self._depths[other]:
                one = self._parents[one]
            else:
                other = self._parents[other]
            steps += 1
        return steps

    def is_ancestor(self, ancestor: int, node: int) -> bool:
        """Whether ``node`` is ``ancestor`` or was trained from it."""
        while self._depths[node] > self._depths[ancestor]:
            node = self._parents[node]
        return node == ancestor

    def serves(self, version: PolicyVersion, tensors: Mapping[str, Array]) -> int:
        """The node of a policy that is about to act; a version names one policy for ever (I5)."""
        node = int(tensors[NODE_TENSOR][0])
        known = self._node_of.setdefault(version, node)
        if known != node:
            self.violate("I5", f"version {version} was policy {known} and is now {node}")
        return node

    # -- finished work ---------------------------------------------------------------------------------------------

    def starts(self, actor: str) -> None:
        """A new process of an actor: it holds nothing of what an earlier one finished."""
        self._finished[actor] = set()

    def begins(self, tasks: Iterable[TaskId], *, recorded_s: float, now_s: float) -> None:
        """The engine of an actor starts rollouts at ``now_s``, which its clock says is ``recorded_s``."""
        for task in tasks:
            self._starts[task, recorded_s] = now_s

    def finishes(self, actor: str, tasks: Iterable[TaskId]) -> None:
        """The engine of an actor finished the rollouts of tasks."""
        self._finished[actor].update(tasks)

    def drained(self, instance: str) -> None:
        """A process exited in time: it has published all that it finished (I10)."""
        self._published |= self._finished.pop(instance, set())

    def take_published(self) -> set[TaskId]:
        """Tasks that drained actors must have published, each named once."""
        published, self._published = self._published, set()
        return published

    # -- gradients -------------------------------------------------------------------------------------------------

    def opens_branch(self) -> int:
        """A learner opened its lineage; returns its number among all that did."""
        self._num_branches += 1
        return self._num_branches

    def update(self, node: int, trajectories: Sequence[Trajectory], *, now_s: float, branch: int = 0) -> int:
        """A gradient is applied to a policy; returns the new one. ``branch``: who applied it, see ``opens_branch``."""
        child = self._add(parent=node, depth=self._depths[node] + 1)
        # Two learners at once may make the same update. A learner whose lineage another one ended commits nothing, so
        # its policy is not the one that a restore continues from, even if it was made later.
        key = node, _names(trajectories)
        self._made_by[key] = max(self._made_by.get(key, (branch, child)), (branch, child))
        self.num_updates += 1
        self._check_groups(trajectories)
        for trajectory in trajectories:
            earlier = self._trained_by.setdefault(trajectory.trajectory_id, [])
            if any(self.is_ancestor(other, child) for other in earlier):
                self.violate("I3", f"{trajectory.trajectory_id} is trained twice in one lineage")
            earlier.append(child)
        self._lags_in[child] = {
            trajectory.trajectory_id: self._check(trajectory, node=node, now_s=now_s)
            for trajectory in trajectories
        }
        return child

    def update_again(self, node: int, trajectories: Sequence[Trajectory]) -> int:
        """A restored learner recomputes an update: the same batch in the same order gives the same policy.

        With any difference it would be another gradient, which was never judged.
        """
        made = self._made_by.get((node, _names(trajectories)))
        if made is None:
            self.violate("I3", f"policy {node} is updated again with another batch than before")
            return self._add(parent=node, depth=self._depths[node] + 1)
        _, self.head = made
        return self.head

    def _check_groups(self, trajectories: Sequence[Trajectory]) -> None:
        """A group is trained whole (I6)."""
        sizes = {trajectory.group_id: trajectory.group_size for trajectory in trajectories}
        members = Counter(trajectory.group_id for trajectory in trajectories)
        for group, size in sizes.items():
            if members[group] != size:
                self.violate("I6", f"{members[group]} of the {size} members of group {group} are trained")

    def _check(self, trajectory: Trajectory, *, node: int, now_s: float) -> int:
        """Check a trajectory against the staleness budget (I1); returns its lag."""
        name = trajectory.trajectory_id
        self._check_versions(trajectory)
        nodes = {int(made_by) for made_by in np.unique(_nodes(trajectory))}
        lag = max(self.distance(node, made_by) for made_by in nodes)
        self.lags[lag] = self.lags.get(lag, 0) + 1
        if lag > self._max_lag:
            self.violate("I1", f"{name} was trained at lag {lag}, max_lag is {self._max_lag}")
        recorded_s = trajectory.started_at_s
        age_s = now_s - self._starts.get((trajectory.task_id, recorded_s), recorded_s)
        if age_s > self._max_age_s:
            self.violate("I1", f"{name} was trained {age_s:.1f} s old, max_age_s is {self._max_age_s:g}")
        return lag

    def _check_versions(self, trajectory: Trajectory) -> None:
        """Each step or token was made by the version in its record (I5), however many actors wrote it."""
        nodes = _nodes(trajectory)
        for span in trajectory.spans:
            wrong = nodes[span.start : span.stop] != self._node_of.get(span.version, -1)
            if wrong.any():
                self.violate(
                    "I5",
                    f"{trajectory.trajectory_id} has {int(wrong.sum())} positions that {span.version} did not make",
                )

    def trained(self) -> tuple[dict[TrajectoryId, int], set[TrajectoryId]]:
        """What the surviving policy was trained on and at which lag; and of it, what its last two updates used.

        Those two may not be in the ledger yet: the learner runs at most one step ahead of its commits.
        """
        everything: dict[TrajectoryId, int] = {}
        recent: set[TrajectoryId] = set()
        node, steps = self.head, 0
        while node >= 0:
            used = self._lags_in.get(node, {})
            everything.update(used)
            if steps < 2:
                recent.update(used)
            node, steps = self._parents[node], steps + 1
        return everything, recent


def _names(trajectories: Sequence[Trajectory]) -> tuple[TrajectoryId, ...]:
    return tuple(trajectory.trajectory_id for trajectory in trajectories)


def _nodes(trajectory: Trajectory) -> Array:
    """The policy that made each position."""
    nodes = trajectory.tensors.get(NODES_TENSOR)
    return trajectory.tensors["tokens"] % ANSWER_UNIT if nodes is None else nodes
