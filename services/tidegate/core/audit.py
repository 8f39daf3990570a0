"""Conservation (I2): the reconciliation of the admission journal with the trajectory ledger.

The task queue's journal records what was admitted; the trajectory store's ledger records how it ended. Neither reads
the other, so a difference is a finding and not a rounding error.
"""

import msgspec

from tidegate.core.records import DropReason


class JournalTotals(msgspec.Struct, frozen=True):
    """The journal's side: trajectories the task queue admitted, and those it still counts as in flight."""

    admitted: int
    open: int
    published_tasks: int = 0
    epoch: int = 0
    position: int = 0
    retired: bool = False


class LedgerTotals(msgspec.Struct, frozen=True):
    """The ledger's side: rows by state.

    ``trained`` counts rows trained in the surviving lineage; ``trained_twice`` those used in more learner steps of it
    than allowed (always 0, I3); ``unknown`` rows whose id the journal never admitted (filled in by the audit).
    """

    available: int
    leased: int
    trained: int
    dropped: dict[DropReason, int]
    duplicates: int = 0
    quarantined: int = 0
    trained_twice: int = 0
    max_lag_trained: int = 0
    trained_by_lag: dict[int, int] = {}
    revived: int = 0

    def total_dropped(self) -> int:
        """Trajectories dropped for any reason."""
        return sum(self.dropped.values())

    def rows(self) -> int:
        """Every trajectory in the ledger, in any state."""
        return self.available + self.leased + self.trained + self.total_dropped()


class Audit(msgspec.Struct, frozen=True):
    """The answer of ``tidegate audit``; its fields are the keys of ``--json``.

    ``in_flight`` counts what is admitted and not terminal: ``awaiting`` (no row in the ledger yet: queued, being
    rolled out or scored), ``available`` and ``leased``. ``duplicates`` arrived when they had arrived or ended before (a
    task that was retired is still delivered) and changed nothing. ``unknown`` are ledger rows without an admission.
    """

    admitted: int
    trained: int
    dropped: dict[DropReason, int]
    in_flight: int
    awaiting: int
    available: int
    leased: int
    balanced: bool
    max_lag_trained: int
    trained_twice: int
    duplicates: int
    quarantined: int
    unknown: int
    revived: int
    max_lag: int | None = None
    problems: list[str] = []


def reconcile(
    journal: JournalTotals, ledger: LedgerTotals, *, unknown: int, awaiting: int, max_lag: int | None = None
) -> Audit:
    """Reconcile the journal with the ledger.

    ``awaiting`` and ``unknown`` are counted by id, not by subtraction: admitted ids without a ledger row, and ledger
    rows without an admitted id. Accounting balances when every admitted trajectory is found exactly once, nothing was
    trained twice, and no gradient overshot ``max_lag``.
    """
    problems: list[str] = []
    accounted = ledger.rows() - unknown + awaiting
    if accounted != journal.admitted:
        problems.append(f"{journal.admitted} trajectories were admitted and {accounted} are accounted for")
    if unknown:
        problems.append(f"the ledger holds {unknown} trajectories that were never admitted")
    if ledger.trained_twice:
        problems.append(f"{ledger.trained_twice} trajectories were trained more often than allowed")
    if max_lag is not None and ledger.max_lag_trained > max_lag:
        problems.append(f"a gradient used a lag of {ledger.max_lag_trained}, above max_lag {max_lag}")
    return Audit(
        admitted=journal.admitted,
        trained=ledger.trained,
        dropped=ledger.dropped,
        in_flight=awaiting + ledger.available + ledger.leased,
        awaiting=awaiting,
        available=ledger.available,
        leased=ledger.leased,
        balanced=not problems,
        max_lag_trained=ledger.max_lag_trained,
        trained_twice=ledger.trained_twice,
        duplicates=ledger.duplicates,
        quarantined=ledger.quarantined,
        unknown=unknown,
        revived=ledger.revived,
        max_lag=max_lag,
        problems=problems,
    )
