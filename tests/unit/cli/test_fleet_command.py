"""``tidegate sim`` with fleets and chaos runs, as it is typed."""

import json
from pathlib import Path

import pytest

from tests.unit.cli.run_folder import START_S, write_accounting, write_samples
from tidegate.cli.app import EXIT_BAD_INPUT, run
from tidegate.cli.sim.tables import parse_seeds
from tidegate.core.errors import ConfigError

FLEET = ["sim", "--actors", "8", "--rollout", "exp:0.040", "--learn", "0.010", "--seed", "0", "--json"]


def printed(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    return json.loads(capsys.readouterr().out)


def test_synchronous_fleet_prints_its_round(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*FLEET, "--horizon", "2", "--mode", "sync"]) == 0
    report = printed(capsys)
    assert report["mode"] == "sync"
    assert report["samples"] == 8 * int(str(report["updates"]))
    assert report["lag_max"] == 0
    assert set(report) >= {
        "samples_per_s",
        "lag_mean",
        "lag_p95",
        "actor_idle_ratio",
        "learner_idle_ratio",
        "round",
    }


def test_asynchronous_fleet_is_bound_by_its_learner(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*FLEET, "--horizon", "2", "--mode", "async"]) == 0
    report = printed(capsys)
    assert 95 <= float(str(report["samples_per_s"])) <= 100
    assert int(str(report["lag_max"])) <= int(str(report["max_lag"]))


def test_fleet_without_admission_has_no_budget(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*FLEET, "--horizon", "2", "--no-admission"]) == 0
    assert printed(capsys)["max_lag"] is None


def test_table_of_a_fleet_says_what_it_took(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", "--actors", "2", "--rollout", "fixed:1", "--horizon", "5"]) == 0
    assert "events" in capsys.readouterr().out


@pytest.mark.slow
def test_sweep_writes_its_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "sweep.html"
    arguments = ["sim", "--sweep", "actors=2..4", "--rollout", "exp:0.040", "--horizon", "1"]
    assert run([*arguments, "--lag-bound", "2", "--html", str(page)]) == 0
    assert "sweep of actors" in capsys.readouterr().out
    assert page.read_text().startswith("<!doctype html>")


def test_chaos_run_reports_that_every_invariant_held(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", "--chaos", "--seed", "3", "--ticks", "400"]) == 0
    assert "every guarantee held" in capsys.readouterr().out


@pytest.mark.slow
def test_many_chaos_runs_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", "--chaos", "--seeds", "0..3", "--ticks", "300"]) == 0
    assert "4 chaos runs" in capsys.readouterr().out


@pytest.mark.slow
def test_violation_is_an_exit_code_and_a_line_to_replay(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidegate.fleet.actors import FleetActors

    def forget(actors: FleetActors, rollout: object) -> None:
        actors.overdue.clear()

    monkeypatch.setattr(FleetActors, "_redeliver", forget)
    assert run(["sim", "--chaos", "--seeds", "0..9", "--ticks", "400"]) == 1
    out = capsys.readouterr().out
    assert "FAILED" in out
    assert 'ARGS="--chaos --ticks 400"' in out


def test_run_folder_is_predicted_from_its_books(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_accounting(tmp_path, admitted=60, arrived=50, batches=2, retired=1)
    write_samples(tmp_path)
    steps = [
        {"at_s": START_S + 0.2 * number, "samples": 2, "lag_mean": 1.0, "wait_s": 0.15, "train_s": 0.04}
        for number in range(20)
    ]
    (tmp_path / "learner" / "steps.jsonl").write_text("\n".join(json.dumps(step) for step in steps))
    assert run(["sim", "--from-run", str(tmp_path), "--horizon", "20", "--json"]) == 0
    prediction = printed(capsys)
    # Two actors, as its run file says, with rollouts of 10 ms: more than an update of one every 50 ms can take.
    assert prediction["actors"] == 2
    assert prediction["measured_per_s"] == pytest.approx(10)
    assert prediction["predicted_per_s"] == pytest.approx(20, rel=0.02)
    assert run(["sim", "--from-run", str(tmp_path), "--horizon", "20"]) == 0
    assert "predicted" in capsys.readouterr().out


def test_run_that_trained_little_is_not_predicted(tmp_path: Path) -> None:
    write_accounting(tmp_path)
    assert run(["sim", "--from-run", str(tmp_path)]) == EXIT_BAD_INPUT


@pytest.mark.parametrize(
    "arguments",
    [
        ["--actors", "2", "--rollout", "soon"],
        ["--sweep", "colours=1..2"],
        ["--seeds", "0..3"],
        ["--chaos", "--seeds", "3..1"],
        ["--actors", "2", "--replicas", "100"],
    ],
)
def test_what_cannot_be_simulated_is_bad_input(arguments: list[str]) -> None:
    assert run(["sim", *arguments]) == EXIT_BAD_INPUT


def test_seeds_are_a_range_with_both_ends() -> None:
    assert parse_seeds("3..5") == range(3, 6)
    with pytest.raises(ConfigError):
        parse_seeds("3-5")
