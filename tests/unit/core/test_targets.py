import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.errors import ConfigError
from tidegate.core.targets import RunTarget, TargetCondition, parse_target, unknown_statistic_hint


@pytest.mark.parametrize(
    ("text", "value", "reached"),
    [
        ("mean_return>=475", 475.0, True),
        ("mean_return >= 475", 474.9, False),
        ("mean_return>475", 475.0, False),
        ("mean_return<=0.5", 0.5, True),
        ("mean_return < 5e-1", 0.5, False),
        ("mean_return>=-1.5", -1.0, True),
    ],
)
def test_condition_compares_as_it_is_written(text: str, value: float, reached: bool) -> None:
    assert parse_target(text).reached({"mean_return": value}) is reached


def test_conditions_joined_by_and_must_hold_at_once() -> None:
    target = parse_target("mean_return>=400 and version_step>=200")
    assert not target.reached({"mean_return": 450.0, "version_step": 199.0})
    assert not target.reached({"mean_return": 399.0, "version_step": 200.0})
    assert target.reached({"mean_return": 400.0, "version_step": 200.0})


def test_statistic_that_nobody_published_meets_no_target() -> None:
    assert not parse_target("loss<10").reached({})


def test_run_without_target_never_reaches_it() -> None:
    assert parse_target("  ") == RunTarget()
    assert not RunTarget().reached({"mean_return": 500.0})


@pytest.mark.parametrize(
    "text", ["mean_return=475", "mean_return", ">=3", "a>=b", "a>=1 or b>=1", "a>=1 and", "A>=1"]
)
def test_text_that_is_no_target_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="write it such as"):
        parse_target(text)


@given(
    name=st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True).filter(lambda name: name != "and"),
    operator=st.sampled_from([">=", "<=", ">", "<"]),
    threshold=st.integers(-(2**53), 2**53),
)
def test_condition_reads_back_what_it_prints(name: str, operator: str, threshold: int) -> None:
    target = parse_target(f"{name}{operator}{threshold}")
    assert parse_target(str(target)) == target
    assert target.conditions == (TargetCondition(name, operator, float(threshold)),)  # pyright: ignore[reportArgumentType]  # drawn


def test_statistic_that_nobody_publishes_is_named_with_the_nearest_one() -> None:
    values = {"mean_return": 1.0, "loss": 2.0, "restarts_total.actor-0": 0.0}
    assert (
        unknown_statistic_hint("mean_retrun", values)
        == "no service publishes mean_retrun; did you mean mean_return?"
    )
    assert unknown_statistic_hint("zebra", values) == "no service publishes zebra"
