"""The description that the launcher leaves in the run folder: found again for the same settings only."""

import math
from pathlib import Path

import msgspec
import pytest

from tests.support.environments import CARTPOLE
from tidegate.runtime.config import WorkloadConfig
from tidegate.runtime.described_environment import FILE, read_description, write_description
from tidegate.runtime.environment_settings import FlattenObservation

WORKLOAD = WorkloadConfig(kind="segments", env="CartPole-v1", wrappers=(FlattenObservation(),))


def test_description_is_read_back_with_its_infinite_bounds(tmp_path: Path) -> None:
    write_description(tmp_path / "data", WORKLOAD, CARTPOLE)
    found = read_description(tmp_path / "data", WORKLOAD)
    assert found == CARTPOLE
    assert msgspec.structs.asdict(CARTPOLE.observation_space)["high"][1] == math.inf


@pytest.mark.parametrize(
    "changed",
    [
        {"env": "Acrobot-v1"},
        {"env_kwargs": {"sutton_barto_reward": True}},
        {"wrappers": ()},
        {"frame_stack": 2},
    ],
)
def test_description_of_other_settings_is_none(tmp_path: Path, changed: dict[str, object]) -> None:
    write_description(tmp_path, WORKLOAD, CARTPOLE)
    assert read_description(tmp_path, msgspec.structs.replace(WORKLOAD, **changed)) is None


@pytest.mark.parametrize("content", [b"", b"\x92\x00", b"no message pack"])
def test_file_that_is_no_description_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    assert read_description(tmp_path, WORKLOAD) is None


def test_folder_without_a_description_has_none(tmp_path: Path) -> None:
    assert read_description(tmp_path / "none", WORKLOAD) is None
