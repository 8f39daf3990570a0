"""Which of a learner's instances works, where others stand by for its loss.

It decides nothing about what is trained: whichever instance opens a lineage, commits of the one before it are refused.
It only says when an instance that stands by may begin, so that two of them do not take turns. Nothing of it is kept: a
store that starts again waits as long for the one that worked as for one that fell silent.
"""

from tidegate.core.ids import PolicyVersion

# Each instance asks once a second; one that was not heard of for so long is taken for lost.
SILENT_S = 5.0
# Between two questions at most so much counts: what is beyond it, the store itself stood still.
COUNTED_S_MAX = 2.0


class LearnerTurn:
    """The instance that works, and for how long it was not heard of."""

    def __init__(self, *, begun: bool) -> None:
        """``begun``: a learner worked before, and may be about to ask."""
        self._works: str | None = None
        self._silent_s = 0.0 if begun else SILENT_S
        self._asked_at_s: float | None = None

    def keep(self, instance: str, *, works: bool, is_behind: bool, now_s: float) -> bool:
        """Whether it is this instance's turn. ``now_s`` is monotonic.

        ``works``: it got its turn before, maybe from a store that started again since. ``is_behind``: it would lose
        updates, and waits for the one that has them.
        """
        if self._asked_at_s is not None:
            self._silent_s += min(now_s - self._asked_at_s, COUNTED_S_MAX)
        self._asked_at_s = now_s
        returned = works and self._works is None
        follows = not works and not is_behind and self._silent_s >= SILENT_S
        if instance != self._works and not returned and not follows:
            return False
        self._works, self._silent_s = instance, 0.0
        return True

    def end(self, instance: str) -> None:
        """Another instance may follow at once."""
        if instance == self._works:
            self._works, self._silent_s = None, SILENT_S


def is_behind(checkpoint: PolicyVersion | None, *, needed: PolicyVersion | None, is_on_branch: bool) -> bool:
    """Whether a learner that begins from ``checkpoint`` would lose updates.

    ``needed``: payloads of the updates before it may be deleted; None while those of all updates are there.
    ``is_on_branch``: what the checkpoint holds was not abandoned.
    """
    if checkpoint is None:
        return needed is not None and needed.step > 0
    return not is_on_branch or (needed is not None and checkpoint.step < needed.step)
