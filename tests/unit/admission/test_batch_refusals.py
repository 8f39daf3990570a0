"""Refused batches as sentences."""

from tidegate.admission.batch_refusals import RECENT_S, BatchRefusals
from tidegate.catalogue import learner as learner_stats
from tidegate.wire.stats import ServiceStats

REASON = "a unit has 3 observations of shape (4,), the policy takes (8,)"


def report(refused: int, *, step: int = 0, reason: str = REASON) -> ServiceStats:
    values = {
        str(learner_stats.VERSION_STEP): float(step),
        str(learner_stats.INVALID_BATCHES): float(refused),
    }
    labels = {str(learner_stats.BATCH_REFUSAL): reason} if refused else {}
    return ServiceStats("learner", "learner-0", "ready", 1.0, 0.0, values, labels)


def test_learner_that_refuses_every_batch_is_named_with_count_and_last_reason() -> None:
    refusals = BatchRefusals()
    for refused in range(1, 13):
        refusals.receive(report(refused), now_s=float(refused))
    assert refusals.blocking() == f"The learner refused its last 12 batches, the newest because: {REASON}"
    assert refusals.sentence(now_s=15.0).startswith(
        f"the learner refused 12 batches since it started, the last 3 s ago: {REASON}"
    )
    # Nothing was trained since, so the reason does not grow old.
    assert REASON in refusals.sentence(now_s=12.0 + 10 * RECENT_S)


def test_one_refusal_between_updates_blocks_nothing_and_is_told_for_a_minute() -> None:
    refusals = BatchRefusals()
    refusals.receive(report(0, step=4), now_s=0.0)
    refusals.receive(report(1, step=4), now_s=1.0)
    assert refusals.blocking() == ""
    refusals.receive(report(1, step=5), now_s=2.0)
    assert refusals.sentence(now_s=1.0 + RECENT_S) != ""
    assert refusals.sentence(now_s=2.0 + RECENT_S) == ""


def test_refusals_of_the_process_before_are_not_those_of_the_next() -> None:
    refusals = BatchRefusals()
    refusals.receive(report(5), now_s=0.0)
    refusals.receive(report(0), now_s=1.0)
    assert refusals.blocking() == ""
    refusals.receive(report(2), now_s=2.0)
    assert refusals.blocking().startswith("The learner refused its last 2 batches")


def test_nothing_is_said_without_a_refusal_or_of_another_service() -> None:
    refusals = BatchRefusals()
    refusals.receive(report(0), now_s=0.0)
    refusals.receive(
        ServiceStats("actor", "actor-0", "ready", 1.0, 0.0, dict(report(3).values), {}), now_s=1.0
    )
    assert refusals.blocking() == ""
    assert refusals.sentence(now_s=1.0) == ""
