"""The run folder: the files of a run, their places, and how later commands find them.

``run.json`` is the contract between the supervisor and all other processes: written once before the first start, read
by every service and by every command. ``processes.json`` lists the processes and their states.
"""

import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tidegate.core.errors import (
    ConfigError,
    CorruptionError,
    FolderInUseError,
    NotFoundError,
    StaleFolderError,
)
from tidegate.core.ids import RunId
from tidegate.launch.broker import BrokerEndpoint
from tidegate.launch.cluster import (
    PASSWORD_VARIABLE,
    USER_VARIABLE,
    cluster_folder,
    is_cluster,
    read_cluster,
)
from tidegate.launch.operator_credential import CREDENTIALS
from tidegate.launch.run_parsing import parse_plan
from tidegate.launch.run_plan import RunFile, RunPlan
from tidegate.launch.run_record import FORMAT, RunRecord
from tidegate.launch.services import SERVICES, instances
from tidegate.learner.steps_log import STEPS_FILE
from tidegate.runtime.call_credentials import derived_tokens, write_credentials
from tidegate.runtime.config import Settings
from tidegate.runtime.files import lock_file, replace_file
from tidegate.runtime.ports import LOOPBACK, pick_ports, require_free, take_port
from tidegate.runtime.task_secret import derived_task_secret
from tidegate.task_queue.journal_file import FILE_NAME as JOURNAL_FILE
from tidegate.trajectory_store.schema import LEDGER_FILE
from tidegate.wire.permissions import OPERATOR

RUNS = Path(".tidegate") / "runs"
RUN_JSON = "run.json"
PROCESSES_JSON = "processes.json"
TASK_SECRET = "task_secret"
# The users of the broker with their passwords, new at every start.
PASSWORDS_JSON = "broker-passwords.json"
REPORT_HTML = "report.html"
LOCK = ".lock"
# Trajectories and checkpoints depend on these: a folder cannot be resumed with others.
FIXED_SECTIONS = ("workload", "policy")
# The way back for files that every start writes again.
REMOVE = "remove the file, or start the run again: `tidegate up` writes it at each start"

ValueT = TypeVar("ValueT")


class ProcessRecord(msgspec.Struct, frozen=True):
    """One process of a running platform."""

    pid: int | None
    state: str
    restarts: int


class ProcessesRecord(msgspec.Struct, frozen=True):
    """``processes.json``: the processes, their supervisor and the target; ``ended`` once the run is over."""

    supervisor_pid: int
    started_at_s: float
    ended: bool
    processes: dict[str, ProcessRecord]
    target: str = ""


def new_record(plan: RunPlan) -> RunRecord:
    """The record of a new run: an id, a secret of calls, and a port for every service.

    Raises:
        ConfigError: the run file's broker port is taken.
    """
    fixed = plan.file.broker_port
    count = sum(plan.replicas.values())
    broker_port = require_free(fixed, setting="broker_port") if fixed else 0
    ports = pick_ports(count + 1, taken=frozenset({fixed}))
    return RunRecord(
        format=FORMAT,
        run_id=f"{plan.file.run}-{secrets.token_hex(3)}",
        created_at_s=time.time(),
        run_file=plan.document(),
        broker=BrokerEndpoint(port=broker_port or ports[-1]),
        addresses=_addresses(plan, ports),
        task_secret=secrets.token_hex(16),
        call_secret=secrets.token_hex(16),
    )


def resumed_record(folder: Path, plan: RunPlan) -> RunRecord:
    """The record of a folder that is resumed with ``plan``: the same run id, new free ports.

    Raises:
        StaleFolderError: the folder belongs to another run, or its data was made for another workload or policy.
        CorruptionError: the folder's ledger or journal is gone, or ``run.json`` is damaged.
        ConfigError: the run file's broker port is taken.
    """
    check_accounting(folder)
    # Without the passwords: this start replaces them, also where a crash of the machine left half of their file.
    old = _stored_record(folder)
    name = old.run_file.get("run")
    if name != plan.file.run:
        raise StaleFolderError(
            f"Folder {folder} belongs to run {name!r} ({old.run_id}) and the run file is of {plan.file.run!r}",
            fix="choose another --dir, leave it out for a new folder, or name the run file that made it",
        )
    document, recorded = plan.document(), recorded_document(old)
    for section in FIXED_SECTIONS:
        if document[section] != recorded.get(section):
            raise StaleFolderError(
                f"Folder {folder} was made with another `{section}`",
                why="its trajectories and checkpoints do not fit the one in the run file",
                fix="choose another --dir, or set the section back",
            )
    fresh = new_record(plan)
    keeps_port = not plan.file.broker_port and take_port(old.broker.port)
    return msgspec.structs.replace(
        fresh,
        run_id=old.run_id,
        created_at_s=old.created_at_s,
        forked_from=old.forked_from,
        task_secret=old.task_secret or fresh.task_secret,
        broker=msgspec.structs.replace(fresh.broker, port=old.broker.port) if keeps_port else fresh.broker,
    )


def recorded_document(record: RunRecord) -> Mapping[str, Any]:
    """The run file of a record with the defaults of settings that were added since it was written.

    As it was written, where it cannot be read any more: then it differs from every run file of today.
    """
    try:
        return parse_plan(record.run_file, source=RUN_JSON).document()
    except ConfigError:
        return record.run_file


def check_accounting(folder: Path) -> None:
    """Refuse to resume a run whose ledger or journal is gone or empty.

    SQLite takes an empty file for a new database: the store would forget what was trained, the task queue would give
    ids of earlier tasks to new ones, and the store would count their trajectories as duplicates.

    Raises:
        CorruptionError: the learner trained here, and one of the two holds nothing.
    """
    if not _holds_data(folder / "learner" / STEPS_FILE):
        return
    ledger, journal = folder / "trajectory_store" / LEDGER_FILE, folder / "task_queue" / JOURNAL_FILE
    for name, path, unknown in (("ledger", ledger, "on what"), ("journal", journal, "what was admitted")):
        if not _holds_data(path):
            raise CorruptionError(
                f"The {name} {path} is gone",
                why=f"the learner trained in this folder, and without the {name} it is unknown {unknown}",
                fix=f"put the file back from a copy, or begin at the newest checkpoint: `tidegate fork {folder}`",
            )


def _holds_data(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _addresses(plan: RunPlan, ports: list[int]) -> dict[str, list[str]]:
    left = iter(ports)
    return {
        service: [f"{LOOPBACK}:{next(left)}" for _ in instances(service, replicas=plan.replicas[service])]
        for service in SERVICES
    }


def is_run_folder(folder: Path) -> bool:
    """Whether a run wrote there, or the files of one in a cluster are mounted there."""
    return (folder / RUN_JSON).is_file() or is_cluster(folder)


def default_folder(plan: RunPlan) -> Path:
    """An unused folder, named after the run and the time."""
    base = RUNS / f"{plan.file.run}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, number = base, 1
    while folder.exists():
        number += 1
        folder = base.with_name(f"{base.name}-{number}")
    return folder


def newest_folder() -> Path:
    """The folder of the newest run below the current directory.

    Raises:
        NotFoundError: there is none.
    """
    folders = [path.parent for path in RUNS.glob(f"*/{RUN_JSON}")]
    if not folders:
        raise NotFoundError(
            f"There is no run below {RUNS}", fix="start one with `tidegate up`, or name its --dir"
        )
    return max(folders, key=lambda folder: (folder / RUN_JSON).stat().st_mtime)


def find_folder(folder: Path | None) -> Path:
    """``folder``, or inside of a pod its run's, or the newest run's.

    Raises:
        NotFoundError: no run wrote there.
    """
    if folder is None:
        return cluster_folder() or newest_folder()
    if not is_run_folder(folder):
        raise NotFoundError(
            f"{folder} is no run folder", why=f"it holds no {RUN_JSON}", fix="name one that `up` made"
        )
    return folder


def find_running(folder: Path | None) -> Path:
    """As ``find_folder``, of a platform that is running.

    Raises:
        NotFoundError: no run wrote there.
        ConfigError: it is not running.
    """
    where = find_folder(folder)
    if not is_running(where):
        raise ConfigError(
            f"No platform is running in {where}", fix="start it with `tidegate up`, or name another --dir"
        )
    return where


def read_record(folder: Path, *, user: str = OPERATOR) -> RunRecord:
    """``run.json`` of a folder with the credentials of a user at its broker, or the equivalent files of a cluster.

    In a cluster the user is the pod's.

    Raises:
        NotFoundError: there is none.
        StaleFolderError: it was written by an incompatible version.
        CorruptionError: it is no JSON.
        ConfigError: the files of a cluster lack a required value.
    """
    if is_cluster(folder):
        return read_cluster(folder)
    return _as_this_process(folder, _stored_record(folder), user)


def _stored_record(folder: Path) -> RunRecord:
    record = _read(
        folder / RUN_JSON, RunRecord, fix="put the file back from a copy, or start in a new folder"
    )
    if record is None:
        raise NotFoundError(f"{folder} is no run folder", why=f"it holds no {RUN_JSON}")
    if record.format != FORMAT:
        raise StaleFolderError(
            f"{folder / RUN_JSON} has format {record.format} and this version reads {FORMAT}",
            fix="start a new run folder, or use the version that wrote it",
        )
    return record


def read_plan(folder: Path) -> tuple[RunRecord, RunPlan]:
    """The record and the typed run file of a folder.

    Raises:
        ConfigError: the run file in ``run.json`` does not hold together.
    """
    record = read_record(folder)
    return record, parse_plan(record.run_file, source=str(folder / RUN_JSON))


def settings_of(folder: Path, record: RunRecord, file: RunFile) -> Settings:
    """The settings of a service process of this folder, besides its own section."""
    return Settings(
        run=RunId(record.run_id),
        seed=file.seed,
        staleness=file.staleness,
        response=file.response,
        slos=file.slos,
        long_tail=file.long_tail,
        workload=file.workload,
        policy=file.policy,
        batch_size=file.batch_size,
        max_running=file.max_running,
        telemetry=file.telemetry,
        drain_timeout_s=file.drain_timeout_s,
        broker_url=record.broker.url,
        broker_user=record.broker.user,
        broker_password=record.broker.password,
        addresses=record.addresses,
        stream_copies=record.stream_copies,
        workloads=record.workloads,
        data_dir=str(folder.resolve()),
        task_secret_path=str(folder.resolve() / TASK_SECRET) if record.task_secret else "",
        credentials_dir=str(folder.resolve() / CREDENTIALS),
        files_dir=file.files_dir,
        postgres=file.postgres,
    )


def write_record(folder: Path, record: RunRecord) -> None:
    """Write ``run.json``, the services' credentials and the secret of tasks, readable by this account only.

    The file holds the secrets of calls and tasks, and no password of the broker; each service reads its own credential
    from its own file. It is durable: no other file names the run's secrets and settings, and none is written twice.
    """
    write_credentials(folder / CREDENTIALS, derived_tokens(record.call_secret))
    if record.task_secret:
        replace_file(folder / TASK_SECRET, derived_task_secret(record.task_secret).encode(), mode=0o600)
    endpoint = msgspec.structs.replace(record.broker, user="", password="")
    _write(folder / RUN_JSON, msgspec.structs.replace(record, broker=endpoint), mode=0o600, durable=True)


def write_passwords(folder: Path, passwords: Mapping[str, str]) -> None:
    """Write the broker's users with their passwords, readable by this account only."""
    replace_file(folder / PASSWORDS_JSON, msgspec.json.encode(passwords) + b"\n", mode=0o600)


def as_user(record: RunRecord, user: str, passwords: Mapping[str, str]) -> RunRecord:
    """The record with the credentials of one of the broker's users; with none where its password is not known."""
    password = passwords.get(user, "")
    broker = msgspec.structs.replace(record.broker, user=user if password else "", password=password)
    return msgspec.structs.replace(record, broker=broker)


def _as_this_process(folder: Path, record: RunRecord, user: str) -> RunRecord:
    """With the credentials from the environment, as the supervisor gives them to a service, or from the folder."""
    if os.environ.get(USER_VARIABLE) == user:
        return as_user(record, user, {user: os.environ.get(PASSWORD_VARIABLE, "")})
    # None before the first start, when there is no broker either.
    passwords = _read(folder / PASSWORDS_JSON, dict[str, str], fix=REMOVE)
    return as_user(record, user, passwords or {})


def write_processes(folder: Path, record: ProcessesRecord) -> None:
    """Write ``processes.json``."""
    _write(folder / PROCESSES_JSON, record, mode=0o600)


def read_processes(folder: Path) -> ProcessesRecord | None:
    """``processes.json``; None before the first start."""
    return _read(folder / PROCESSES_JSON, ProcessesRecord, fix=REMOVE)


def is_running(folder: Path) -> bool:
    """Whether the supervisor of this folder is running; always true of a cluster."""
    if is_cluster(folder):
        return True
    record = read_processes(folder)
    if record is None or record.ended:
        return False
    try:
        os.kill(record.supervisor_pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _is_locked(folder)


def lock(folder: Path) -> int:
    """Prevent a second start of the same folder; released when this process ends for any reason.

    Raises:
        FolderInUseError: another `up` holds it.
    """
    descriptor = lock_file(folder / LOCK)
    if descriptor is None:
        raise FolderInUseError(
            f"Folder {folder} is in use by another `tidegate up`",
            fix="watch it with `tidegate status`, stop it, or choose another --dir",
        )
    return descriptor


def _is_locked(folder: Path) -> bool:
    try:
        os.close(lock(folder))
    except FolderInUseError:
        return True
    return False


def _read(path: Path, kind: type[ValueT], *, fix: str) -> ValueT | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except msgspec.ValidationError as error:
        raise StaleFolderError(
            f"{path} cannot be read",
            why=f"it was damaged or written by another version: {error}",
            fix=fix,
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptionError(f"{path} cannot be read", why=f"it is damaged: {error}", fix=fix) from error


def _write(path: Path, value: msgspec.Struct, *, mode: int, durable: bool = False) -> None:
    """Indented, because users read these files too."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
    replace_file(path, text, mode=mode, durable=durable)
