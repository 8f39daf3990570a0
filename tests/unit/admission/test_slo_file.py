import json
from pathlib import Path

import msgspec

from tidegate.admission.slo_file import (
    SavedSlo,
    SloEvent,
    SloRecord,
    read_slos,
    restored,
    verdicts_of,
    write_slos,
)
from tidegate.core.slo import Change, Slo, SloState, observe, verdict

LAG = Slo("lag_p95", bound=4.0, target=0.9, window_s=600.0)


def bad_for(seconds: int, *, since_s: float) -> SloState:
    state = SloState()
    for second in range(seconds):
        state = observe(LAG, state, 9.0, at_s=since_s + second)
    return state


def test_budget_goes_on_after_a_restart_and_the_time_between_has_passed(tmp_path: Path) -> None:
    state = bad_for(100, since_s=5000.0)
    before = verdict(LAG, state, now_s=5099.0)
    path = tmp_path / "slos.json"
    write_slos(path, SloRecord(at_s=1e9, clock_s=5099.0, slos={"lag_p95": SavedSlo(LAG, state)}))
    # The new process has a new monotonic clock; 60 s of wall time passed.
    states = restored(read_slos(path), {"lag_p95": LAG}, now_s=3.0, wall_s=1e9 + 60.0)
    assert verdict(LAG, states["lag_p95"], now_s=3.0).bad == before.bad
    assert verdict(LAG, states["lag_p95"], now_s=3.0 + 430.0).bad == before.bad
    assert verdict(LAG, states["lag_p95"], now_s=3.0 + 545.0).condition == "no_data"


def test_objective_with_a_changed_declaration_starts_empty(tmp_path: Path) -> None:
    path = tmp_path / "slos.json"
    write_slos(path, SloRecord(1e9, 100.0, {"lag_p95": SavedSlo(LAG, bad_for(50, since_s=0.0))}))
    other = msgspec.structs.replace(LAG, bound=2.0)
    assert restored(read_slos(path), {"lag_p95": other}, now_s=0.0, wall_s=1e9) == {"lag_p95": SloState()}


def test_wall_clock_that_went_back_restores_all_the_same(tmp_path: Path) -> None:
    record = SloRecord(1e9, 50.0, {"lag_p95": SavedSlo(LAG, bad_for(50, since_s=0.0))})
    states = restored(record, {"lag_p95": LAG}, now_s=7.0, wall_s=1e6)
    assert verdict(LAG, states["lag_p95"], now_s=7.0).bad == 50.0


def test_file_that_is_missing_cut_or_nonsense_is_no_history(tmp_path: Path) -> None:
    path = tmp_path / "slos.json"
    assert read_slos(path) is None
    for content in (b"", b'{"at_s": 1', b"\xff\xfe", b'{"at_s": "x"}'):
        path.write_bytes(content)
        assert read_slos(path) is None
    assert restored(None, {"lag_p95": LAG}, now_s=0.0, wall_s=0.0) == {"lag_p95": SloState()}


def test_stopped_run_keeps_its_last_verdicts() -> None:
    state = bad_for(100, since_s=0.0)
    record = SloRecord(
        at_s=1e9, clock_s=99.0, slos={"lag_p95": SavedSlo(LAG, state), "ess": SavedSlo(LAG, SloState())}
    )
    assert [each.condition for each in verdicts_of(record)] == ["breached", "no_data"]


def test_event_is_one_flat_line() -> None:
    change = Change("lag_p95", "ok", "burning", 9.0, 4.0, 0.5, "learner: never waits")
    line = SloEvent(1.5, "breach", change).line()
    assert line.endswith(b"\n")
    assert json.loads(line) == {
        "at_s": 1.5,
        "event": "breach",
        "slo": "lag_p95",
        "before": "ok",
        "after": "burning",
        "value": 9.0,
        "bound": 4.0,
        "budget_left": 0.5,
        "cause": "learner: never waits",
    }
