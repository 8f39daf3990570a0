"""How often a trajectory may be used, and which uses count (I3).

A use is one gradient step, named by the version the gradient was applied to: a batch used at ``(L, s)`` produced
``(L, s + 1)``. A use survives in a version when the version it produced is an ancestor of it. Restored at step ``f``,
a learner keeps the updates made at steps below ``f``; the one made at ``f`` itself is lost and may be recomputed.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.core.staleness import LineageTree

# One epoch: each trajectory takes part in one gradient step of a surviving lineage.
USES_MAX = 1

# Beyond any step that a run reaches: the end of a lineage that is still being trained.
OPEN_END = 2**62


class Use(msgspec.Struct, frozen=True):
    """One gradient step that a trajectory (by its place in the ledger) took part in."""

    seq: int
    version: PolicyVersion


def produced_by(version: PolicyVersion) -> PolicyVersion:
    """The version that an update of ``version`` published."""
    return PolicyVersion(lineage=version.lineage, step=version.step + 1)


def update_survives(version: PolicyVersion, *, head: PolicyVersion, tree: LineageTree) -> bool:
    """Whether the update made at ``version`` is part of ``head``.

    Raises:
        UnknownVersionError: the lineage of ``head`` is not in the tree.
    """
    return tree.descends(head, produced_by(version))


def surviving_steps(head: PolicyVersion, tree: LineageTree) -> dict[LineageName, int]:
    """For each lineage that ``head`` descends from, the step below which updates are part of ``head``.

    The same rule as ``update_survives``, as bounds a database can search by. A lineage that is missing kept nothing.

    Raises:
        UnknownVersionError: the lineage of ``head`` is not in the tree.
    """
    return dict(tree.path(head))


def overused(uses: Iterable[Use], *, surviving: Mapping[LineageName, int], uses_max: int = USES_MAX) -> int:
    """How many trajectories took part in more surviving gradient steps than allowed; any but 0 breaks I3."""
    counts = Counter(use.seq for use in uses if use.version.step < surviving.get(use.version.lineage, 0))
    return sum(1 for count in counts.values() if count > uses_max)
