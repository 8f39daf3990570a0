"""Run folders with a policy of CartPole: checkpoints, kept versions, and the environment's description."""

from pathlib import Path

import numpy as np

from tests.support.environments import CARTPOLE
from tests.unit.cli.run_folder import write_run
from tests.unit.weight_distribution.offers import offer, take_in
from tidegate.core.ids import LineageName, PolicyVersion, RunId
from tidegate.core.records import Array
from tidegate.core.staleness import Lineage, LineageTree
from tidegate.launch.forking import CHECKPOINTS
from tidegate.launch.run_folder import read_plan
from tidegate.launch.stored_policy import LEARNER, VERSIONS
from tidegate.learner.checkpoint import Checkpoint, CheckpointFolder
from tidegate.learner.environment_file import write_environment
from tidegate.learner.optim.port import TrainerState
from tidegate.learner.state import TrainingProgress
from tidegate.models.policies import build_policy
from tidegate.weight_distribution.versions import VersionStore

ROOT = LineageName("0-root")
TREE = LineageTree().add(Lineage(name=ROOT))


def version(step: int) -> PolicyVersion:
    return PolicyVersion(lineage=ROOT, step=step)


def balancing_params(step: int, folder: Path) -> dict[str, Array]:
    """Parameters of the run file's network whose logits depend clearly on the observation."""
    _, plan = read_plan(folder)
    fresh = build_policy(CARTPOLE, plan.file.policy).init_params(np.random.default_rng(step))
    return {
        name: value * np.float32(100.0) if name == "policy.2.weight" else value
        for name, value in fresh.items()
    }


def write_policies(
    folder: Path, *, checkpoints: tuple[int, ...] = (20,), kept: tuple[int, ...] = (18, 19, 20)
) -> Path:
    """A folder whose learner wrote ``checkpoints``, and whose weight distribution keeps the versions ``kept``."""
    folder.mkdir(parents=True, exist_ok=True)
    record = write_run(folder)
    written = CheckpointFolder(folder / CHECKPOINTS, keep=10)
    for step in checkpoints:
        written.write(
            Checkpoint(
                run=RunId(record.run_id),
                policy_kind="mlp",
                progress=TrainingProgress(version=version(step)),
                lineages=(Lineage(name=ROOT),),
                consumed=(),
                policy=balancing_params(step, folder),
                trainer=TrainerState(tensors={}, values={}),
                written_at_s=1.0,
            )
        )
    store = VersionStore(folder / VERSIONS, keep_versions=10)
    for step in kept:
        take_in(store, offer(version(step), balancing_params(step, folder), tree=TREE))
    write_environment(folder / LEARNER, CARTPOLE)
    return folder
