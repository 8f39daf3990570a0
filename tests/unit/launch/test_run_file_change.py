"""``tidegate set``: what changes while a run works, and what is refused."""

import json
import os
from pathlib import Path

import pytest

from tests.unit.cli.run_folder import write_run
from tidegate.core.errors import ConfigError, FolderInUseError
from tidegate.launch.run_file_change import LOCK, change_run_file
from tidegate.launch.run_file_source import FILE_BYTES_MAX, RunFileSource
from tidegate.launch.run_folder import RUN_JSON, read_plan, read_record, write_record
from tidegate.runtime.files import lock_file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_record(tmp_path, write_run(tmp_path))
    return tmp_path


def test_a_service_reads_the_budget_that_the_command_wrote(folder: Path) -> None:
    source = RunFileSource(folder, user="learner")
    assert not source.changed()
    secret = read_record(folder).call_secret
    changed = change_run_file(folder, ["staleness.max_lag=7", "admission.scaling.max_replicas=3"])
    assert {path: now for path, (_, now) in changed.items()} == {
        "staleness.max_lag": 7,
        "admission.scaling.max_replicas": 3,
    }
    assert source.changed()
    assert not source.changed()
    sections = source.read()
    assert sections.staleness.max_lag == 7
    assert sections.scaling is not None
    assert sections.scaling.max_replicas == 3
    assert read_record(folder).call_secret == secret
    assert (folder / RUN_JSON).stat().st_mode & 0o077 == 0


def test_an_objective_is_changed_alone(folder: Path) -> None:
    changed = change_run_file(folder, ["slos.waste_ratio.bound=0.2"])
    assert list(changed) == ["slos.waste_ratio.bound"]
    assert read_plan(folder)[1].file.slos.waste_ratio.bound == 0.2


def test_the_same_value_writes_nothing(folder: Path) -> None:
    before = (folder / RUN_JSON).stat().st_mtime_ns
    max_lag = read_plan(folder)[1].file.staleness.max_lag
    assert change_run_file(folder, [f"staleness.max_lag={max_lag}"]) == {}
    assert (folder / RUN_JSON).stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("batch_size=4096", "batch_size"),
        ("admission.tick_s=2", "admission.tick_s"),
        ("learner.optimizer.learning_rate=0.5", "learner"),
        ("staleness.max_lag=-1", "max_lag"),
        ("staleness.max_lagg=1", "max_lagg"),
        ("staleness.max_lag=2000", "1024"),
        ("staleness", "path.to.key=value"),
    ],
)
def test_what_needs_a_restart_or_cannot_work_is_refused_and_nothing_is_written(
    folder: Path, override: str, named: str
) -> None:
    before = (folder / RUN_JSON).read_bytes()
    with pytest.raises(ConfigError) as raised:
        change_run_file(folder, ["staleness.max_age_s=77", override])
    assert named in str(raised.value)
    assert (folder / RUN_JSON).read_bytes() == before


def test_in_a_cluster_the_command_names_helm(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text("{}")
    with pytest.raises(ConfigError, match=r"helm upgrade .*--set run.staleness.max_lag=4"):
        change_run_file(tmp_path, ["staleness.max_lag=4"])


def test_two_changes_at_once_are_refused(folder: Path) -> None:
    held = lock_file(folder / LOCK)
    assert held is not None
    try:
        with pytest.raises(FolderInUseError):
            change_run_file(folder, ["staleness.max_lag=4"])
    finally:
        os.close(held)


def test_a_damaged_or_enormous_file_is_refused_with_a_sentence(folder: Path) -> None:
    source = RunFileSource(folder, user="learner")
    record = json.loads((folder / RUN_JSON).read_text())
    record["run_file"]["staleness"]["max_lag"] = "four"
    (folder / RUN_JSON).write_text(json.dumps(record))
    assert source.changed()
    with pytest.raises(ConfigError, match="max_lag"):
        source.read()
    (folder / RUN_JSON).write_text(" " * (FILE_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match="bytes"):
        source.read()
    (folder / RUN_JSON).unlink()
    assert not source.changed()
