"""Processes beside a run that only read its folder: trackers, notices, callbacks.

Nothing of the run waits for one: each is a program of its own at a low priority, which finds all that it needs in the
run folder. One that hangs, fails or is slow costs what its process takes, and at the end of the run its deadline.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.launch.inherited_environment import inherited
from tidegate.launch.own_code import CALLBACK, own_code_of
from tidegate.launch.processes import log_of
from tidegate.launch.programs import open_log
from tidegate.launch.run_plan import RunPlan
from tidegate.runtime.backup_state import expect_backups, expect_no_backups
from tidegate.runtime.companion_settings import (
    BackupConfig,
    NotifyConfig,
    TrackConfig,
    Webhook,
    check_webhook_url,
)
from tidegate.runtime.object_storage.place import require_library
from tidegate.runtime.object_storage.urls import VARIABLES as STORAGE_VARIABLES
from tidegate.runtime.object_storage.urls import below, scheme_of
from tidegate.runtime.parent_death import dies_with_this_process
from tidegate.runtime.python_program import python_program

# Below every service of the run, which use the cores as they are.
NICENESS = 10
# Between telling one that its time is over and killing it.
TERM_GRACE_S = 2.0
# A wait that is longer than this is announced.
QUIET_S = 2.0
# The webhook with its secrets, as JSON, for the process that posts to it alone.
WEBHOOK_VARIABLE = "TIDEGATE_WEBHOOK_SECRET"
# By tracker: beginnings of the variables that its package reads.
VARIABLES = {"wandb": ("WANDB_",), "mlflow": ("MLFLOW_",), "trackio": ("TRACKIO_",), "tensorboard": ()}


class Companion(msgspec.Struct, frozen=True):
    """One process. ``arguments``: of ``module``, by default `tidegate`.

    ``environment`` is added to what it inherits, which ``inherits`` extends by name. ``end_deadline_s``: seconds after
    the end of the run until it is stopped. ``outlives``: it ends by itself after `up` was killed, else with it.
    ``again``: the command that finishes what it could not.
    """

    name: str
    arguments: list[str]
    module: str = "tidegate.cli.main"
    environment: dict[str, str] = {}
    inherits: tuple[str, ...] = ()
    end_deadline_s: float = 20.0
    outlives: bool = False
    again: str = ""


def companions_of(plan: RunPlan, folder: Path) -> list[Companion]:
    """Those that the run file names.

    Raises:
        ConfigError: a variable with a secret of one is not set, or there is no such code.
        NotFoundError: a backup needs a package that is not installed.
    """
    found = [_tracker(entry, folder) for entry in plan.file.track]
    if plan.file.notify is not None:
        found.append(_notices(plan.file.notify, folder))
    if plan.file.backup is not None:
        found.append(_backup(plan.file.backup, folder))
    return [*found, *_callbacks(plan, folder)]


def declare_backups(plan: RunPlan, folder: Path, *, run_id: str) -> None:
    """Note in the folder which backups the run file asks for, before the process that makes them may fail to start."""
    config = plan.file.backup
    if config is None:
        expect_no_backups(folder)
    else:
        expect_backups(folder, place=below(config.to, run_id), every_s=config.every_s, now_s=time.time())


def _callbacks(plan: RunPlan, folder: Path) -> Iterator[Companion]:
    code, now_s = own_code_of(plan), time.time()
    for number, config in enumerate(plan.file.callbacks):
        reference = code[f"{CALLBACK}{number}"]
        yield Companion(
            name=f"callback-{number}-{reference.attribute}",
            module="tidegate.cli.callbacks.watch",
            # What the folder holds from before this moment is of an earlier start.
            arguments=[str(folder), str(now_s), msgspec.json.encode(reference).decode()],
            inherits=plan.file.pass_env,
            end_deadline_s=config.end_deadline_s,
        )


def _backup(config: BackupConfig, folder: Path) -> Companion:
    require_library()
    arguments = ["backup", str(folder), "--to", config.to, "--keep", str(config.keep)]
    return Companion(
        name="backup",
        arguments=[*arguments, "--every", f"{config.every_s:g}"],
        # No service of the run gets them.
        inherits=_variables(*STORAGE_VARIABLES[scheme_of(config.to, setting="backup.to")]),
        end_deadline_s=config.end_deadline_s,
        again=shlex.join(["tidegate", *arguments]),
    )


def _tracker(config: TrackConfig, folder: Path) -> Companion:
    arguments = ["track", str(folder), "--with", config.tracker, "--to", config.place]
    return Companion(
        name=f"track-{config.tracker}",
        arguments=arguments,
        inherits=_variables(*VARIABLES[config.tracker]),
        end_deadline_s=config.end_deadline_s,
        again=shlex.join(["tidegate", *arguments]),
    )


def _notices(config: NotifyConfig, folder: Path) -> Companion:
    url = config.url or _secret(config.url_env, setting="notify.url_env")
    check_webhook_url(url, setting=config.url_env)
    headers = {
        name: _secret(variable, setting="notify.headers_env") for name, variable in config.headers_env.items()
    }
    webhook = msgspec.json.encode(Webhook(url=url, headers=headers, on=config.on)).decode()
    return Companion(
        name="notify",
        module="tidegate.cli.notify.watch",
        arguments=[str(folder)],
        # Not an argument, which every user of the machine can read.
        environment={WEBHOOK_VARIABLE: webhook},
        end_deadline_s=config.end_deadline_s,
        outlives=True,
    )


def _secret(variable: str, *, setting: str) -> str:
    value = os.environ.get(variable, "")
    if not value:
        raise ConfigError(
            f"The environment variable {variable} is not set",
            why=f"{setting} names it",
            fix="export it, or change the run file",
        )
    return value


@contextmanager
def companions_beside(
    companions: Sequence[Companion], folder: Path
) -> "Generator[tuple[subprocess.Popen[bytes], ...]]":
    """Run them beside what is in the block; after it each has its deadline, and is ended."""
    started = [(each, _start(each, folder)) for each in companions]
    try:
        yield tuple(process for _, process in started)
    finally:
        _await_ends(started)


def _start(companion: Companion, folder: Path) -> "subprocess.Popen[bytes]":
    dies_too = None if companion.outlives else dies_with_this_process()

    def before_exec() -> None:
        if dies_too is not None:
            dies_too()
        os.nice(NICENESS)

    log = open_log(log_of(folder, companion.name))
    try:
        return subprocess.Popen(
            python_program(companion.module, *companion.arguments),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**inherited(os.environ, companion.inherits), **companion.environment},
            start_new_session=True,  # an interrupt from the keyboard is for the run
            preexec_fn=before_exec,  # it imports nothing
        )
    finally:
        os.close(log)


def _await_ends(started: Sequence[tuple[Companion, "subprocess.Popen[bytes]"]]) -> None:
    over_at_s = time.monotonic()
    for companion, process in started:
        if not _has_ended(process, until_s=over_at_s + min(QUIET_S, companion.end_deadline_s)):
            sys.stderr.write(
                f"tidegate: waiting for {companion.name}, at most {companion.end_deadline_s:.0f} s.\n"
            )
        if not _has_ended(process, until_s=over_at_s + companion.end_deadline_s):
            _end(process)
            again = f"; `{companion.again}` sends the rest" if companion.again else ""
            sys.stderr.write(
                f"tidegate: {companion.name} did not end in {companion.end_deadline_s:.0f} s and was stopped:"
                f" see logs/{companion.name}.log{again}.\n"
            )
        elif process.returncode:
            sys.stderr.write(f"tidegate: {companion.name} failed: see logs/{companion.name}.log.\n")


def _has_ended(process: "subprocess.Popen[bytes]", *, until_s: float) -> bool:
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=max(0.0, until_s - time.monotonic()))
    return process.returncode is not None


def _end(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    _has_ended(process, until_s=time.monotonic() + TERM_GRACE_S)
    with suppress(ProcessLookupError):  # also what it started itself
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _variables(*beginnings: str) -> tuple[str, ...]:
    return tuple(name for name in os.environ if beginnings and name.startswith(beginnings))
