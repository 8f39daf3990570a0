"""The beginning of a run, in the order that refuses one which cannot work before it costs anything.

The environment is tried first, in a fork of a process that has loaded little yet, and meanwhile the process loads what
its services share. Only then are the fork servers made, which load torch.
"""

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tidegate.core.errors import FolderInUseError
from tidegate.launch.cores import check_machine
from tidegate.launch.fork_server.preloading import fork_servers_first, load_shared
from tidegate.launch.model_fit import check_model_fits
from tidegate.launch.preflight import Preflight, PreflightError
from tidegate.launch.run_folder import PROCESSES_JSON
from tidegate.launch.run_plan import RunPlan
from tidegate.runtime.files import PRIVATE_UMASK
from tidegate.runtime.replication.service import check_postgres


@contextmanager
def nothing_left_of_a_refusal(folder: Path) -> Generator[None]:
    """Empty a new folder again where the block raises before a process of the run was started.

    Else the next start would find a folder that is no run's, and refuse it. Files that were there before stay.
    """
    was_there = folder.exists()
    was_empty = not was_there or (folder.is_dir() and not any(folder.iterdir()))
    try:
        yield
    except BaseException as error:
        has_started = (folder / PROCESSES_JSON).exists() and not isinstance(error, PreflightError)
        # In use: another start came between, and the files are its.
        if was_empty and not has_started and not isinstance(error, FolderInUseError):
            shutil.rmtree(folder, ignore_errors=True)
            if was_there:
                folder.mkdir(exist_ok=True)
        raise


@contextmanager
def begun(plan: RunPlan, *, folder: Path) -> Generator[Preflight | None]:
    """Try the environment and fork the fork servers; yields the preflight, whose answer may be still to come.

    None for a run of text, which has none. Of a run that is refused here or inside of the context nothing is left
    (``nothing_left_of_a_refusal``).

    Raises:
        PreflightError: the environment, its settings or the policy cannot work, or its model does not fit this machine.
        ConfigError: the machine does not have the cores that the run file names.
        TidegateError: the run is replicated to a PostgreSQL that cannot be used.
    """
    os.umask(PRIVATE_UMASK)  # of everything that this process and its children write
    workload = plan.file.workload
    preflight = (
        Preflight.start(
            workload, plan.file.policy, pass_env=plan.file.pass_env, files_dir=plan.file.files_dir
        )
        if workload.kind == "segments"
        else None
    )
    try:
        with nothing_left_of_a_refusal(folder):
            check_machine(plan.file.cores)
            check_model_fits(plan)
            check_postgres(plan.file.postgres)
            load_shared()
            if preflight is not None:
                preflight.check()
            fork_servers_first(plan.file.pass_env)
            yield preflight
    finally:
        if preflight is not None:
            preflight.close()
