"""Which versions of a run a user finds on disk, and where they are read from."""

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.support.environments import CARTPOLE
from tests.unit.cli.policy.folders import balancing_params, version, write_policies
from tests.unit.cli.run_folder import write_run
from tidegate.core.errors import ConfigError, CorruptionError, NotFoundError
from tidegate.launch.stored_policy import (
    LEARNER,
    VERSIONS,
    WEIGHT_DISTRIBUTION,
    read_stored_policy,
    stored_version,
)
from tidegate.learner.environment_file import ENVIRONMENT_FILE
from tidegate.runtime.best_version import BEST_FILE, BestVersion


def test_newest_version_is_taken_wherever_it_is(tmp_path: Path) -> None:
    for number, (checkpoints, kept, newest) in enumerate([((20,), (18, 19), 20), ((10, 20), (20, 21), 21)]):
        folder = write_policies(tmp_path / str(number), checkpoints=checkpoints, kept=kept)
        stored = read_stored_policy(folder, None)
        assert stored.version == version(newest)
        for name, tensor in balancing_params(newest, folder).items():
            np.testing.assert_array_equal(stored.tensors[name], tensor)


def test_checkpoint_and_kept_version_give_the_same_tensors(tmp_path: Path) -> None:
    folder = write_policies(tmp_path, checkpoints=(20,), kept=(20,))
    by_checkpoint = read_stored_policy(folder, version(20)).tensors
    shutil.rmtree(folder / "learner" / "checkpoints")
    kept = read_stored_policy(folder, version(20)).tensors
    assert by_checkpoint.keys() == kept.keys()
    for name, tensor in kept.items():
        np.testing.assert_array_equal(by_checkpoint[name], tensor)


def test_version_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    folder = write_policies(tmp_path, checkpoints=(5,), kept=(18, 19, 20))
    with pytest.raises(NotFoundError) as refused:
        read_stored_policy(folder, version(7))
    assert "it holds 0-root@5, 0-root@18 to 0-root@20" in str(refused.value)


def test_run_without_a_version_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path)
    with pytest.raises(NotFoundError, match="holds no policy"):
        read_stored_policy(tmp_path, None)


def test_network_is_built_without_the_environment(tmp_path: Path) -> None:
    stored = read_stored_policy(write_policies(tmp_path), None)
    assert stored.description() == CARTPOLE
    policy = stored.policy()
    observations = {"observations": np.zeros((1, 4), np.float32)}
    assert policy.action_outputs(stored.tensors, observations, np).shape == (1, 2)


def test_folder_of_before_the_description_was_kept_asks_the_environment(tmp_path: Path) -> None:
    folder = write_policies(tmp_path)
    (folder / LEARNER / ENVIRONMENT_FILE).unlink()
    assert read_stored_policy(folder, None).description().env_id == "CartPole-v1"


def test_description_that_was_damaged_is_named(tmp_path: Path) -> None:
    folder = write_policies(tmp_path)
    (folder / LEARNER / ENVIRONMENT_FILE).write_text("{}")
    with pytest.raises(CorruptionError, match=ENVIRONMENT_FILE):
        read_stored_policy(folder, None).description()


def test_reading_changes_nothing(tmp_path: Path) -> None:
    folder = write_policies(tmp_path)
    (folder / VERSIONS / "7.partial").write_bytes(b"a version that arrives now")
    before = {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}
    read_stored_policy(folder, version(19))
    assert {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))} == before


def test_best_version_is_the_one_that_weight_distribution_recorded(tmp_path: Path) -> None:
    folder = write_policies(tmp_path, checkpoints=(20,), kept=(18, 20))
    with pytest.raises(NotFoundError, match="has no best version yet"):
        stored_version(folder, "best")
    best = BestVersion(str(version(18)), 480.0, "mean_return", 1.0)
    (folder / WEIGHT_DISTRIBUTION / BEST_FILE).write_bytes(msgspec.json.encode(best))
    assert stored_version(folder, "best").version == version(18)
    assert stored_version(folder, "newest").version == version(20)
    assert stored_version(folder, str(version(20))).version == version(20)
    with pytest.raises(ConfigError, match="--version latest is no version"):
        stored_version(folder, "latest")
