import io
import json
import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.unit.cli.run_folder import write_accounting, write_run
from tidegate.cli.accounting import accounting_or_error
from tidegate.cli.up.history import last_update
from tidegate.cli.up.summary import (
    Summary,
    lag_summary,
    read_summary,
    render_summary,
    summarise,
    write_summary,
)
from tidegate.core.errors import CorruptionError, NotFoundError
from tidegate.core.prices import EXAMPLE_PRICES, Prices
from tidegate.core.receipt import EndedTotal, Receipt, Usage, receipt_of
from tidegate.core.targets import parse_target
from tidegate.launch.run_folder import read_plan
from tidegate.launch.session import CounterReading, EndedBy, RunOutcome, RunSession

OUTCOME = RunOutcome(
    ended_by="target",
    problem="",
    started_at_s=100.0,
    ended_at_s=140.0,
    first=CounterReading(at_s=110.0, trained_steps=1_000.0, cpu_s=8.0),
    last=CounterReading(at_s=140.0, trained_steps=61_000.0, cpu_s=14.0),
    generated_steps=62_000.0,
    version="0-aaaa@3",
    values={"version_step": 3.0, "trained_steps_total": 61_000.0, "mean_return": 480.0},
    restarts={"actor-0": 1, "learner": 0},
    memory_peak_mb={"actor-0": 45.0, "learner": 400.0},
    cpu_s=15.0,
    notes=["the last checkpoint failed: no answer in time"],
)


def session_of(folder: Path, *, target: str = "mean_return>=475") -> RunSession:
    record, plan = read_plan(folder)
    return RunSession(folder, record, plan, parse_target(target), None, 100.0)


def summary_of(
    folder: Path,
    *,
    ended_by: EndedBy = "target",
    target: str = "mean_return>=475",
    target_required: bool = True,
    trained: bool = True,
) -> Summary:
    outcome = msgspec.structs.replace(OUTCOME, ended_by=ended_by, first=OUTCOME.first if trained else None)
    return summarise(
        session_of(folder, target=target),
        outcome,
        accounting_or_error(folder),
        target_required=target_required,
        report=folder / "report.html",
        usage=Usage(starts=1, elapsed_s=40.0, cpu_s=15.0),
        receipt=None,
    )


def test_rates_are_taken_from_the_first_gradient_to_the_end_of_training(tmp_path: Path) -> None:
    write_accounting(tmp_path)
    summary = summary_of(tmp_path)
    assert summary.steps_per_s == pytest.approx(2_000)
    assert summary.steps_per_cpu_s == pytest.approx(10_000)
    assert summary.first_gradient_s == 10.0
    assert summary.first_gradient_cpu_s == 8.0
    assert summary.elapsed_s == 40.0


@pytest.mark.parametrize(
    ("ended_by", "target", "succeeded"),
    [
        ("target", "mean_return>=475", True),
        ("time", "mean_return>=475", False),
        ("time", "", True),
        ("interrupted", "", False),
        ("failed", "", False),
    ],
)
def test_run_succeeds_by_its_target_or_without_one_by_its_time(
    tmp_path: Path, ended_by: EndedBy, target: str, succeeded: bool
) -> None:
    write_accounting(tmp_path)
    assert summary_of(tmp_path, ended_by=ended_by, target=target).succeeded is succeeded


def test_run_that_its_time_limit_ends_succeeds_if_it_trained_and_no_target_was_required(
    tmp_path: Path,
) -> None:
    write_accounting(tmp_path)
    ended = summary_of(tmp_path, ended_by="time", target_required=False)
    assert ended.succeeded
    assert not ended.reached
    assert not summary_of(tmp_path, ended_by="time", target_required=False, trained=False).succeeded
    assert not summary_of(tmp_path, ended_by="failed", target_required=False).succeeded


def test_evaluation_has_a_row_of_its_own(tmp_path: Path) -> None:
    write_accounting(tmp_path)
    assert summary_of(tmp_path).evaluation_return is None
    values = {
        **OUTCOME.values,
        "evaluation_return": 490.5,
        "evaluation_return_min": 420.0,
        "evaluation_return_max": 500.0,
        "evaluation_episodes": 16.0,
    }
    outcome = msgspec.structs.replace(OUTCOME, values=values)
    problem = NotFoundError("there is no ledger")
    summary = summarise(
        session_of(tmp_path),
        outcome,
        problem,
        target_required=True,
        report=tmp_path / "report.html",
        usage=Usage(),
        receipt=None,
    )
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(render_summary(summary))
    assert "mean return 490, 420 to 500, of 16 greedy episodes" in console.export_text()


def receipt_with(prices: Prices) -> Receipt:
    """Of a run that trained one trajectory."""
    return receipt_of(
        "r",
        unit="steps",
        steps=1_000,
        trained=EndedTotal(trajectories=1, steps=1_000),
        dropped={},
        num_folded=0,
        usage=Usage(starts=1, elapsed_s=3600.0),
        prices=prices,
        replicas={"learner": 1},
    )


def test_steps_and_versions_are_those_trained_to_the_end_of_the_drain(tmp_path: Path) -> None:
    write_accounting(tmp_path)
    update = last_update(tmp_path)
    assert update["env_steps"] != OUTCOME.values["trained_steps_total"]
    summary = summary_of(tmp_path)
    assert (summary.env_steps, summary.versions) == (update["env_steps"], update["step"])


@pytest.mark.parametrize(
    ("prices", "is_shown"), [(EXAMPLE_PRICES, False), (Prices(learner_usd_per_h=12.0), True)]
)
def test_cost_is_shown_by_prices_of_the_run_file_alone(
    tmp_path: Path, prices: Prices, is_shown: bool
) -> None:
    write_accounting(tmp_path)
    summary = msgspec.structs.replace(summary_of(tmp_path), receipt=receipt_with(prices))
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(render_summary(summary))
    assert ("cost " in console.export_text()) == is_shown


def test_run_without_accounting_has_a_summary_and_no_success(tmp_path: Path) -> None:
    write_run(tmp_path)
    summary = summary_of(tmp_path)
    assert summary.audit is None
    assert not summary.succeeded
    assert "no ledger" in summary.audit_line


def test_summary_is_one_line_of_json_and_reads_back(tmp_path: Path) -> None:
    write_accounting(tmp_path)
    summary = summary_of(tmp_path)
    assert "\n" not in summary.to_json()
    write_summary(tmp_path, summary)
    assert read_summary(tmp_path) == json.loads(summary.to_json())
    assert json.loads(summary.to_json())["audit"]["balanced"] is True


def test_terminal_shows_target_audit_restarts_and_notes(tmp_path: Path) -> None:
    write_accounting(tmp_path)
    console = Console(width=120)
    with console.capture() as capture:
        console.print(render_summary(summary_of(tmp_path)))
    for part in (
        "the target was reached",
        "balanced: 12 admitted = 6 trained",
        "actor-0 1",
        "no answer in time",
        "480",
        "first gradient after 10.0 s and 8.0 CPU-s",
        "445 MB: learner 400, actor-0 45",
    ):
        assert part in capture.get()


@given(st.dictionaries(st.integers(0, 20), st.integers(1, 500), min_size=1))
def test_lag_summary_equals_the_one_of_all_lags_in_a_row(trained_by_lag: dict[int, int]) -> None:
    lags = sorted(lag for lag, count in trained_by_lag.items() for _ in range(count))
    summary = lag_summary(trained_by_lag, max_lag=20)
    assert summary is not None
    assert summary.mean == pytest.approx(sum(lags) / len(lags))
    assert summary.p95 == lags[math.ceil(0.95 * len(lags)) - 1]
    assert summary.max == lags[-1]


def test_nothing_trained_has_no_lag() -> None:
    assert lag_summary({}, max_lag=4) is None


def test_damaged_summary_is_an_error_with_a_sentence(tmp_path: Path) -> None:
    write_accounting(tmp_path)
    write_summary(tmp_path, summary_of(tmp_path))
    path = tmp_path / "summary.json"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CorruptionError, match=r"summary\.json cannot be read.*tidegate audit"):
        read_summary(tmp_path)


def test_failed_curriculum_is_named_in_the_summary_and_nothing_without_one(tmp_path: Path) -> None:
    write_accounting(tmp_path)
    summary = summary_of(tmp_path)
    assert "the curriculum failed" not in drawn(summary)
    failed = msgspec.structs.replace(summary, curriculum_problem="the curriculum failed 3 times")
    assert "the curriculum failed 3 times" in drawn(failed)


def drawn(summary: Summary) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(render_summary(summary))
    return console.export_text()
