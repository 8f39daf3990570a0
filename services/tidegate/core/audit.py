"""Conservation (I2): the reconciliation of the admission journal with the trajectory ledger.

The task queue's journal records what was admitted; the trajectory store's ledger records how it ended. Neither reads
the other, so a difference is a finding and not a rounding error.
"""

import msgspec

from tidegate.core.ids import PolicyVersion
from tidegate.core.records import DropReason


class JournalTotals(msgspec.Struct, frozen=True):
    """The journal's side: trajectories the task queue admitted, and those it still counts as in flight."""

    admitted: int
    open: int
    published_tasks: int = 0
    epoch: int = 0
    position: int = 0
    retired: bool = False


class ReplayTotals(msgspec.Struct, frozen=True):
    """The ledger's side of replay, in units of sampling, of the updates that survive.

    ``inserted``: units that became complete. ``sampled``: uses by updates, ``recounted``: by units, and ``sampled_at``:
    by the updates of the learner's checkpoint (None where that is unknown); the three are counted apart.
    ``lost_updates``: updates without the units that they used. ``overused``: units used more often than ``uses_max``
    (0: unlimited). ``torn``: segments whose bytes a crash or a power cut took. ``priorities_refused``: not finite or
    negative; ``priorities_ignored``: of units that are evicted.
    """

    inserted: int
    sampled: int
    recounted: int
    sampled_at: int | None
    lost_updates: int
    overused: int
    uses_max: int
    torn: int = 0
    priorities_refused: int = 0
    priorities_ignored: int = 0


class BudgetTotals(msgspec.Struct, frozen=True):
    """The ledger's lags against the staleness budget in force when each was judged (I1), counted by an audit.

    ``over``: uses of trajectories, and sampled batches, with a lag above their budget; ``worst`` says one of them.
    ``unnoted``: uses whose budget the ledger does not say, because an older program trained them or a power cut took
    it; they are judged by none. ``widest``: the largest ``max_lag`` (versions) that an update was judged by.
    """

    over: int = 0
    unnoted: int = 0
    widest: int | None = None
    worst: str = ""


class LearnerTotals(msgspec.Struct, frozen=True):
    """The learner's side of replay, from its newest checkpoint: the units it had drawn before it updated ``version``.

    Later updates, whose commits may be on their way, are left out.
    """

    version: PolicyVersion
    sampled: int


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
    replay: ReplayTotals | None = None
    budgets: BudgetTotals = BudgetTotals()

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
    ``max_lag``: the widest budget that an update was judged by (versions); ``over_budget`` and ``unnoted``: see
    ``BudgetTotals``.
    ``replay`` and ``learner``: the two sides of the second entry; None without replay, or before the first checkpoint.
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
    over_budget: int = 0
    unnoted: int = 0
    problems: list[str] = []
    replay: ReplayTotals | None = None
    learner: LearnerTotals | None = None


def reconcile(
    journal: JournalTotals,
    ledger: LedgerTotals,
    *,
    unknown: int,
    awaiting: int,
    learner: LearnerTotals | None = None,
) -> Audit:
    """Reconcile the journal with the ledger.

    ``awaiting`` and ``unknown`` are counted by id, not by subtraction: admitted ids without a ledger row, and ledger
    rows without an admitted id. Accounting balances when every admitted trajectory is found exactly once, nothing was
    trained twice, and no gradient overshot the ``max_lag`` in force when it was judged. With replay a second entry has
    to agree: the units that the ledger counted as used with the samples that the ``learner`` counted itself.
    """
    problems: list[str] = []
    accounted = ledger.rows() - unknown + awaiting
    if accounted != journal.admitted:
        problems.append(f"{journal.admitted} trajectories were admitted and {accounted} are accounted for")
    if unknown:
        problems.append(f"the ledger holds {unknown} trajectories that were never admitted")
    if ledger.trained_twice:
        problems.append(f"{ledger.trained_twice} trajectories were trained more often than allowed")
    if ledger.budgets.over:
        problems.append(
            f"{ledger.budgets.over} uses were beyond the staleness budget in force when they were judged:"
            f" {ledger.budgets.worst}"
        )
    if ledger.replay is not None:
        problems += replay_problems(ledger.replay, learner)
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
        max_lag=ledger.budgets.widest,
        over_budget=ledger.budgets.over,
        unnoted=ledger.budgets.unnoted,
        problems=problems,
        replay=ledger.replay,
        learner=None if ledger.replay is None else learner,
    )


def replay_problems(replay: ReplayTotals, learner: LearnerTotals | None) -> list[str]:
    """Where the uses of units do not agree with each other, or with what the learner drew."""
    problems: list[str] = []
    if replay.lost_updates:
        problems.append(f"{replay.lost_updates} updates are committed without the units that they used")
    if replay.recounted != replay.sampled:
        problems.append(
            f"updates used {replay.sampled} units and {replay.recounted} uses are counted by unit"
        )
    if replay.overused:
        problems.append(f"{replay.overused} units were used more often than uses_max {replay.uses_max}")
    if learner is not None and replay.sampled_at is not None and replay.sampled_at != learner.sampled:
        problems.append(
            f"the learner drew {learner.sampled} units before {learner.version} and the ledger has {replay.sampled_at}"
        )
    return problems
