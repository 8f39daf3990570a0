"""The mix of work on the stats board: what was admitted, what ended and what of it was trained, by bin and by length.

Counters are ``admitted_bin.<bin>_total``, ``decided_bin.<bin>_total``, ``trained_bin.<bin>_total``,
``decided_length.<length>_total`` and ``trained_length.<length>_total``. Decided is all that became terminal, and
``core.drift`` explains why it is the reference for the trained share. All are counted here, where each outcome passes
once, so that both sides of a comparison are of the same moment. Retired work and early-stopped groups are not counted:
neither was a choice of what to train. What never reached the store has length 0, so that cut long rollouts show as
well. Counts restart with the process.
"""

from collections.abc import Iterable, Sequence

from tidegate.catalogue import task_queue as statistics
from tidegate.core.ids import position_of
from tidegate.core.labels import Labels
from tidegate.core.lengths import length_bucket
from tidegate.core.records import Task
from tidegate.runtime.stats_board import StatsBoard
from tidegate.wire.clients.trajectory_store import Outcome

UNCOUNTED_REASONS = frozenset({"retired", "settled"})


class MixCounts:
    """Bounded: as many bins as ``Labels`` keeps, and the bins of the newest ``tasks_max`` tasks."""

    def __init__(self, stats: StatsBoard, *, tasks_max: int) -> None:
        """``tasks_max``: as many tasks as can be in flight; an older one's bin is taken from its outcome."""
        self._stats = stats
        self.tasks_max = tasks_max
        self._labels = Labels()
        # A task that never reached the store has an outcome without a bin: only the queue knows its bin.
        self._bins: dict[int, str] = {}

    def admitted(self, tasks: Sequence[Task], *, first_seq: int) -> None:
        """These were journaled, numbered from ``first_seq``."""
        for seq, task in enumerate(tasks, start=first_seq):
            self._bins[seq] = task.curriculum_bin
            self._stats.add(
                statistics.ADMITTED_IN_BIN.member(self._labels.of(task.curriculum_bin)), task.num_samples
            )
        while len(self._bins) > self.tasks_max:
            del self._bins[next(iter(self._bins))]

    def ended(self, outcomes: Iterable[Outcome]) -> None:
        """These became terminal just now."""
        for outcome in outcomes:
            if outcome.reason in UNCOUNTED_REASONS:
                continue
            where = position_of(outcome.trajectory_id)
            known = self._bins.get(where[0]) if where is not None else None
            name = self._labels.of(outcome.curriculum_bin if known is None else known)
            length = length_bucket(outcome.length_tokens)
            self._stats.add(statistics.DECIDED_IN_BIN.member(name))
            self._stats.add(statistics.DECIDED_AT_LENGTH.member(length))
            trained = float(outcome.state == "trained")
            # Adding nothing makes the series be there from the start: a bin that is never trained is a 0, not a gap.
            self._stats.add(statistics.TRAINED_IN_BIN.member(name), trained)
            self._stats.add(statistics.TRAINED_AT_LENGTH.member(length), trained)
