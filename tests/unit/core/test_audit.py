"""The reconciliation of journal and ledger, against the known history of each trajectory."""

from collections import Counter
from typing import Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.cli.audit_lines import lines_of
from tidegate.core.audit import (
    BudgetTotals,
    JournalTotals,
    LearnerTotals,
    LedgerTotals,
    ReplayTotals,
    reconcile,
)
from tidegate.core.ids import LineageName, PolicyVersion
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
    audit = reconcile(journal, ledger_of(world), unknown=0, awaiting=awaiting)
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
    over = BudgetTotals(over=2, widest=9, worst="a lag of 5 under max_lag 4")
    stale = LedgerTotals(available=0, leased=0, trained=3, dropped={}, max_lag_trained=5, budgets=over)
    assert "more often than allowed" in reconcile(journal, twice, unknown=0, awaiting=0).problems[0]
    (problem,) = reconcile(journal, stale, unknown=0, awaiting=0).problems
    assert problem.startswith("2 uses were beyond")
    assert problem.endswith("a lag of 5 under max_lag 4")


def test_uses_without_a_noted_budget_are_said_and_do_not_unbalance() -> None:
    old = LedgerTotals(available=0, leased=0, trained=3, dropped={}, budgets=BudgetTotals(unnoted=3))
    audit = reconcile(JournalTotals(admitted=3, open=0), old, unknown=0, awaiting=0)
    assert (audit.balanced, audit.unnoted, audit.max_lag) == (True, 3, None)
    assert [line.count for line in lines_of(audit) if line.name == "budget unknown"] == [3]


def test_duplicates_and_quarantined_messages_are_counted_and_do_not_unbalance() -> None:
    journal = JournalTotals(admitted=1, open=0)
    ledger = LedgerTotals(
        available=0, leased=0, trained=1, dropped={}, duplicates=7, quarantined=2, revived=3
    )
    audit = reconcile(journal, ledger, unknown=0, awaiting=0)
    assert audit.balanced
    assert (audit.duplicates, audit.quarantined, audit.revived) == (7, 2, 3)


REPLAYED = ReplayTotals(
    inserted=100, sampled=640, recounted=640, sampled_at=512, lost_updates=0, overused=0, uses_max=8
)
DRAWN = LearnerTotals(PolicyVersion(LineageName("0-aaaa"), 8), 512)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"recounted": 641}, "updates used 640 units and 641 uses are counted by unit"),
        ({"lost_updates": 1}, "1 updates are committed without the units"),
        ({"overused": 2}, "2 units were used more often than uses_max 8"),
        ({"sampled_at": 511}, "the learner drew 512 units before 0-aaaa@8 and the ledger has 511"),
    ],
)
def test_uses_of_units_are_held_against_the_learner_s_own_count(
    changes: dict[str, int], problem: str
) -> None:
    journal = JournalTotals(admitted=1, open=0)
    ledger = LedgerTotals(available=0, leased=0, trained=1, dropped={}, replay=REPLAYED)
    sound = reconcile(journal, ledger, unknown=0, awaiting=0, learner=DRAWN)
    assert sound.balanced
    assert [line.count for line in lines_of(sound) if line.name.startswith("units")] == [100, 640, 512]
    broken = msgspec.structs.replace(ledger, replay=msgspec.structs.replace(REPLAYED, **changes))
    audit = reconcile(journal, broken, unknown=0, awaiting=0, learner=DRAWN)
    assert not audit.balanced
    assert problem in audit.problems[0]
