"""The beginning of a run, in the order that refuses one which cannot work before it costs anything.

The environment is tried first, in a fork of a process that has loaded little yet, and meanwhile the process loads what
its services share. Only then are the fork servers made, which load torch.
"""

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tidegate.launch.fork_server.preloading import fork_servers_first, load_shared
from tidegate.launch.model_fit import check_model_fits
from tidegate.launch.preflight import Preflight, PreflightError
from tidegate.launch.run_plan import RunPlan
from tidegate.runtime.files import PRIVATE_UMASK


@contextmanager
def begun(plan: RunPlan, *, folder: Path) -> Generator[Preflight | None]:
    """Try the environment and fork the fork servers; yields the preflight, whose answer may be still to come.

    None for a run of text, which has none. The folder of a run that is refused here or inside of the context is
    removed, unless it existed.

    Raises:
        PreflightError: the environment, its settings or the policy cannot work, or its model does not fit this machine.
    """
    is_new = not folder.exists()
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
        check_model_fits(plan)
        load_shared()
        if preflight is not None:
            preflight.check()
        fork_servers_first(plan.file.pass_env)
        yield preflight
    except PreflightError:
        if is_new:
            shutil.rmtree(folder, ignore_errors=True)  # nothing of the run has started
        raise
    finally:
        if preflight is not None:
            preflight.close()
