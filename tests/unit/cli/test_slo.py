import json
from pathlib import Path

import pytest
from rich.console import Console

from tests.unit.cli.run_folder import write_run
from tidegate.admission.slo_file import SavedSlo, SloRecord, write_slos
from tidegate.cli.explain import broken_objectives
from tidegate.cli.slo import SloAnswer, objective_text, render, slo, slos_of_file
from tidegate.core.errors import NotFoundError
from tidegate.core.slo import Breach, Slo, SloState, Verdict, observe, update_condition

LAG = Slo("lag_p95", bound=4.0, target=0.95, window_s=600.0, unit="versions")
ESS = Slo("effective_sample_size", bound=0.1, target=0.9, window_s=7200.0, direction="at_least", unit="share")


def burnt(seconds: int) -> SloState:
    state = SloState()
    for second in range(seconds):
        state = observe(LAG, state, 9.0, at_s=float(second))
    return update_condition(LAG, state, now_s=float(seconds), cause="learner: never waits", wall_s=1000.0)[0]


def write_stopped(folder: Path) -> None:
    write_run(folder)
    (folder / "admission").mkdir()
    kept = {"lag_p95": SavedSlo(LAG, burnt(200)), "effective_sample_size": SavedSlo(ESS, SloState())}
    write_slos(folder / "admission" / "slos.json", SloRecord(2000.0, 199.0, kept))


def test_stopped_run_is_answered_from_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_stopped(tmp_path / "run")
    slo(folder=tmp_path / "run", json=True)
    answer = json.loads(capsys.readouterr().out)
    assert answer["running"] is False
    assert answer["headline"] == "1 breached (lag_p95), 1 no data"
    assert [each["condition"] for each in answer["slos"]] == ["breached", "no_data"]
    assert answer["slos"][0]["budget_left"] < 0
    assert answer["slos"][0]["last_breach"]["cause"] == "learner: never waits"
    slo(folder=tmp_path / "run", json=False)
    shown = capsys.readouterr().out
    for part in (
        "lag_p95",
        "≤ 4 versions for 95% over 10 min",
        "breached",
        "learner: never waits",
        "no data",
    ):
        assert part in shown, part


def test_folder_whose_admission_wrote_nothing_says_so(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    with pytest.raises(NotFoundError):
        slos_of_file(tmp_path / "run")


@pytest.mark.parametrize(
    ("objective", "text"),
    [
        (LAG, "≤ 4 versions for 95% over 10 min"),
        (ESS, "≥ 10% for 90% over 2 h"),
        (Slo("lag_max", bound=8.0, target=1.0, window_s=45.0), "≤ 8 for 100% over 45 s"),
    ],
)
def test_objective_reads_as_a_sentence(objective: Slo, text: str) -> None:
    assert objective_text(objective) == text


def test_table_has_a_line_for_every_objective_however_it_stands() -> None:
    verdicts = [
        Verdict(LAG, "ok", 2.0, 90.0, 1.0, 0.0, 0.8, 0.2, 0.0),
        Verdict(LAG, "burning", 7.0, 50.0, 9.0, 0.0, 0.1, 4.0, 5.0, Breach(940.0, 7.0, "actor: slow")),
        Verdict(LAG, "breached", 9.0, 1.0, 9.0, 0.0, -999.0, 1000.0, 0.0, Breach(0.0, None, "learner: slow")),
        Verdict(ESS, "no_data", None, 0.0, 0.0, 40.0, 1.0, 0.0, 0.0),
    ]
    console = Console(width=200)
    with console.capture() as captured:
        console.print(render(SloAnswer("run-1", True, "all of it", verdicts), now_s=1000.0))
    text = captured.get()
    for part in (
        "80%",
        "10%",
        "spent",
        "1 min ago at 7; actor: slow",
        "4.0 / 5.0",
        "16.7 min ago; learner: slow",
    ):
        assert part in text, part


def test_explain_names_the_broken_objective_its_cause_and_a_remedy(
    tmp_path: Path,
) -> None:
    write_stopped(tmp_path / "run")
    (broken,) = broken_objectives(tmp_path / "run")
    assert broken.name == "lag_p95"
    assert broken.sentence == (
        "breached at 9, objective ≤ 4 versions for 95% over 10 min: learner: never waits"
    )
    assert "max_lag" in broken.fix


def test_explain_of_a_run_without_objectives_breaks_none(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    assert broken_objectives(tmp_path / "run") == []
