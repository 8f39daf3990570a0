"""The reconciliation of journal and ledger, against the known history of each trajectory."""

from collections import Counter
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.audit import JournalTotals, LedgerTotals, reconcile
from tidegate.core.records import DROP_REASONS, DropReason

Fate = Literal["awaiting", "available", "leased", "trained", "dropped"]
FATES: tuple[Fate, ...] = ("awaiting", "available", "leased", "trained", "dropped")

fates = st.lists(st.tuples(st.sampled_from(FATES), st.sampled_from(DROP_REASONS)), max_size=60)


def ledger_of(world: list[tuple[Fate, DropReason]]) -> LedgerTotals:
    counts = Counter(fate for fate, _ in world)
    dropped = Counter(reason for fate, reason in world if fate == "dropped")
    return LedgerTotals(
        available=counts["available"],
        leased=counts["leased"],
        trained=counts["trained"],
        dropped={reason: dropped[reason] for reason in DROP_REASONS if dropped[reason]},
    )


@given(fates)
def test_accounting_of_a_correct_history_balances(world: list[tuple[Fate, DropReason]]) -> None:
    awaiting = sum(fate == "awaiting" for fate, _ in world)
    journal = JournalTotals(admitted=len(world), open=0)
    audit = reconcile(journal, ledger_of(world), unknown=0, awaiting=awaiting, max_lag=4)
    assert audit.balanced
    assert audit.problems == []
    assert audit.admitted == audit.trained + sum(audit.dropped.values()) + audit.in_flight
    assert audit.in_flight == audit.awaiting + audit.available + audit.leased


@given(fates, st.integers(1, 5))
def test_lost_trajectory_unbalances_the_accounting(
    world: list[tuple[Fate, DropReason]], num_lost: int
) -> None:
    awaiting = sum(fate == "awaiting" for fate, _ in world)
    journal = JournalTotals(admitted=len(world) + num_lost, open=0)
    audit = reconcile(journal, ledger_of(world), unknown=0, awaiting=awaiting)
    assert not audit.balanced
    assert f"{len(world) + num_lost} trajectories were admitted" in audit.problems[0]


@given(fates, st.integers(1, 5))
def test_unknown_rows_do_not_compensate_for_lost_trajectories(
    world: list[tuple[Fate, DropReason]], num_unknown: int
) -> None:
    """As many unknown rows as losses: the totals agree, and the accounting still does not balance."""
    awaiting = sum(fate == "awaiting" for fate, _ in world)
    stranger: tuple[Fate, DropReason] = ("available", "stale")
    strangers = [*world, *[stranger] * num_unknown]
    journal = JournalTotals(admitted=len(strangers), open=0)
    audit = reconcile(journal, ledger_of(strangers), unknown=num_unknown, awaiting=awaiting)
    assert not audit.balanced
    assert len(audit.problems) == 2


def test_second_training_and_overshot_lag_are_findings() -> None:
    journal = JournalTotals(admitted=3, open=0)
    twice = LedgerTotals(available=0, leased=0, trained=3, dropped={}, trained_twice=1)
    stale = LedgerTotals(available=0, leased=0, trained=3, dropped={}, max_lag_trained=5)
    assert "more often than allowed" in reconcile(journal, twice, unknown=0, awaiting=0).problems[0]
    assert "above max_lag 4" in reconcile(journal, stale, unknown=0, awaiting=0, max_lag=4).problems[0]
    assert reconcile(journal, stale, unknown=0, awaiting=0, max_lag=5).balanced
    assert reconcile(journal, stale, unknown=0, awaiting=0).balanced


def test_duplicates_and_quarantined_messages_are_counted_and_do_not_unbalance() -> None:
    journal = JournalTotals(admitted=1, open=0)
    ledger = LedgerTotals(
        available=0, leased=0, trained=1, dropped={}, duplicates=7, quarantined=2, revived=3
    )
    audit = reconcile(journal, ledger, unknown=0, awaiting=0, max_lag=0)
    assert audit.balanced
    assert (audit.duplicates, audit.quarantined, audit.revived) == (7, 2, 3)
