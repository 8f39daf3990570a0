"""A run that begins from another's policy: which version, what is refused, and the learner that starts with it."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.environments import CARTPOLE
from tests.unit.cli.policy.folders import balancing_params, version, write_policies
from tidegate.core.errors import ConfigError, NotFoundError
from tidegate.launch.begin_from import BEGUN_FILE, parent_of, split_place, write_begun_policy
from tidegate.launch.run_file import read_run_file
from tidegate.launch.run_folder import new_record, read_plan, settings_of
from tidegate.launch.run_plan import RunPlan
from tidegate.learner import begun_policy
from tidegate.learner.begun_policy import begin_from_another
from tidegate.learner.checkpoint_tensors import write_tensors
from tidegate.learner.optim.port import Trainer
from tidegate.learner.optim.registry import TrainerSetting, open_trainer

CARTPOLE_RUN = Path(__file__).parents[3] / "runs" / "cartpole.yaml"
APEX_RUN = CARTPOLE_RUN.with_name("apex.yaml")


def plan(begin_from: str, *overrides: str) -> RunPlan:
    return read_run_file(CARTPOLE_RUN, [f"begin_from={begin_from}", *overrides])


@pytest.mark.parametrize(
    ("written", "place"),
    [
        ("runs/x", ("runs/x", "newest")),
        ("runs/x@best", ("runs/x", "best")),
        ("runs/x@0-3fa2@40", ("runs/x", "0-3fa2@40")),
        ("x@40", ("x@40", "newest")),
    ],
)
def test_folder_and_version_are_told_apart(written: str, place: tuple[str, str]) -> None:
    assert split_place(written) == place


def test_run_begins_from_the_version_that_it_names(tmp_path: Path) -> None:
    parent = write_policies(tmp_path / "parent", checkpoints=(20,), kept=(18, 20))
    said = write_begun_policy(plan(f"{parent}@{version(18)}"), tmp_path / "mine")
    assert said.endswith(f" at {version(18)}")
    assert BEGUN_FILE == begun_policy.BEGUN_FILE
    record, parents = read_plan(parent)
    trainer = open_trainer(
        TrainerSetting(
            settings_of(parent, record, parents.file),
            parents.services["learner"],
            torch.device("cpu"),
            description=CARTPOLE,
        )
    )
    assert begin_from_another(trainer, tmp_path / "mine" / "data")
    for name, tensor in balancing_params(18, parent).items():
        np.testing.assert_array_equal(trainer.policy()[name], tensor)
    assert not begin_from_another(trainer, tmp_path / "elsewhere")


def test_target_network_begins_as_a_copy_of_the_policy(tmp_path: Path) -> None:
    def apex(seed: int) -> Trainer:
        own = read_run_file(APEX_RUN, [f"seed={seed}"])
        folder = tmp_path / str(seed)
        settings = settings_of(folder, new_record(own), own.file)
        return open_trainer(
            TrainerSetting(settings, own.services["learner"], torch.device("cpu"), description=CARTPOLE)
        )

    policy, trainer = apex(1).policy(), apex(2)
    write_tensors(tmp_path / BEGUN_FILE, policy)
    assert begin_from_another(trainer, tmp_path)
    for name, tensor in policy.items():
        np.testing.assert_array_equal(trainer.policy()[name], tensor)
        np.testing.assert_array_equal(trainer.state().tensors[f"target/{name}"], tensor)


def test_policy_of_another_network_ends_the_start_with_a_sentence(tmp_path: Path) -> None:
    parent = write_policies(tmp_path / "parent", checkpoints=(20,))
    write_begun_policy(plan(str(parent)), tmp_path)
    record, parents = read_plan(parent)
    other = read_run_file(CARTPOLE_RUN, ["policy.hidden=[8]"])
    trainer = open_trainer(
        TrainerSetting(
            settings_of(parent, record, other.file),
            parents.services["learner"],
            torch.device("cpu"),
            description=CARTPOLE,
        )
    )
    with pytest.raises(ConfigError, match="The policy of begin_from does not fit"):
        begin_from_another(trainer, tmp_path / "data")


def test_what_a_run_cannot_begin_from_is_refused_before_it_starts(tmp_path: Path) -> None:
    parent = write_policies(tmp_path / "parent", checkpoints=(20,))
    with pytest.raises(NotFoundError, match="does not hold version 0-root@7"):
        parent_of(plan(f"{parent}@{version(7)}"))
    with pytest.raises(NotFoundError, match="is no run folder"):
        parent_of(plan(str(tmp_path / "nothing")))
    arithmetic = read_run_file(CARTPOLE_RUN.with_name("arithmetic.yaml"), [f"begin_from={parent}"])
    with pytest.raises(ConfigError, match=r"names a mlp policy, and policy\.kind is char_lm"):
        parent_of(arithmetic)
    assert parent_of(read_run_file(CARTPOLE_RUN, [])) is None
