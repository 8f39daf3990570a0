"""Curves of run folders, their comparison, and the command around both."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from tests.unit.cli.run_folder import CARTPOLE
from tidegate.cli.compare.command import compare
from tidegate.cli.compare.curves import by_name, grid, read_curve
from tidegate.cli.compare.page import compared, lines_of, render_comparison
from tidegate.core.errors import ConfigError, NotFoundError
from tidegate.launch.run_file import read_run_file
from tidegate.launch.run_folder import new_record, write_record


def write_ended_run(
    folder: Path, *, returns: list[float | None], seconds: float = 1.0, reached: bool = True
) -> Path:
    """A run of one update a ``seconds`` and 100 samples; its services use half a core."""
    (folder / "learner").mkdir(parents=True)
    (folder / "admission").mkdir()
    steps = [
        {"step": n, "at_s": 50.0 + seconds * n, "env_steps": 100 * n, "mean_return": value, "lag_mean": 2.0}
        for n, value in enumerate(returns, start=1)
    ]
    (folder / "learner" / "steps.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    samples = [
        {
            "at_s": 50.0 + n,
            "values": {
                "learner.cpu_s_total": 0.3 * n,
                "actor.cpu_s_total": 0.2 * n,
                "learner.busy_s_total": 7.0,
            },
        }
        for n in range(1, 200)
    ]
    (folder / "admission" / "stats.jsonl").write_text(
        "".join(json.dumps(sample) + "\n" for sample in samples)
    )
    summary: dict[str, Any] = {"reached": reached, "audit": {"balanced": True}}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def test_curve_begins_at_the_first_score_and_knows_all_axes(tmp_path: Path) -> None:
    curve = read_curve(write_ended_run(tmp_path / "run", returns=[None, 10.0, 20.0]), score="mean_return")
    assert curve.scores.tolist() == [10.0, 20.0]
    assert curve.positions["env_steps"].tolist() == [200.0, 300.0]
    assert curve.positions["seconds"].tolist() == [0.0, 1.0]
    assert curve.positions["cpu_s"] == pytest.approx([1.0, 1.5])
    assert curve.score_at("env_steps", np.array([0.0, 200.0, 250.0, 300.0, 900.0])).tolist() == [
        10.0, 10.0, 10.0, 20.0, 20.0,
    ]  # fmt: skip


def test_cpu_seconds_of_a_restarted_service_are_kept(tmp_path: Path) -> None:
    folder = write_ended_run(tmp_path / "run", returns=[1.0, 1.0, 1.0, 1.0])
    totals = [(51.0, 3.0), (52.0, 4.0), (53.0, 1.0), (54.0, 2.0)]
    lines = [json.dumps({"at_s": at_s, "values": {"learner.cpu_s_total": s}}) + "\n" for at_s, s in totals]
    (folder / "admission" / "stats.jsonl").write_text("".join(lines))
    assert read_curve(folder, score="mean_return").positions["cpu_s"].tolist() == [3.0, 4.0, 4.0, 5.0]


def test_run_that_did_not_end_or_has_no_score_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no run that ended"):
        read_curve(tmp_path, score="mean_return")
    folder = write_ended_run(tmp_path / "run", returns=[None])
    with pytest.raises(NotFoundError, match="has mean_return"):
        read_curve(folder, score="mean_return")


def test_run_that_reached_its_target_keeps_its_last_score_on_the_grid(tmp_path: Path) -> None:
    short = read_curve(write_ended_run(tmp_path / "a", returns=[0.0, 475.0]), score="mean_return")
    long = read_curve(write_ended_run(tmp_path / "b", returns=[0.0, 1.0, 2.0, 3.0]), score="mean_return")
    points = grid([short, long], "env_steps")
    assert (points[0], points[-1]) == (0.0, 400.0)
    assert short.score_at("env_steps", points)[-1] == 475.0


@pytest.mark.slow
def test_rows_hold_medians_to_the_end_and_the_interval_of_the_last_score(tmp_path: Path) -> None:
    runs = [
        ("fast", write_ended_run(tmp_path / "fast-1", returns=[1.0, 480.0])),
        ("fast", write_ended_run(tmp_path / "fast-2", returns=[1.0, 2.0, 500.0])),
        ("slow", write_ended_run(tmp_path / "slow-1", returns=[1.0] * 9, reached=False)),
    ]
    curves = by_name([(name, read_curve(folder, score="mean_return")) for name, folder in runs])
    fast, slow = compared(curves, seed=0)
    assert (fast.name, fast.num_runs, fast.num_reached, fast.num_balanced) == ("fast", 2, 2, 2)
    assert (fast.score, fast.env_steps, fast.seconds, fast.lag_mean) == (490.0, 250.0, 1.5, 2.0)
    assert 480.0 <= fast.score_low < fast.score < fast.score_high <= 500.0
    assert (slow.num_reached, slow.score, slow.env_steps) == (0, 1.0, 900.0)
    page = render_comparison(curves, [fast, slow], score="mean_return", seed=0)
    assert page.count("<svg") == 3
    for cell in lines_of([fast, slow])[0]:
        assert cell in page


@pytest.mark.slow
def test_runs_that_ended_are_not_trained_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (1, 2):
        folder = write_ended_run(tmp_path / "cartpole" / f"seed-{seed}", returns=[1.0, 475.0])
        write_record(folder, new_record(read_run_file(CARTPOLE, [f"seed={seed}"])))
    with pytest.raises(typer.Exit) as ended:
        compare([CARTPOLE], seeds=2, for_="1s", folder=tmp_path, json=True)
    assert ended.value.exit_code == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["num_runs"], row["num_reached"]) == ("cartpole", 2, 2)
    assert (tmp_path / "compare.html").is_file()


def test_run_of_an_earlier_comparison_with_other_settings_is_refused(tmp_path: Path) -> None:
    folder = write_ended_run(tmp_path / "cartpole" / "seed-1", returns=[1.0, 475.0])
    write_record(folder, new_record(read_run_file(CARTPOLE, ["seed=1", "staleness.max_lag=4"])))
    with pytest.raises(ConfigError, match="seed-1 holds a run with another `staleness`"):
        compare([CARTPOLE], seeds=1, set_=["staleness.max_lag=5"], folder=tmp_path)


def test_run_that_could_not_go_on_is_no_curve_of_a_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_ended_run(tmp_path / "cartpole" / "seed-1", returns=[1.0, 2.0])
    (folder / "summary.json").write_text('{"ended_by": "failed", "problem": "the learner crashed"}')

    def ended(*_arguments: object, **_options: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.CompletedProcess([], returncode=1, stderr="")

    monkeypatch.setattr(subprocess, "run", ended)
    with pytest.raises(ConfigError, match=r"ended early.*the learner crashed"):
        compare([CARTPOLE], seeds=1, folder=tmp_path)


def test_two_run_files_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="called cartpole"):
        compare([CARTPOLE, tmp_path / "cartpole.yaml"], folder=tmp_path)
