"""Batches that the learner refused, and why, as sentences. No IO.

A run whose every batch is refused trains nothing, and would say only that it waits for the first batch.
"""

from tidegate.catalogue import learner as learner_stats
from tidegate.wire.stats import ServiceStats

# A refusal this old explains nothing about the present, if the learner has trained since.
RECENT_S = 60.0
# So many in a row, with no update between them, are why nothing is trained; one alone costs one batch.
IN_A_ROW_MIN = 2


class BatchRefusals:
    """How many batches the learner refused since its process started, and the reason of the last."""

    def __init__(self) -> None:
        self._count = 0.0
        self._in_a_row = 0.0
        self._version_step = 0.0
        self._reason = ""
        self._last_s = 0.0

    def receive(self, stats: ServiceStats, *, now_s: float) -> None:
        """Follow the report of the learner; those of others, and of one that has not started, are ignored."""
        version_step = stats.values.get(learner_stats.VERSION_STEP)
        if stats.service != "learner" or version_step is None:
            return
        count = stats.values.get(learner_stats.INVALID_BATCHES, 0.0)
        if count < self._count:  # the next process counts from zero
            self._count = self._in_a_row = 0.0
        if version_step != self._version_step:
            self._in_a_row, self._version_step = 0.0, version_step
        if count > self._count:
            self._in_a_row += count - self._count
            self._count, self._last_s = count, now_s
            self._reason = stats.labels.get(learner_stats.BATCH_REFUSAL, "")

    def blocking(self) -> str:
        """The reason why the learner trains nothing; empty unless its last batches were refused in a row."""
        if self._in_a_row < IN_A_ROW_MIN:
            return ""
        return (
            f"The learner refused its last {self._in_a_row:,.0f} batches, the newest because: {self._reason}"
        )

    def sentence(self, *, now_s: float) -> str:
        """The count, the age and the reason of the last refusal; empty if it was long ago and updates followed."""
        is_recent = now_s - self._last_s <= RECENT_S
        if not self._count or not (is_recent or self._in_a_row):
            return ""
        batches = f"{self._count:,.0f} {'batch' if self._count == 1 else 'batches'}"
        return (
            f"the learner refused {batches} since it started, the last {now_s - self._last_s:.0f} s ago:"
            f" {self._reason.rstrip('.')} (log events batch_invalid and trajectory_poisoned)"
        )
