"""Chaos runs of the fleet: every invariant holds for every seed, and one seed is one run."""

import pytest

from tidegate.fleet.chaos import TICKS_MAX, ChaosReport, draw_chaos_run, replay_command, simulate_chaos
from tidegate.fleet.faults import FAULTS, Fault

pytestmark = pytest.mark.simulation

# Enough for all kinds of faults and fleets, and a few seconds.
SHORT_SEEDS, SHORT_TICKS = range(100), 400
LONG_SEEDS = range(1000, 1015)


def failures(reports: list[ChaosReport]) -> list[str]:
    return [f"{report.replay}: {report.violations[0]}" for report in reports if not report.passed]


def test_every_invariant_holds_in_short_chaos_runs() -> None:
    reports = [simulate_chaos(draw_chaos_run(seed, ticks_max=SHORT_TICKS)) for seed in SHORT_SEEDS]
    assert not failures(reports)
    assert sum(report.faults for report in reports) > 500
    assert sum(report.revived for report in reports) > 100
    # The runs contain what is checked.
    assert max(report.openings_per_tick_max for report in reports) > 1
    assert {reason for report in reports for reason in report.dropped} == {"stale", "expired", "superseded"}
    assert max(report.lag_max for report in reports if report.max_lag == 8) == 8


def test_throughput_recovers_in_long_chaos_runs() -> None:
    runs = [draw_chaos_run(seed) for seed in LONG_SEEDS]
    reports = [simulate_chaos(run) for run in runs]
    assert not failures(reports)
    ratios = [report.recovery_ratio for report in reports if report.recovery_ratio is not None]
    # A controlled budget moves the rate: those runs are not judged by it.
    assert len(ratios) >= 0.8 * sum(not run.plan.is_steered() for run in runs)
    assert min(ratios) > 0.9


@pytest.mark.parametrize("fault", FAULTS)
def test_every_kind_of_fault_alone_breaks_no_invariant(fault: Fault) -> None:
    reports = [
        simulate_chaos(draw_chaos_run(seed, ticks_max=SHORT_TICKS), faults={fault: 1})
        for seed in range(200, 204)
    ]
    assert not failures(reports)
    assert sum(report.faults for report in reports) > 0


def test_chaos_run_with_one_harmless_fault_keeps_its_rate() -> None:
    run = draw_chaos_run(5)
    report = simulate_chaos(run, faults={"admission_down": 1})
    assert report.passed
    assert report.recovery_ratio == pytest.approx(1, abs=0.05)
    assert report.revived == 0


def test_same_seed_is_the_same_run_and_another_seed_another() -> None:
    first, second = (simulate_chaos(draw_chaos_run(11, ticks_max=SHORT_TICKS)) for _ in range(2))
    assert first == second
    other = simulate_chaos(draw_chaos_run(12, ticks_max=SHORT_TICKS))
    assert (other.admitted, other.updates) != (first.admitted, first.updates)


def test_replay_command_names_the_whole_run() -> None:
    assert replay_command(7, ticks_max=TICKS_MAX) == "make sim SEED=7 ARGS=--chaos"
    assert replay_command(7, ticks_max=600) == 'make sim SEED=7 ARGS="--chaos --ticks 600"'
