"""Loads own code in processes that end with it, to say before a run starts what is wrong with it."""

import os
from importlib.util import find_spec
from types import NoneType

from tidegate.core.errors import ConfigError
from tidegate.environment.own_code.rows import RowsQuestion, write_rows
from tidegate.launch.inherited_environment import inherited
from tidegate.launch.own_code import CALLBACK, own_code_of
from tidegate.launch.run_plan import RunPlan
from tidegate.runtime.child_question import ChildEndedError, ChildTimeoutError, ask
from tidegate.runtime.own_code.process import without_platform

TRY_OBJECTIVE = "tidegate.learner.optim.try_objective"
# It imports torch.
OBJECTIVE_DEADLINE_S = 120.0
LOAD_CALLBACK = "tidegate.cli.callbacks.trial"
CALLBACK_DEADLINE_S = 60.0
LOAD_ENGINE = "tidegate.actor.engines.own_engine_trial"
# It may import torch and more.
ENGINE_DEADLINE_S = 300.0


def load_own_code(plan: RunPlan) -> None:
    """Load verifiers, callbacks and an engine, and load and try an objective.

    A task is loaded where its prompts are written. An objective is tried where torch is installed.

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
    load_callbacks(plan)
    if engine := found.get("actor.engine"):
        asked(
            LOAD_ENGINE,
            {"reference": engine},
            setting="actor.engine",
            deadline_s=ENGINE_DEADLINE_S,
            environ=environ,
        )
    settings = plan.services["learner"].language_model
    if settings.is_own and find_spec("torch") is not None:
        _try_objective({"settings": settings, "folder": plan.file.files_dir}, environ)


def load_callbacks(plan: RunPlan) -> None:
    """Load each callback once, and call none.

    Raises:
        ConfigError: one cannot be loaded, or is no callback.
    """
    environ = inherited(os.environ, plan.file.pass_env)
    own = without_platform(environ)
    for setting, reference in own_code_of(plan).items():
        if setting.startswith(CALLBACK):
            asked(
                LOAD_CALLBACK,
                {"reference": reference},
                setting=setting,
                deadline_s=CALLBACK_DEADLINE_S,
                environ=own,
            )


def _try_objective(question: object, environ: dict[str, str]) -> None:
    setting = "learner.language_model.objective"
    asked(TRY_OBJECTIVE, question, setting=setting, deadline_s=OBJECTIVE_DEADLINE_S, environ=environ)


def asked(module: str, question: object, *, setting: str, deadline_s: float, environ: dict[str, str]) -> None:
    """Ask a program whether code can be used.

    Raises:
        ConfigError: it cannot; the message begins with the setting.
    """
    try:
        ask(module, question, NoneType, deadline_s=deadline_s, environ=environ)
    except ChildTimeoutError as error:
        raise ConfigError(
            f"{setting}: it was not tried within {deadline_s:g} s",
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
