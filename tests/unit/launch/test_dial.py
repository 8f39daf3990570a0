"""Whether max_lag alone decides how much rollouts and training overlap."""

from pathlib import Path

import pytest

from tidegate.cli.check import check
from tidegate.launch.dial import dial_notice
from tidegate.launch.run_file import read_run_file

RUNS = Path(__file__).parents[3] / "runs"


def notice(file: str, *sets: str) -> str:
    return dial_notice(read_run_file(RUNS / file, list(sets)))


def test_a_bound_below_the_budget_is_told_with_the_value_to_set() -> None:
    found = notice("arithmetic.yaml", "staleness.max_lag=8")
    assert "lag stays near 1" in found
    assert "Set max_running to 4608" in found
    assert not notice("arithmetic.yaml", "staleness.max_lag=8", "max_running=4608"), "the value that it names"


@pytest.mark.parametrize("file", ["cartpole.yaml", "smollm2.yaml", "apex.yaml"])
def test_a_run_whose_budget_alone_decides_has_no_notice(file: str) -> None:
    assert not notice(file)


@pytest.mark.slow
def test_check_tells_it(capsys: pytest.CaptureFixture[str]) -> None:
    check(RUNS / "arithmetic.yaml", set_=["staleness.max_lag=8"])
    assert "Set max_running to 4608" in " ".join(capsys.readouterr().out.split())
