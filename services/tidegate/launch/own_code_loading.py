"""Loads own code in processes that end with it, to say before a run starts what is wrong with it."""

import os
from importlib.util import find_spec
from types import NoneType

from tidegate.core.errors import ConfigError
from tidegate.environment.own_code.rows import RowsQuestion, write_rows
from tidegate.launch.inherited_environment import inherited
from tidegate.launch.own_code import own_code_of
from tidegate.launch.run_plan import RunPlan
from tidegate.runtime.child_question import ChildEndedError, ChildTimeoutError, ask

TRY_OBJECTIVE = "tidegate.learner.optim.try_objective"
# It imports torch.
OBJECTIVE_DEADLINE_S = 120.0


def load_own_code(plan: RunPlan) -> None:
    """Load verifiers, and load and try an objective; a task is loaded where its prompts are written.

    An objective is tried where torch is installed.

    Raises:
        ConfigError: the code cannot be loaded, or not be computed with.
    """
    found = own_code_of(plan)
    environ = inherited(os.environ, plan.file.pass_env)
    for setting, reference in found.items():
        if setting.startswith("environment.verifiers."):
            verifier = plan.services["environment"].verifiers[setting.rpartition(".")[2]]
            question = RowsQuestion(reference, folder="", seed=0, num_demonstrations=0, loads_only=True)
            try:
                write_rows(question, environ=environ, deadline_s=verifier.start_deadline_s)
            except ConfigError as error:
                raise ConfigError(f"{setting}: {error.what}", why=error.why, fix=error.fix) from error
    settings = plan.services["learner"].language_model
    if settings.is_own and find_spec("torch") is not None:
        _try_objective({"settings": settings, "folder": plan.file.files_dir}, environ)


def _try_objective(question: object, environ: dict[str, str]) -> None:
    setting = "learner.language_model.objective"
    try:
        ask(TRY_OBJECTIVE, question, NoneType, deadline_s=OBJECTIVE_DEADLINE_S, environ=environ)
    except ChildTimeoutError as error:
        raise ConfigError(
            f"{setting}: it was not tried within {OBJECTIVE_DEADLINE_S:g} s",
            fix="correct what its module waits for while it is imported",
        ) from error
    except ChildEndedError as error:
        raise ConfigError(
            f"{setting}: it ended the process that tried it, with exit code {error.exit_code}",
            why=error.reason,
            fix="correct its code",
        ) from error
    except ConfigError as error:
        raise ConfigError(f"{setting}: {error.what}", why=error.why, fix=error.fix) from error
