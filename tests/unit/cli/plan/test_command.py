import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.cli.run_folder import START_S, write_accounting, write_run
from tidegate.cli.app import run


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["plan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


SIXTEEN = (
    "--actors",
    "16",
    "--actor-rate",
    "1000",
    "--learner-rate",
    "12000",
    "--batch",
    "256",
    "--after",
    "60",
)


def test_plan_in_json_has_the_figures_of_the_calculator(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *SIXTEEN)
    balance = found["balance"]
    assert balance["bottleneck"] == "learner"
    assert balance["unbounded"] == {"queue": 240_000.0, "lag_updates": 937.5}
    assert found["learner_free_at"] == 2
    assert (found["rollouts"], found["measured"]) == (None, None)


def test_plan_ends_with_who_binds_what_to_change_and_what_it_costs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["plan", *SIXTEEN]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "240,000 samples queued, 937.5 updates behind" in printed
    assert printed.endswith(
        "The learner is the bottleneck at 12,000 samples/s (utilisation of actors 75%, of the learner 100%)."
        " Run 12 actors instead of 16: the same 12,000 samples/s for $0.2083 per million instead of $0.2546 (-18%)."
    )


def test_plan_of_rollouts_shows_both_steps_and_the_approximations(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--actors", "16", "--rollout", "lognormal:1:1", "--train", "0.5", "--reward-tail", "0.1"]
    assert run(["plan", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "the slowest of 16" in printed
    assert "+46.2%" in printed
    assert "+8.6%" in printed
    assert "Go asynchronous" in printed


def write_measured_run(folder: Path) -> None:
    """Two actors that wait half of their time and a learner that waits a fifth of its own, over ten seconds."""
    write_accounting(folder)
    samples = [
        {
            "at_s": START_S + at_s, "num_actors": 2, "num_environments": 1, "learner_samples_per_s": 4.0,
            "lag_mean": 1.5, "weight_pull_ms": 20.0,
            "values": {
                "actor.trajectories_total": 4.0 * at_s, "actor.wait_task_s_total": 0.8 * at_s,
                "actor.wait_policy_s_total": 0.1 * at_s, "actor.wait_publish_s_total": 0.1 * at_s,
                "learner.trained_trajectories_total": 4.0 * at_s, "learner.wait_batch_s_total": 0.2 * at_s,
                "environment.scored_total": 0.0,
            },
        }
        for at_s in (1.0, 11.0)
    ]  # fmt: skip
    (folder / "admission").mkdir()
    lines = msgspec.json.Encoder().encode_lines([{"at_s": START_S, "values": {}}, *samples])
    (folder / "admission" / "stats.jsonl").write_bytes(lines)


def test_plan_from_a_run_takes_what_stages_do_while_they_do_not_wait(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_measured_run(tmp_path)
    found = answer(capsys, "--from-run", str(tmp_path))
    loop = found["loop"]
    assert loop["actor_rate"] == pytest.approx(4.0, rel=1e-6), "2/s each at half of the time"
    assert loop["learner_rate"] == pytest.approx(5.0)
    assert (loop["num_actors"], loop["num_environments"], loop["batch_size"], loop["max_lag"]) == (2, 0, 1, 4)
    measured = found["measured"]
    assert measured["throughput_per_s"] == pytest.approx(4.0)
    assert measured["rollout_mean_s"] == pytest.approx(0.01, rel=1e-3)
    assert measured["weight_sync_s"] == pytest.approx(0.02)
    assert measured["lengths"] == {"mean": 64.0, "p50": 64.0, "p95": 64.0, "p99": 64.0, "max": 64.0}


def test_flags_go_before_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_measured_run(tmp_path)
    found = answer(capsys, "--from-run", str(tmp_path), "--actors", "6", "--learner-price", "9")
    assert found["loop"]["num_actors"] == 6
    assert found["prices"]["learner_usd_per_h"] == 9.0
    assert run(["plan", "--from-run", str(tmp_path)]) == 0
    assert "at a mean lag of 1.5" in " ".join(capsys.readouterr().out.split())


def test_run_that_trained_nothing_has_nothing_to_measure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path)
    assert run(["plan", "--from-run", str(tmp_path)]) == 2
    assert "no measurements yet" in capsys.readouterr().err
