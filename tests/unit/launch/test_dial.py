"""Whether max_lag alone decides how much rollouts and training overlap."""

from pathlib import Path

import pytest

from tidegate.cli.check import check
from tidegate.core.errors import ConfigError
from tidegate.launch.dial import dial_notice
from tidegate.launch.run_file import read_run_file

RUNS = Path(__file__).parents[3] / "runs"


def notice(file: str, *sets: str) -> str:
    return dial_notice(read_run_file(RUNS / file, list(sets)))


def test_a_bound_below_the_budget_is_told_with_the_value_to_set() -> None:
    found = notice("arithmetic.yaml", "staleness.max_lag=8")
    assert "lag stays near 1" in found
    assert "Remove max_running, which then is 4608" in found


def test_slots_that_hold_too_few_of_the_budget_are_told_with_the_value_to_set() -> None:
    followed = ("arithmetic.yaml", "staleness.max_lag=8", "max_running=0")
    found = notice(*followed)
    assert "hold 512 of the 4,608" in found
    assert "lag stays near 0" in found
    assert "until they hold 4,096" in found
    assert not notice(*followed, "actor.slots=256", "actor.prefetch=256"), "the value that it names"
    assert "hold 40 of the 192" in notice("smollm2.yaml"), "slots of samples, not of groups"


@pytest.mark.parametrize("max_lag", [0, 2, 8])
def test_trajectories_in_flight_follow_max_lag(max_lag: int) -> None:
    plan = read_run_file(RUNS / "cartpole.yaml", [f"staleness.max_lag={max_lag}"])
    assert plan.file.limits().max_running == max_lag + 1
    assert plan.document()["max_running"] == 0, "the run folder keeps that it follows"


def test_replay_wants_a_number() -> None:
    with pytest.raises(ConfigError, match="max_running is missing in a run with replay"):
        read_run_file(RUNS / "apex.yaml", ["max_running=0"])


@pytest.mark.parametrize("file", ["cartpole.yaml", "pong.yaml", "apex.yaml"])
def test_a_run_whose_budget_alone_decides_has_no_notice(file: str) -> None:
    assert not notice(file)


@pytest.mark.slow
def test_check_tells_it(capsys: pytest.CaptureFixture[str]) -> None:
    check(RUNS / "arithmetic.yaml", set_=["staleness.max_lag=8"])
    assert "Remove max_running" in " ".join(capsys.readouterr().out.split())
