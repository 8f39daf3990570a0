"""The datasets of a run, written as JSON lines before the services start."""

from pathlib import Path

import msgspec

from tidegate.cli.run_plan import RunPlan
from tidegate.core.errors import ConfigError, NotFoundError
from tidegate.environment.tasks.port import dataset_rows
from tidegate.environment.tasks.registry import get_task
from tidegate.runtime.files import replace_file

# Enough for a few hundred batches of a warm-up to differ; a task with fewer problems repeats them.
NUM_DEMONSTRATIONS = 8_192


def write_datasets(plan: RunPlan, folder: Path) -> None:
    """Write the problems and demonstrations of a text workload into ``folder``; segments read none.

    Files that are there already stay, so that a resumed run goes on with its own and a person may bring theirs.

    Raises:
        ConfigError: there is no such text task.
    """
    workload = plan.file.workload
    if workload.kind != "text":
        return
    try:
        task = get_task(workload.env)
    except NotFoundError as error:
        raise ConfigError(f"workload.env: {error.what}", fix=error.fix) from error
    folder.mkdir(parents=True, exist_ok=True)
    encoder = msgspec.json.Encoder()
    rows_by_file = dataset_rows(task, seed=plan.file.seed, num_demonstrations=NUM_DEMONSTRATIONS)
    for name, rows in rows_by_file.items():
        path = folder / name
        if not path.exists():
            replace_file(path, encoder.encode_lines(rows))
