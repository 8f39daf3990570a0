"""The check of a run before anything of it starts: its plan, its target, its environment, its model and its prompts.

Consumes a plan that ``run_parsing`` found consistent; produces a report, or the sentence why the run cannot work; waits
for processes that run the code of others; unblocked by their end, or by their deadlines. What
`tidegate up` refuses is refused here by the same functions.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from tidegate.core.sizing.learner_room import LearnerRoom
from tidegate.launch.carried_files import check_mounted
from tidegate.launch.curriculum_trial import try_curriculum
from tidegate.launch.environment_check import Described
from tidegate.launch.model_check import ModelFound, check_model
from tidegate.launch.model_fit import check_model_fits
from tidegate.launch.own_code import OwnCodeRecord, records_of
from tidegate.launch.own_code_loading import load_own_code
from tidegate.launch.preflight import check_environment
from tidegate.launch.preparation import write_datasets
from tidegate.launch.run_plan import RunPlan
from tidegate.launch.run_target import target_of
from tidegate.launch.warmup_check import WarmupFound, check_warmup
from tidegate.runtime.loading import load


class RunReport(msgspec.Struct, frozen=True):
    """What a run that can work consists of.

    ``target``: empty without one. ``environment``: of segments; None for text. ``model``: of a pretrained policy.
    ``warmup``: of demonstrations that the run file names.
    ``instances``: processes by service. ``own_code``: files by their digest, by setting.
    """

    run: str
    workload: str
    policy: str
    target: str
    instances: dict[str, int]
    environment: Described | None
    model: ModelFound | None
    own_code: dict[str, OwnCodeRecord] = {}
    warmup: WarmupFound | None = None


async def check_run(plan: RunPlan, *, room: LearnerRoom | None = None) -> RunReport:
    """Open the environment once, or read the prompts, and look at the model; nothing is kept.

    ``room``: what the learner will have, which its model must fit; None: this machine.

    Raises:
        ConfigError: the run cannot work.
        CorruptionError: a file that came with a release is another one.
    """
    file = plan.file
    target = target_of(plan)
    check_mounted(file.files_dir)
    own_code = records_of(plan)
    load_own_code(plan)
    if file.begin_from:
        load("tidegate.launch.begin_from:parent_of")(plan)
    check_model_fits(plan, room=room)  # before the libraries are loaded, which takes seconds
    model = check_model(file.policy)
    environment, warmup = None, None
    if file.workload.kind == "segments":
        environment = await check_environment(file.workload, file.policy, files_dir=file.files_dir)
    else:
        with TemporaryDirectory(prefix="tidegate-check-") as folder:
            write_datasets(plan, Path(folder))
            try_curriculum(plan, Path(folder))
            warmup = check_warmup(plan, Path(folder))
    return RunReport(
        run=file.run,
        workload=file.workload.title,
        policy=file.policy.kind,
        target=str(target),
        instances=plan.replicas,
        environment=environment,
        model=model,
        own_code=own_code,
        warmup=warmup,
    )
