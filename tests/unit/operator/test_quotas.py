"""Who may start: quotas of runs and GPUs, in all and by namespace, first come first served."""

from typing import Any

import pytest

from tidegate.operator.config import QuotaConfig, QuotaLimits
from tidegate.operator.objects import RunKey
from tidegate.operator.quotas import QuotaDemand, QuotaVerdict, judge


def demand(name: str, created_at_s: float, gpus: int | None = 0, **also: Any) -> QuotaDemand:
    namespace, _, run = name.rpartition("/")
    return QuotaDemand(RunKey(namespace or "a", run), created_at_s, gpus, **also)


def verdicts(quota: QuotaConfig, *demands: QuotaDemand) -> dict[str, QuotaVerdict]:
    return {str(key).removeprefix("a/"): each for key, each in judge(demands, quota).items()}


def admitted(quota: QuotaConfig, *demands: QuotaDemand) -> set[str]:
    return {name for name, each in verdicts(quota, *demands).items() if each.fits}


def total(**limits: int) -> QuotaConfig:
    return QuotaConfig(total=QuotaLimits(**limits))


def test_without_quotas_all_may_start() -> None:
    assert admitted(QuotaConfig(), demand("x", 1, 800), demand("y", 2)) == {"x", "y"}


def test_the_first_that_came_are_the_first_that_start() -> None:
    later, sooner = demand("x", 2), demand("y", 1)
    assert admitted(total(runs=1), later, sooner) == {"y"}
    assert verdicts(total(runs=1), later, sooner)["x"].message == "1 of 1 runs of all namespaces are taken"


def test_of_the_same_second_the_name_decides() -> None:
    assert admitted(total(runs=1), demand("y", 1), demand("x", 1)) == {"x"}


def test_a_run_that_has_its_place_keeps_it_when_the_quota_is_lowered() -> None:
    holding = [demand(name, 1, 4, has_place=True, granted=4) for name in ("x", "y")]
    assert admitted(total(runs=1, gpus=2), *holding) == {"x", "y"}
    quiet = [demand(name, 1, None, has_place=True, granted=4) for name in ("x", "y")]
    found = verdicts(total(runs=2, gpus=10), *quiet, demand("z", 2, 3))
    assert found["z"].message == (
        "2 of 2 runs of all namespaces are taken; it asks for 3 GPUs, and 8 of 10 of all namespaces are taken"
    )


def test_one_that_asks_for_what_it_has_is_never_held_up() -> None:
    waits = demand("big", 1, 9)
    has = demand("x", 2, 4, has_place=True, granted=4)
    assert admitted(total(gpus=10), waits, has) == {"x"}


def test_more_gpus_wait_while_the_old_ones_are_kept() -> None:
    grows = demand("x", 1, 6, has_place=True, granted=2)
    other = demand("y", 2, None, has_place=True, granted=6)
    found = verdicts(total(gpus=10), grows, other)["x"]
    assert not found.fits
    assert found.message == "it asks for 4 GPUs, and 8 of 10 of all namespaces are taken"
    assert admitted(total(gpus=12), grows, other) == {"x"}


def test_a_large_run_is_not_overtaken_for_ever() -> None:
    busy = demand("busy", 0, None, has_place=True, granted=6)
    found = verdicts(total(gpus=8), busy, demand("large", 1, 8), demand("small", 2, 1))
    assert not found["large"].fits
    assert not found["small"].fits
    assert found["small"].message == "a/large waits before it"


def test_beyond_its_namespace_a_run_holds_up_no_other_namespace() -> None:
    quota = QuotaConfig(total=QuotaLimits(gpus=8), namespaces={"a": QuotaLimits(gpus=2)})
    found = verdicts(
        quota,
        demand("x", 0, None, has_place=True, granted=1),
        demand("first", 1, 2),
        demand("second", 2, 1),
        demand("b/other", 3, 4),
    )
    assert {name: each.fits for name, each in found.items()} == {
        "first": False,
        "second": False,
        "b/other": True,
    }
    assert found["second"].message == "a/first waits before it"


def test_other_namespaces_have_the_limits_of_each() -> None:
    quota = QuotaConfig(each_namespace=QuotaLimits(runs=1), namespaces={"a": QuotaLimits(runs=2)})
    demands = [demand(name, 1) for name in ("a/x", "a/y", "a/z", "b/x", "b/y", "c/x")]
    assert admitted(quota, *demands) == {"x", "y", "b/x", "c/x"}


def test_what_could_never_fit_holds_up_no_other_run() -> None:
    found = verdicts(total(gpus=4), demand("huge", 1, 8), demand("small", 2, 4))
    assert found["huge"].never
    assert found["small"].fits
    assert verdicts(total(runs=0), demand("x", 1))["x"].never


@pytest.mark.parametrize("gpus", [0, 1])
def test_a_run_without_gpus_is_not_measured_by_those_of_others(gpus: int) -> None:
    busy = demand("busy", 0, None, has_place=True, granted=4)
    assert admitted(total(gpus=4), busy, demand("x", 1, gpus)) == (set() if gpus else {"x"})
