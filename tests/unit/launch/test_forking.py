"""The folder of a fork, before anything of it was started."""

from pathlib import Path

import msgspec
import pytest

from tests.unit.cli.run_folder import CARTPOLE, LINEAGE, write_checkpoints, write_run
from tidegate.core.errors import ConfigError, NotFoundError
from tidegate.core.ids import PolicyVersion
from tidegate.launch.forking import CHECKPOINTS, RUN_YAML, fork_run
from tidegate.launch.named_version import best_version_of
from tidegate.launch.run_file import read_run_file
from tidegate.launch.run_folder import read_plan, read_record, resumed_record, write_record
from tidegate.learner.checkpoint import checkpoints_in
from tidegate.runtime.best_version import BEST_FILE, BestVersion


def version(step: int) -> PolicyVersion:
    return PolicyVersion(lineage=LINEAGE, step=step)


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    """A run folder with checkpoints of versions 20 and 40."""
    folder = tmp_path / "parent"
    folder.mkdir()
    write_checkpoints(folder, steps=[20, 40])
    return folder


def test_fork_begins_at_the_newest_checkpoint_under_its_own_settings(parent: Path, tmp_path: Path) -> None:
    plan = read_run_file(CARTPOLE, ["seed=9"])
    record = fork_run(parent, plan, version=None, folder=tmp_path / "fork")
    assert record.run_id != read_record(parent).run_id
    assert record.forked_from == f"{read_record(parent).run_id} at {version(40)}"
    assert read_plan(tmp_path / "fork") == (record, plan)
    assert list(checkpoints_in(tmp_path / "fork" / CHECKPOINTS).values()) == [version(40)]
    # Its folder is resumed as any other, from the run file beside it.
    again = resumed_record(tmp_path / "fork", read_run_file(tmp_path / "fork" / RUN_YAML, []))
    assert (again.run_id, again.forked_from) == (record.run_id, record.forked_from)


def test_run_of_a_release_with_fewer_settings_is_forked_and_resumed(parent: Path, tmp_path: Path) -> None:
    record = read_record(parent)
    before = {
        **record.run_file,
        "workload": {key: value for key, value in record.run_file["workload"].items() if key != "envs"},
        "policy": {key: value for key, value in record.run_file["policy"].items() if key != "action_values"},
    }
    assert before["policy"] != record.run_file["policy"]
    assert before["workload"] != record.run_file["workload"]
    write_record(parent, msgspec.structs.replace(record, run_file=before))
    plan = read_run_file(CARTPOLE, [])
    fork_run(parent, plan, version=None, folder=tmp_path / "fork")
    assert resumed_record(parent, plan).run_id == record.run_id


def test_fork_at_an_older_version_takes_its_checkpoint(parent: Path, tmp_path: Path) -> None:
    fork_run(parent, read_run_file(CARTPOLE, []), version=version(20), folder=tmp_path / "fork")
    assert list(checkpoints_in(tmp_path / "fork" / CHECKPOINTS).values()) == [version(20)]


def test_best_version_of_a_run_is_the_one_that_weight_distribution_kept(parent: Path) -> None:
    with pytest.raises(NotFoundError, match="no best version yet"):
        best_version_of(parent)
    best = BestVersion(version=str(version(20)), score=475.0, measure="mean return", at_s=1.0)
    (parent / "weight_distribution").mkdir()
    (parent / "weight_distribution" / BEST_FILE).write_bytes(msgspec.json.encode(best))
    assert best_version_of(parent) == version(20)


def test_version_without_a_checkpoint_is_refused_with_those_there_are(parent: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"they hold 0-aaaa@20, 0-aaaa@40.*begin_from"):
        fork_run(parent, read_run_file(CARTPOLE, []), version=version(30), folder=tmp_path / "fork")
    assert not (tmp_path / "fork").exists()


def test_run_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "parent").mkdir()
    write_run(tmp_path / "parent")
    with pytest.raises(NotFoundError, match="has no checkpoint"):
        fork_run(tmp_path / "parent", read_run_file(CARTPOLE, []), version=None, folder=tmp_path / "fork")


def test_fork_with_another_policy_is_refused(parent: Path, tmp_path: Path) -> None:
    plan = read_run_file(CARTPOLE, ["policy.hidden=[8]"])
    with pytest.raises(ConfigError, match="A fork cannot change `policy`"):
        fork_run(parent, plan, version=None, folder=tmp_path / "fork")
    assert not (tmp_path / "fork").exists()


def test_folder_in_use_is_refused(parent: Path) -> None:
    with pytest.raises(ConfigError, match="is not empty"):
        fork_run(parent, read_run_file(CARTPOLE, []), version=None, folder=parent)
