"""Own code that a run loads: where each piece is, and the record of its files by digest in the run folder."""

import os
from pathlib import Path

import msgspec

from tidegate.actor.engines.registry import own_engine_of
from tidegate.algorithms.grpo_settings import OBJECTIVE_NAMES
from tidegate.core.errors import ConfigError, CorruptionError, StaleFolderError
from tidegate.environment.own_code.tasks import own_task_of
from tidegate.environment.verifiers.settings import PythonSettings
from tidegate.launch.run_plan import RunPlan
from tidegate.runtime.files import replace_file
from tidegate.runtime.own_code.digests import digests_of
from tidegate.runtime.own_code.references import OwnReference, is_reference, resolve
from tidegate.runtime.own_policy import own_policy_of

OWN_CODE_JSON = "own_code.json"
CURRICULUM = "task_queue.curriculum"
# Of one callback by its place in the list.
CALLBACK = "callbacks."
_DIGEST_CHARS_SHOWN = 12


class OwnCodeRecord(msgspec.Struct, frozen=True):
    """One piece: its name in the run file, and the SHA-256 of each of its files, by the path from ``files_dir``."""

    name: str
    files: dict[str, str]


def own_code_of(plan: RunPlan) -> dict[str, OwnReference]:
    """Every piece of own code by its setting; nothing is imported.

    Raises:
        ConfigError: there is no such code; the message begins with the setting.
    """
    file, found = plan.file, dict[str, OwnReference]()

    def find(setting: str, reference: OwnReference | None) -> None:
        if reference is not None:
            found[setting] = reference

    folder, setting = file.files_dir, "workload.env"
    try:
        if file.workload.kind == "text":
            for name, part in file.workload.by_name().items():
                setting = f"workload.envs.{name}" if file.workload.envs else "workload.env"
                find(setting, own_task_of(part, folder=folder))
        elif is_reference(file.workload.env):
            # Its name is one of Gymnasium's registry, which only the module itself knows.
            module, _, name = file.workload.env.rpartition(":")
            find(setting, OwnReference(file.workload.env, module, name, folder))
        for name, verifier in plan.services["environment"].verifiers.items():
            setting = f"environment.verifiers.{name}"
            if isinstance(verifier, PythonSettings):
                find(setting, resolve(verifier.reference, kind="verifiers", folder=folder))
        setting = "learner.language_model.objective"
        settings = plan.services["learner"].language_model
        if settings.is_own:
            find(
                setting, resolve(settings.objective, kind="objectives", folder=folder, known=OBJECTIVE_NAMES)
            )
        setting = "policy.kind"
        find(setting, own_policy_of(file.policy, folder=folder))
        setting = "actor.engine"
        find(setting, own_engine_of(plan.services["actor"].engine, folder=folder))
        setting = CURRICULUM
        find(setting, _curriculum_of(plan))
        for number, callback in enumerate(file.callbacks):
            setting = f"{CALLBACK}{number}"
            find(setting, resolve(callback.code, kind="callbacks", folder=folder))
    except ConfigError as error:
        raise ConfigError(f"{setting}: {error.what}", why=error.why, fix=error.fix) from error
    return found


def _curriculum_of(plan: RunPlan) -> OwnReference | None:
    reference = plan.services["task_queue"].own_curriculum(folder=plan.file.files_dir)
    if reference is not None and plan.file.workload.kind != "text":
        raise ConfigError(
            f"{reference.written} has nothing to choose from",
            why="a workload of segments has no prompts",
            fix="remove the setting",
        )
    return reference


def records_of(plan: RunPlan) -> dict[str, OwnCodeRecord]:
    """The digests of a plan's own code, by setting.

    Raises:
        ConfigError: there is no such code, or a file of it cannot be read.
    """
    base = plan.file.files_dir or os.curdir
    return {
        setting: OwnCodeRecord(
            reference.written,
            {os.path.relpath(path, base): digest for path, digest in digests_of(reference).items()},
        )
        for setting, reference in own_code_of(plan).items()
    }


def record_own_code(plan: RunPlan, folder: Path) -> None:
    """Write the digests into a new run folder; of a resumed one, compare them.

    Callbacks may change between two starts, as nothing of what is trained depends on them; their record then changes.

    Raises:
        ConfigError: there is no such code.
        StaleFolderError: a file has changed since the folder was made.
        CorruptionError: the record cannot be read.
    """
    now, before = records_of(plan), read_own_code(folder)
    if before is None:
        if now:
            _write(folder, now)
        return
    for setting, old in before.items():
        new = now.get(setting)
        if new is None or new == old or setting.startswith(CALLBACK):
            continue
        changed = sorted(set(old.files.items()) ^ set(new.files.items()))
        name = changed[0][0] if changed else new.name
        then, current = (each.files.get(name, "not there")[:_DIGEST_CHARS_SHOWN] for each in (old, new))
        raise StaleFolderError(
            f"{name} of {setting} has changed since {folder} was made",
            why=f"its SHA-256 was {then} and is {current}, and one run has one code",
            fix=f"put the file back, or go on with the new one in a new run: `tidegate fork {folder}`",
        )
    kept = {setting: record for setting, record in before.items() if not setting.startswith(CALLBACK)}
    kept |= {setting: record for setting, record in now.items() if setting.startswith(CALLBACK)}
    if kept != before:
        _write(folder, kept)


def _write(folder: Path, records: dict[str, OwnCodeRecord]) -> None:
    text = msgspec.json.format(msgspec.json.encode(records), indent=2)
    replace_file(folder / OWN_CODE_JSON, text + b"\n")


def read_own_code(folder: Path) -> dict[str, OwnCodeRecord] | None:
    """The record of a run folder; None where there is none.

    Raises:
        CorruptionError: it cannot be read.
    """
    path = folder / OWN_CODE_JSON
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, OwnCodeRecord])
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError(
            f"{path} cannot be read",
            why=str(error),
            fix="remove it: the next start records the code as it is then",
        ) from error
