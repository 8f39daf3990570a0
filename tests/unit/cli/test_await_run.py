"""Conditions of `tidegate await`, and the message about a missing one."""

from tidegate.cli.await_run import check_growth, check_target_reached
from tidegate.core.targets import parse_target

BEFORE = {"admitted_total": 10.0, "trained_total": 8.0, "version_step": 4.0}


def test_target_is_done_when_it_holds_and_else_shows_what_there_is() -> None:
    target = parse_target("mean_return>=475")
    assert check_target_reached(target, {"mean_return": 480.0}) == (True, "mean_return>=475 holds")
    done, message = check_target_reached(target, {"mean_return": 12.0})
    assert not done
    assert "12.0" in message


def test_a_gradient_is_seen_when_all_three_counts_have_grown() -> None:
    after = {"admitted_total": 12.0, "trained_total": 10.0, "version_step": 5.0}
    done, message = check_growth(BEFORE, after)
    assert done
    assert "version_step 4 -> 5" in message


def test_what_did_not_grow_is_named() -> None:
    assert check_growth(BEFORE, BEFORE | {"admitted_total": 12.0}) == (
        False,
        "no growth of trained_total, version_step",
    )


def test_what_nobody_reported_yet_is_named() -> None:
    assert check_growth({}, {"admitted_total": 1.0}) == (
        False,
        "no statistics yet of trained_total, version_step",
    )
