"""For which updates payloads stay because a learner that stands by has only an older checkpoint.

It says what it has whenever it asks for a newer one. It makes the updates since then again when its turn comes, so the
store keeps their payloads, although this learner's own checkpoints hold them. A checkpoint that is copied more slowly
than others are written would be useless otherwise.
"""

import math
from collections.abc import Sequence

from tidegate.core.errors import UnknownVersionError
from tidegate.core.ids import PolicyVersion
from tidegate.core.staleness import Lineage, LineageTree

# For a copy of a hundred gigabytes. One that stands by and has copied nothing for so long waits for a newer copy.
HELD_S_MAX = 600.0


class StandbyHold:
    """What the one that stands by has, and what it copies. Bounded: two versions, given up after ``HELD_S_MAX``."""

    def __init__(self, *, marked: PolicyVersion | None) -> None:
        """``marked``: payloads of the updates before it may be gone; None before the first checkpoint."""
        self._marked = marked
        self._known: PolicyVersion | None = None
        self._copied: PolicyVersion | None = None
        self._since_s = -math.inf

    def asked(self, known: PolicyVersion | None, *, newest: PolicyVersion | None, now_s: float) -> None:
        """It has ``known``, and asked for ``newest``. ``now_s`` is monotonic."""
        if known != self._known or known == newest or self._copied is None:
            self._known, self._since_s = known, now_s
        self._copied = newest

    def mark(self, oldest: PolicyVersion, lineages: Sequence[Lineage], *, now_s: float) -> PolicyVersion:
        """The version up to which no learner needs payloads; never one before an earlier answer of the same branch.

        ``oldest``: what this one's oldest checkpoint holds. ``lineages``: the tree that it is part of, parents first.
        """
        held = (self._known, self._copied) if now_s - self._since_s <= HELD_S_MAX else ()
        usable = (
            version
            for version in held
            if version is not None
            and self._marked is not None
            and self._marked.step <= version.step < oldest.step
            and _is_before(version, oldest, lineages)
        )
        self._marked = next(usable, oldest)
        return self._marked


def _is_before(known: PolicyVersion, oldest: PolicyVersion, lineages: Sequence[Lineage]) -> bool:
    tree = LineageTree().add_all(lineages)
    try:
        return tree.descends(oldest, known)
    except UnknownVersionError:  # of a branch that was abandoned
        return False
