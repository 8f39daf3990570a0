import json
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from tests.unit.cli.run_folder import write_run, write_samples
from tests.unit.core.test_balance import window
from tidegate.cli.app import run
from tidegate.cli.explain import render, signals_of
from tidegate.core.balance import Signals, diagnose
from tidegate.core.fixes import advise
from tidegate.launch.run_folder import read_record, write_record
from tidegate.runtime.backup_state import BackupState, write_state
from tidegate.wire.clients.admission import BottleneckReport


def shown(signals: Signals, recommendation: str = "") -> str:
    found = diagnose(signals)
    answer = BottleneckReport(found.bottleneck, found.sentence, found.fix, signals.numbers(), recommendation)
    console = Console(width=200, record=True, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115
    console.print(render(answer, advise(signals)))
    return console.export_text()


def test_signals_come_back_from_the_numbers_that_travel() -> None:
    signals = window(paused=1.0)
    signals = msgspec.structs.replace(signals, paused=True, num_actors=3)
    assert signals_of({**signals.numbers(), "of_a_newer_version": 1.0}) == signals


def test_explain_says_who_what_for_how_much_and_why_nothing_else() -> None:
    text = shown(window(learner_idle_ratio=0.5, available=0.5))
    assert text.split()[:2] == ["bottleneck", "actor"]
    assert "about +50% throughput at $21.99 per million samples instead of $29.51 (-25%)." in text
    assert "$4.25 per hour, $29.51 per million samples" in text
    assert "not learner" in text
    assert "it waits 50% of its time already" in text


def test_explain_shows_the_recommended_number_of_actors_where_one_is_made() -> None:
    recommendation = "run 4 actors instead of 2: actor-bound"
    (line,) = [line for line in shown(window(), recommendation).splitlines() if line.startswith("scale")]
    assert line.split(maxsplit=1)[1].strip() == recommendation
    assert "scale" not in shown(window())


def test_explain_shows_gpus_where_there_are_any() -> None:
    assert "gpu" not in shown(window())
    text = shown(window(learner_gpus=2, learner_gpu_busy_ratio=0.31, learner_mfu=0.125))
    rows = dict(line.rsplit(maxsplit=1) for line in text.splitlines() if line.startswith("learner"))
    shown_now = {name.strip(): value for name, value in rows.items()}
    assert shown_now["learner gpu busy ratio"] == "31%"
    assert shown_now["learner mfu"] == "12%"
    assert "actor gpu" not in text


def test_explain_names_dearer_fixes_behind_the_best() -> None:
    text = shown(window(max_lag=0, learner_idle_ratio=0.5, actor_wait_task_ratio=0.5))
    fix, *others = [line for line in text.splitlines() if line.startswith(("fix", "or "))]
    assert "max_lag from 0 to 1" in fix
    assert len(others) == 2
    assert "add an actor" in others[0]


def test_explain_of_a_stopped_run_prices_its_fix_by_the_run_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path)
    record = read_record(tmp_path)
    prices = {"actor_usd_per_h": 1.5, "environment_usd_per_h": 0.0, "learner_usd_per_h": 6.0}
    write_record(tmp_path, msgspec.structs.replace(record, run_file={**record.run_file, "prices": prices}))
    write_samples(tmp_path)
    write_state(tmp_path, BackupState("s3://bucket/run", every_s=60.0))
    assert run(["explain", "--dir", str(tmp_path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["backup"] == "none is complete yet in s3://bucket/run"
    assert answer["bottleneck"] == answer["advice"]["bottleneck"] == "actor"
    assert answer["advice"]["usd_per_h"] == 2 * 1.5 + 6.0
    assert answer["advice"]["best"]["lever"] == "actor"
    assert answer["advice"]["best"]["added_usd_per_h"] == 1.5
    assert answer["advice"]["best"]["usd_per_million"] < answer["advice"]["usd_per_million"]
    assert "learner" in answer["advice"]["why_not"]


def test_explain_begins_with_a_full_disk() -> None:
    found = diagnose(window())
    answer = BottleneckReport(found.bottleneck, found.sentence, found.fix, window().numbers(), "")
    console = Console(width=200, record=True, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115
    console.print(render(answer, advise(window()), disk="disk full: 0.0 MB left"))
    assert console.export_text().splitlines()[0].strip().split(maxsplit=1) == [
        "disk",
        "disk full: 0.0 MB left",
    ]


def test_explain_names_the_newest_backup() -> None:
    found = diagnose(window())
    answer = BottleneckReport(found.bottleneck, found.sentence, found.fix, window().numbers(), "")
    console = Console(width=200, record=True, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115
    console.print(render(answer, advise(window()), backup="number 7 in s3://bucket"))
    assert ["backup", "number 7 in s3://bucket"] in [
        each.strip().split(maxsplit=1) for each in console.export_text().splitlines()
    ]
