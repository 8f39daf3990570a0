"""For how long each lease has not been renewed, so that a learner that went away gives its trajectories back.

Only time in which the store looked counts. After a stop of the store (a restart, a suspended machine) no learner could
have renewed anything, so every lease has its whole time again. Bounded by the leases; a slot is freed with the lease.
"""

from collections.abc import Collection, Iterable

# Between two looks at most so many periods count: what is beyond them the store itself stood still.
COUNTED_PERIODS_MAX = 3.0


class LeaseDeadlines:
    """Seconds since the last renewal of each lease, counted look by look."""

    def __init__(self, *, timeout_s: float, period_s: float) -> None:
        """``period_s``: from one look to the next."""
        self._timeout_s = timeout_s
        self._counted_s_max = COUNTED_PERIODS_MAX * period_s
        self._looked_at_s: float | None = None
        self._silent_s: dict[str, float] = {}

    def renew(self, batch_ids: Iterable[str]) -> None:
        """The learner of these leases is alive."""
        for batch_id in batch_ids:
            self._silent_s[batch_id] = 0.0

    def overdue(self, held: Collection[str], *, now_s: float) -> list[str]:
        """Which of the leases that are ``held`` were not renewed in time. ``now_s`` is monotonic."""
        elapsed_s = 0.0 if self._looked_at_s is None else now_s - self._looked_at_s
        counted_s = min(elapsed_s, self._counted_s_max)
        self._looked_at_s = now_s
        # A lease that is seen for the first time begins to count now.
        self._silent_s = {
            batch_id: self._silent_s[batch_id] + counted_s if batch_id in self._silent_s else 0.0
            for batch_id in held
        }
        return [batch_id for batch_id, silent_s in self._silent_s.items() if silent_s > self._timeout_s]
