"""Tries a curriculum of one's own on the bins of a run's dataset, in a process that ends with it."""

import os
from collections import Counter
from pathlib import Path

from tidegate.core.errors import ConfigError
from tidegate.core.own_weights import CurriculumBin, too_many_bins
from tidegate.launch.inherited_environment import inherited
from tidegate.launch.own_code import CURRICULUM, own_code_of
from tidegate.launch.own_code_loading import asked
from tidegate.launch.run_plan import RunPlan
from tidegate.runtime.own_code.process import without_platform
from tidegate.task_queue.dataset import TRAIN_FILE, open_dataset
from tidegate.task_queue.own_curriculum.trial import TrialQuestion

TRIAL = "tidegate.task_queue.own_curriculum.trial"


def try_curriculum(plan: RunPlan, folder: Path) -> None:
    """Load it and ask it for weights, as the task queue will; nothing without one. ``folder``: of the rows.

    Raises:
        ConfigError: it cannot be loaded, or gives no usable weights, or the dataset has too many bins.
    """
    reference = own_code_of(plan).get(CURRICULUM)
    if reference is None:
        return
    dataset = open_dataset(folder / TRAIN_FILE)
    dataset.close()
    sizes = Counter(dataset.bins)
    why = too_many_bins(list(sizes))
    if why:
        raise ConfigError(
            f"{CURRICULUM}: {reference.written} cannot be used",
            why=why,
            fix="give the prompts fewer bins, or use learnable",
        )
    bins = tuple(CurriculumBin(name, size) for name, size in sizes.items())
    config = plan.services["task_queue"]
    deadline_s = config.curriculum_start_deadline_s + 2 * config.curriculum_deadline_s
    environ = inherited(os.environ, plan.file.pass_env)
    own = without_platform(environ)
    asked(
        TRIAL,
        TrialQuestion(reference, bins, plan.file.seed),
        setting=CURRICULUM,
        deadline_s=deadline_s,
        environ=own,
    )
