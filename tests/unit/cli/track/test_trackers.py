"""A run in each tracker, opened again by the tracker's own reader, equals the run's files.

MLflow's client, W&B's own messages in its file, Trackio's database by its own API; `make trackers` installs them.
"""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from tests.unit.cli.run_folder import write_accounting, write_completions
from tidegate.cli.app import run
from tidegate.cli.receipt import read_receipt
from tidegate.cli.step_tail import curves_of
from tidegate.cli.track.follow import TrackedRun, finite
from tidegate.cli.track.mlflow import MLflow, allowed_name
from tidegate.cli.track.place import TrackedPlace
from tidegate.cli.track.port import Ending
from tidegate.cli.up.history import read_steps
from tidegate.launch.run_folder import read_record

# Each package takes some ten CPU-seconds to load.
of_packages = pytest.mark.extended


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed: make trackers")


def ended_run(folder: Path) -> Path:
    """A language model's run with samples, which has ended."""
    write_completions(folder, [("1+1=", "2", 1.0), ("1+1=", "3", 0.0), ("1+1=", "4", 0.5)])
    return end_run(folder, by="target")


def end_run(folder: Path, *, by: str) -> Path:
    """Write a summary after the last update."""
    summary = folder / "summary.json"
    summary.write_bytes(msgspec.json.encode({"ended_by": by}))
    ended_at_s = max(update["at_s"] for update in read_steps(folder)) + 1.0
    os.utime(summary, (ended_at_s, ended_at_s))
    return folder


def expected_curves(folder: Path) -> list[dict[str, float]]:
    return [
        {**finite(curves_of(update), section="train"), "step": update["step"]}
        for update in read_steps(folder)
    ]


def receipt_as_json(folder: Path) -> dict[str, Any]:
    return msgspec.json.decode(msgspec.json.encode(read_receipt(folder)))


def track(folder: Path, tracker: str, to: Path) -> None:
    assert run(["track", str(folder), "--with", tracker, "--to", str(to)]) == 0


@of_packages
@needs("mlflow")
def test_mlflow_reads_back_curves_settings_samples_and_receipt(tmp_path: Path) -> None:
    folder, to = ended_run(tmp_path / "run"), tmp_path / "mlflow"
    track(folder, "mlflow", to)
    track(folder, "mlflow", to)  # nothing comes twice
    client = import_module("mlflow.tracking.client").MlflowClient(f"sqlite:///{to / 'mlflow.db'}")
    [experiment] = [each for each in client.search_experiments() if each.name == "tidegate"]
    [found] = client.search_runs([experiment.experiment_id])
    assert found.info.run_name == read_record(folder).run_id
    assert found.info.status == "FINISHED"
    assert found.data.params["staleness.max_lag"] == str(read_record(folder).run_file["staleness"]["max_lag"])
    [update] = expected_curves(folder)
    step = update.pop("step")
    for name, value in update.items():
        [metric] = client.get_metric_history(found.info.run_id, allowed_name(name))
        assert (metric.step, metric.value) == (step, pytest.approx(value))
    place = Path(found.info.artifact_uri.removeprefix("file://"))
    samples = json.loads((place / "samples" / f"step-{step}.json").read_text())
    assert [(each["why"], each["completion"], each["reward"]) for each in samples] == [
        ("best", "2", 1.0),
        ("worst", "3", 0.0),
        ("random", "4", 0.5),
    ]
    assert json.loads((place / "receipt.txt").read_text()) == receipt_as_json(folder)
    assert json.loads((place / "summary.txt").read_text()) == {"ended_by": "target"}
    end_run(folder, by="failed")
    track(folder, "mlflow", to)
    assert client.get_run(found.info.run_id).info.status == "FAILED"


@of_packages
@needs("wandb")
def test_wandb_reads_back_curves_settings_samples_and_receipt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    folder, to = ended_run(tmp_path / "run"), tmp_path / "wandb"
    track(folder, "wandb", to)
    [file] = to.rglob("*.wandb")
    records = list(records_of(file))
    history = [
        {
            item.nested_key[0] if item.nested_key else item.key: json.loads(item.value_json)
            for item in each.history.item
        }
        for each in records
        if each.HasField("history")
    ]
    [update] = expected_curves(folder)
    assert {name: history[0][name] for name in update} == pytest.approx(update)
    [config] = [each.run for each in records if each.HasField("run")]
    assert config.run_id == read_record(folder).run_id
    settings = {
        item.key: json.loads(item.value_json)
        for each in records
        if each.HasField("config")
        for item in each.config.update
    }
    assert settings["staleness"] == read_record(folder).run_file["staleness"]
    [table] = to.rglob("*.table.json")
    assert [row[1] for row in json.loads(table.read_text())["data"]] == ["best", "worst", "random"]
    summary = {
        item.key or item.nested_key[0]: json.loads(item.value_json)
        for each in records
        if each.HasField("summary")
        for item in each.summary.update
    }
    assert json.loads(summary["receipt"]) == receipt_as_json(folder)


def records_of(file: Path) -> Iterator[Any]:
    """The messages in W&B's file: blocks of 32 KiB with pieces, each after its checksum, length and kind."""
    record: Any = import_module("wandb.proto.wandb_internal_pb2").Record
    data, place, message = file.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        message += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            parsed = record()
            parsed.ParseFromString(message)
            yield parsed
            message = b""


READ_TRACKIO = """
import json, sys
from trackio.sqlite_storage import SQLiteStorage
[run] = SQLiteStorage.get_runs("tidegate")
print(json.dumps([SQLiteStorage.get_run_config("tidegate", run), SQLiteStorage.get_logs("tidegate", run)], default=str))
"""


@of_packages
@needs("trackio")
def test_trackio_reads_back_curves_settings_samples_and_receipt(tmp_path: Path) -> None:
    folder, to = ended_run(tmp_path / "run"), tmp_path / "trackio"
    # Its folder is read when the package is loaded, so each has a process of its own.
    program = [
        sys.executable,
        "-m",
        "tidegate.cli.main",
        "track",
        str(folder),
        "--with",
        "trackio",
        "--to",
        str(to),
    ]
    subprocess.run(program, check=True, capture_output=True, timeout=240)
    read = subprocess.run(
        [sys.executable, "-c", READ_TRACKIO],
        env={**os.environ, "TRACKIO_DIR": str(to)},
        check=True,
        capture_output=True,
        timeout=240,
    )
    config, logs = json.loads(read.stdout.splitlines()[-1])
    assert config["staleness"] == read_record(folder).run_file["staleness"]
    [update] = expected_curves(folder)
    assert {name: logs[0][name] for name in update} == pytest.approx(update)
    [table] = [each["samples"] for each in logs if "samples" in each]
    assert "best" in json.dumps(table)
    assert any("receipt" in each for each in logs)


class Unreliable:
    """A tracker whose service fails at every other call."""

    def __init__(self) -> None:
        self.errors: tuple[type[Exception], ...] = (ConnectionError,)
        self.calls = 0
        self.taken: list[tuple[int, float]] = []

    def _fail_sometimes(self) -> None:
        self.calls += 1
        if self.calls % 2:
            raise ConnectionError

    def settings(self, run_file: Mapping[str, Any], *, at_s: float) -> None:
        self._fail_sometimes()

    def numbers(self, values: Mapping[str, float], *, step: int, at_s: float) -> None:
        self._fail_sometimes()
        if "train/loss" in values:
            self.taken.append((step, values["train/loss"]))

    def text(self, name: str, text: str, *, step: int, at_s: float) -> None:
        self._fail_sometimes()

    def table(self, name: str, rows: Sequence[Mapping[str, Any]], *, step: int, at_s: float) -> None:
        self._fail_sometimes()

    def flush(self) -> None:
        """Nothing is kept."""

    def close(self, ending: Ending) -> None:
        self._fail_sometimes()


def test_update_that_the_tracker_refused_comes_again_and_none_comes_twice(tmp_path: Path) -> None:
    write_accounting(tmp_path)
    tracker = Unreliable()
    follower = TrackedRun(tmp_path, tracker, tmp_path / "position.json")
    for _ in range(10):
        try:
            follower.send_new(now_s=0.0, over=False)
        except ConnectionError:
            continue
    assert tracker.taken == [(update["step"], update["loss"]) for update in read_steps(tmp_path)]


@pytest.mark.parametrize(
    ("ended_by", "ending"),
    [("target", "finished"), ("time", "finished"), ("interrupted", "killed"), ("failed", "failed")],
)
def test_tracker_is_told_how_the_run_ended(tmp_path: Path, ended_by: str, ending: Ending) -> None:
    write_accounting(tmp_path)
    end_run(tmp_path, by=ended_by)
    assert follow_to_the_end(tmp_path).ending() == ending


def test_run_that_was_killed_after_an_earlier_end_is_told_as_killed(tmp_path: Path) -> None:
    write_accounting(tmp_path)
    assert follow_to_the_end(tmp_path).ending() == "killed", "no summary"
    end_run(tmp_path, by="target")
    os.utime(tmp_path / "summary.json", (1.0, 1.0))
    assert follow_to_the_end(tmp_path).ending() == "killed", "the summary of an earlier start"


def follow_to_the_end(folder: Path) -> TrackedRun:
    follower = TrackedRun(folder, Recording(), folder / "position.json")
    follower.send_new(now_s=0.0, over=True)
    return follower


class Recording(Unreliable):
    """A tracker that takes everything."""

    def _fail_sometimes(self) -> None:
        return


def test_what_a_tracker_kept_and_never_sent_comes_again_in_another_process(tmp_path: Path) -> None:
    class Away(Recording):
        def flush(self) -> None:
            raise ConnectionError

    write_accounting(tmp_path, batches=3)
    position, after = tmp_path / "position.json", Recording()
    with pytest.raises(ConnectionError):
        TrackedRun(tmp_path, Away(), position).send_new(now_s=0.0, over=False)
    TrackedRun(tmp_path, after, position).send_new(now_s=0.0, over=False)
    assert [step for step, _ in after.taken] == [1, 2, 3]


def test_what_a_tracker_took_before_an_error_comes_in_no_other_process_again(tmp_path: Path) -> None:
    class WithoutTexts(Recording):
        def text(self, name: str, text: str, *, step: int, at_s: float) -> None:
            raise ConnectionError

    write_accounting(tmp_path, batches=3)
    end_run(tmp_path, by="target")
    position, after = tmp_path / "position.json", Recording()
    with pytest.raises(ConnectionError):
        TrackedRun(tmp_path, WithoutTexts(), position).send_new(now_s=0.0, over=False)
    TrackedRun(tmp_path, after, position).send_new(now_s=0.0, over=False)
    assert after.taken == []


def test_mlflow_gets_many_metrics_with_a_call_and_after_an_error_those_it_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeClient()
    entities = SimpleNamespace(Metric=metric)
    exceptions = SimpleNamespace(MlflowException=KeyError)
    for name, module in {
        "mlflow.tracking.client": SimpleNamespace(MlflowClient=Mock(return_value=client)),
        "mlflow.entities": entities,
        "mlflow.exceptions": exceptions,
        "requests": SimpleNamespace(RequestException=LookupError),
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    tracker = MLflow(TrackedPlace("run", "https://mlflow.example.com", tmp_path))
    expected = [("train/loss", float(step), step) for step in range(2500)]
    for _, value, step in expected:
        try:
            tracker.numbers({"train/loss": value}, step=step, at_s=0.0)
        except ConnectionError:
            tracker.numbers({"train/loss": value}, step=step, at_s=0.0)
    with pytest.raises(ConnectionError):
        tracker.flush()
    tracker.flush()
    assert client.taken == expected
    assert client.calls == 6, "three that took a thousand at most, each after one that failed"


def metric(name: str, value: float, _at_ms: int, step: int) -> tuple[str, float, int]:
    return name, value, step


class FakeClient:
    """MLflow's client of a server that fails at every other batch."""

    def __init__(self) -> None:
        self.calls = 0
        self.taken: list[Any] = []

    def get_experiment_by_name(self, _name: str) -> Any:
        return SimpleNamespace(experiment_id="0")

    def search_runs(self, *_: object, **__: object) -> list[Any]:
        return []

    def create_run(self, *_: object, **__: object) -> Any:
        return SimpleNamespace(info=SimpleNamespace(run_id="r"))

    def log_batch(self, _run: str, *, metrics: list[Any]) -> None:
        self.calls += 1
        if self.calls % 2:
            raise ConnectionError
        self.taken += metrics


def test_updates_after_a_rollback_are_tracked_although_their_steps_are_lower(tmp_path: Path) -> None:
    write_accounting(tmp_path, batches=3)
    tracker, position = Recording(), tmp_path / "position.json"
    TrackedRun(tmp_path, tracker, position).send_new(now_s=0.0, over=False)
    log = tmp_path / "learner" / "steps.jsonl"
    again = [
        msgspec.json.encode({**update, "lineage": "1-bbbb", "loss": 7.0})
        for update in read_steps(tmp_path)
        if update["step"] > 1
    ]
    log.write_bytes(log.read_bytes() + b"".join(line + b"\n" for line in again))
    for _ in range(2):
        TrackedRun(tmp_path, tracker, position).send_new(now_s=0.0, over=False)
    assert [step for step, _ in tracker.taken] == [1, 2, 3, 2, 3]
    assert tracker.taken[3:] == [(2, 7.0), (3, 7.0)]
