"""The table of actors and ranks: efficiencies within a repetition, and predictions beside them."""

from pathlib import Path

import pytest

from benchmarks import scaling
from benchmarks.scaling import (
    FAMILIES,
    SETTINGS,
    Family,
    ScaledRun,
    efficiencies,
    markdown,
    planned_efficiencies,
    predict,
)
from benchmarks.setting import BenchSetting
from tidegate.core.errors import UnavailableError
from tidegate.launch.run_file import read_run_file

RUNS = Path(__file__).parents[3] / "runs"
FAMILY = Family("impala", "actors", (1, 2), "steps")


def measured(count: int, repetition: int, *, per_s: float, planned: float | None = None) -> ScaledRun:
    return ScaledRun(
        family=FAMILY,
        count=count,
        repetition=repetition,
        per_s=per_s,
        per_cpu_s=per_s / 2.0,
        others_cores=0.0,
        planned=planned,
        bottleneck="learner",
        wall_s=1.0,
        cpu_s=2.0,
        work=int(per_s),
    )


TWO = [measured(2, 0, per_s=150.0, planned=1.8), measured(2, 1, per_s=400.0, planned=None)]
ALL = [measured(1, 0, per_s=100.0, planned=1.0), measured(1, 1, per_s=200.0, planned=1.0), *TWO]


def test_efficiency_is_against_the_run_of_one_in_the_same_repetition() -> None:
    assert efficiencies(ALL, TWO) == [pytest.approx(0.75), pytest.approx(1.0)]
    assert efficiencies(ALL, ALL[:2]) == [1.0, 1.0]


def test_predictions_are_of_those_runs_that_could_be_predicted() -> None:
    assert planned_efficiencies(TWO) == [pytest.approx(0.9)]


def test_table_has_a_line_for_each_count_with_medians() -> None:
    assert markdown(ALL).splitlines()[2:] == [
        "| impala | 1 actors | 150.0 steps | 75.0 | 1.00 | 1.00 | learner |",
        "| impala | 2 actors | 275.0 steps | 137.5 | 0.88 | 0.90 | learner |",
    ]
    assert "not predicted" in markdown([measured(1, 0, per_s=1.0)])


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: f"{family.run_file}-{family.scaled}")
def test_every_family_is_a_run_file_that_takes_its_largest_count(family: Family) -> None:
    assert family.counts[0] == 1
    overrides = [f"{SETTINGS[family.scaled]}={family.counts[-1]}", "task_queue.evaluation_every_versions=0"]
    read_run_file(RUNS / f"{family.run_file}.yaml", overrides)


def test_round_that_fails_keeps_what_it_has_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    families = iter([ALL[:1], None])

    def measure(_setting: BenchSetting, _family: Family, _repetition: int) -> list[ScaledRun]:
        runs = next(families)
        if runs is None:
            raise UnavailableError("A platform ended")
        return runs

    monkeypatch.setattr(scaling, "_measure_family", measure)
    setting = BenchSetting(
        run_file=RUNS / "cartpole.yaml",
        folder=tmp_path,
        output=tmp_path / "round.json",
        quick=True,
        repetitions=None,
        seeds=1,
    )
    result = scaling.run(setting)
    assert [sample.work for sample in result.samples] == [100]
    assert "A platform ended" in result.problem
    assert (tmp_path / "round-scaling.md").read_text() == result.table


def test_run_without_measurements_is_not_predicted(tmp_path: Path) -> None:
    assert predict(FAMILY, 2, tmp_path) == (None, "unknown")
