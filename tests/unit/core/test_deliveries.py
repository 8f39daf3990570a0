"""How often work is delivered before it is dropped as failed."""

from tidegate.core.deliveries import (
    DELIVERIES_MAX,
    DELIVERIES_UNTIL_FAILED,
    fails_for_good,
    is_spent,
    spent_detail,
)


def test_work_that_fails_is_dropped_at_its_fifth_delivery_and_with_a_temporary_error_at_its_tenth() -> None:
    assert next(number for number in range(1, 12) if fails_for_good(number, retryable=False)) == 5
    assert next(number for number in range(1, 12) if fails_for_good(number, retryable=True)) == 10
    assert fails_for_good(2, retryable=False, until_failed=2)
    assert not fails_for_good(9, retryable=True, until_failed=2)


def test_work_whose_processes_were_killed_is_run_ten_times() -> None:
    assert next(number for number in range(1, 14) if is_spent(number)) == 11
    assert spent_detail(11).startswith("delivered 10 times without a result")


def test_delivery_that_is_still_run_can_drop_the_work_with_its_error() -> None:
    assert DELIVERIES_UNTIL_FAILED <= DELIVERIES_MAX
    assert not is_spent(DELIVERIES_MAX)
    assert fails_for_good(DELIVERIES_MAX, retryable=True)
