"""Preparation of a run before its services start: datasets as JSON lines, and the folder of a pretrained model."""

import subprocess
import sys
from pathlib import Path

import msgspec

from tidegate.core.errors import ConfigError, NotFoundError
from tidegate.environment.tasks.port import dataset_rows
from tidegate.environment.tasks.registry import get_task
from tidegate.launch.run_plan import RunPlan
from tidegate.models.model_folder import CACHE_DIR, check_files, pretrained_folder
from tidegate.models.smollm2 import SMOLLM2, smollm2_folder
from tidegate.runtime.files import replace_file
from tidegate.runtime.parent_death import dies_with_this_process
from tidegate.task_queue.dataset import HELD_OUT_FILE, TRAIN_FILE
from tidegate.task_queue.dataset_import import import_dataset

# Enough for a few hundred batches of a warm-up to differ; a task with fewer problems repeats them.
NUM_DEMONSTRATIONS = 8_192


def write_datasets(plan: RunPlan, folder: Path) -> None:
    """Write the problems and demonstrations of a text workload into ``folder``; segments read none.

    Problems are those of ``workload.dataset`` where it names one, else those of the environment. Existing files
    stay, so that a resumed run keeps its own and a user may provide others.

    Raises:
        ConfigError: there is no such text task, or the dataset cannot be read.
    """
    workload = plan.file.workload
    if workload.kind != "text":
        return
    try:
        task = get_task(workload.env)
    except NotFoundError as error:
        raise ConfigError(f"workload.env: {error.what}", fix=error.fix) from error
    import_dataset(workload.dataset, folder)
    folder.mkdir(parents=True, exist_ok=True)
    encoder = msgspec.json.Encoder()
    try:
        rows_by_file = dataset_rows(
            task, seed=plan.file.seed, num_demonstrations=NUM_DEMONSTRATIONS, bins=workload.bins
        )
    except NotFoundError as error:
        raise ConfigError(f"workload.bins: {error.what}", fix=error.fix) from error
    for name, rows in rows_by_file.items():
        path = folder / name
        # Problems of a user's dataset are held out by its own rule or not at all, never mixed with the environment's.
        brought = bool(workload.dataset.path) and name in (TRAIN_FILE, HELD_OUT_FILE)
        if not path.exists() and not brought:
            replace_file(path, encoder.encode_lines(rows))


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
        [sys.executable, "-m", "tidegate.cli.main", "model", SMOLLM2],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=dies_with_this_process(),
    )
    if made.returncode:
        raise ConfigError(
            f"SmolLM2-135M could not be built into {folder}",
            why=(made.stderr.strip().splitlines() or ["its process was killed"])[-1],
            fix="run `tidegate model smollm2` to see more; it takes 1.5 GB of memory and 270 MB on disk",
        )
