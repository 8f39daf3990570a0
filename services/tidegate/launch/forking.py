"""A new run from a checkpoint of another: its folder, before anything of it was started."""

from pathlib import Path

import msgspec
import yaml

from tidegate.core.errors import ConfigError, NotFoundError
from tidegate.core.ids import PolicyVersion, RunId
from tidegate.launch import run_folder as folders
from tidegate.launch.run_plan import RunPlan
from tidegate.launch.run_record import RunRecord
from tidegate.learner.checkpoint import checkpoints_in, fork
from tidegate.runtime.files import replace_file

CHECKPOINTS = Path("learner") / "checkpoints"
RUN_YAML = "run.yaml"


def find_checkpoint(folder: Path, version: PolicyVersion | None) -> tuple[Path, PolicyVersion]:
    """The newest checkpoint of a run folder that holds ``version``, or the newest of all.

    Raises:
        NotFoundError: no checkpoint holds it; the message names those there are.
    """
    directory = folder / CHECKPOINTS
    kept = checkpoints_in(directory) if directory.is_dir() else {}
    if not kept:
        raise NotFoundError(
            f"{folder} has no checkpoint",
            fix="wait: the learner writes one every learner.checkpoint_every_steps steps, and when it drains",
        )
    found = [(path, held) for path, held in kept.items() if version in (None, held)]
    if not found:
        raise NotFoundError(
            f"No checkpoint of {folder} holds version {version}",
            why=f"they hold {', '.join(map(str, kept.values()))}",
            fix="name one of these, or begin a run from the policy alone by begin_from (docs/policies.md); a run keeps"
            " more checkpoints with learner.keep_checkpoints and checkpoint_every_steps",
        )
    return found[-1]


def fork_run(parent: Path, plan: RunPlan, *, version: PolicyVersion | None, folder: Path) -> RunRecord:
    """Make ``folder`` the folder of a run that begins where ``parent`` was at ``version``; None is its newest.

    ``plan``: the fork's run file, with the parent's policy; it is written to ``run.yaml``, from which the fork can be
    resumed.

    Raises:
        NotFoundError: no checkpoint holds the version.
        CorruptionError: the checkpoint is damaged.
        ConfigError: the plan has another policy, or ``folder`` is not empty.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is not empty", fix="choose another --dir for the fork")
    if plan.document()["policy"] != folders.recorded_document(folders.read_record(parent)).get("policy"):
        raise ConfigError(
            "A fork cannot change `policy`",
            why="the parameters of the parent belong to its network",
            fix="leave policy out of --set, or start a run from scratch",
        )
    source, found = find_checkpoint(parent, version)
    record = folders.new_record(plan)
    run = fork(source, folder / CHECKPOINTS, run=RunId(record.run_id))
    record = msgspec.structs.replace(record, forked_from=f"{run} at {found}")
    folders.write_record(folder, record)
    replace_file(folder / RUN_YAML, yaml.safe_dump(record.run_file, sort_keys=False).encode())
    return record
