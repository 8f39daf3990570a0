"""The run folder: the files of a run, their places, and how later commands find them.

``run.json`` is the contract between the supervisor and all other processes: written once before the first start, read
by every service and by every command. ``processes.json`` lists the processes and their states.
"""

import fcntl
import os
import secrets
import time
from pathlib import Path
from typing import TypeVar

import msgspec

from tidegate.core.errors import ConfigError, NotFoundError, StaleFolderError
from tidegate.core.ids import RunId
from tidegate.launch.broker import BrokerEndpoint, new_token
from tidegate.launch.cluster import (
    cluster_folder,
    is_cluster,
    read_cluster,
)
from tidegate.launch.run_parsing import parse_plan
from tidegate.launch.run_plan import RunFile, RunPlan
from tidegate.launch.run_record import FORMAT, RunRecord
from tidegate.launch.services import SERVICES, instances
from tidegate.runtime.config import Settings
from tidegate.runtime.files import replace_file
from tidegate.runtime.ports import LOOPBACK, is_free, pick_ports, require_free

RUNS = Path(".tidegate") / "runs"
RUN_JSON = "run.json"
PROCESSES_JSON = "processes.json"
REPORT_HTML = "report.html"
# Trajectories and checkpoints depend on these: a folder cannot be resumed with others.
FIXED_SECTIONS = ("workload", "policy")

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
    """The record of a new run: an id, a token, and a port for every service.

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
        broker=BrokerEndpoint(port=broker_port or ports[-1], token=new_token()),
        addresses=_addresses(plan, ports),
        max_lag_ever=plan.file.staleness.max_lag,
    )


def resumed_record(folder: Path, plan: RunPlan) -> RunRecord:
    """The record of a folder that is resumed with ``plan``: the same run id, new free ports.

    Raises:
        StaleFolderError: the folder belongs to another run, or its data was made for another workload or policy.
        ConfigError: the run file's broker port is taken.
    """
    old = read_record(folder)
    name = old.run_file.get("run")
    if name != plan.file.run:
        raise StaleFolderError(
            f"Folder {folder} belongs to run {name!r} ({old.run_id}) and the run file is of {plan.file.run!r}",
            fix="choose another --dir, leave it out for a new folder, or name the run file that made it",
        )
    document = plan.document()
    for section in FIXED_SECTIONS:
        if document[section] != old.run_file.get(section):
            raise StaleFolderError(
                f"Folder {folder} was made with another `{section}`",
                why="its trajectories and checkpoints do not fit the one in the run file",
                fix="choose another --dir, or set the section back",
            )
    fresh = new_record(plan)
    keeps_port = not plan.file.broker_port and is_free(old.broker.port)
    return msgspec.structs.replace(
        fresh,
        run_id=old.run_id,
        created_at_s=old.created_at_s,
        forked_from=old.forked_from,
        broker=msgspec.structs.replace(fresh.broker, port=old.broker.port) if keeps_port else fresh.broker,
        max_lag_ever=max(old.max_lag_ever, fresh.max_lag_ever),
    )


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


def read_record(folder: Path) -> RunRecord:
    """``run.json`` of a folder, or the equivalent files of a cluster.

    Raises:
        NotFoundError: there is none.
        StaleFolderError: it was written by an incompatible version, or was damaged.
        ConfigError: the files of a cluster lack a required value.
    """
    if is_cluster(folder):
        return read_cluster(folder)
    record = _read(folder / RUN_JSON, RunRecord)
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
        broker_token=record.broker.token,
        broker_user=record.broker.user,
        broker_password=record.broker.password,
        addresses=record.addresses,
        stream_copies=record.stream_copies,
        data_dir=str(folder.resolve()),
    )


def write_record(folder: Path, record: RunRecord) -> None:
    """Write ``run.json``, readable by this user only: it holds the broker's token."""
    _write(folder / RUN_JSON, record, mode=0o600)


def write_processes(folder: Path, record: ProcessesRecord) -> None:
    """Write ``processes.json``."""
    _write(folder / PROCESSES_JSON, record, mode=0o644)


def read_processes(folder: Path) -> ProcessesRecord | None:
    """``processes.json``; None before the first start."""
    return _read(folder / PROCESSES_JSON, ProcessesRecord)


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
        ConfigError: another `up` holds it.
    """
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise ConfigError(
            f"Folder {folder} is in use by another `tidegate up`",
            fix="watch it with `tidegate status`, stop it, or choose another --dir",
        ) from error
    return descriptor


def _is_locked(folder: Path) -> bool:
    try:
        os.close(lock(folder))
    except ConfigError:
        return True
    return False


def _read(path: Path, kind: type[ValueT]) -> ValueT | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StaleFolderError(
            f"{path} cannot be read",
            why=str(error),
            fix="it was damaged or written by another version: use a new folder",
        ) from error


def _write(path: Path, value: msgspec.Struct, *, mode: int) -> None:
    """Indented, because users read these files too."""
    replace_file(path, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n", mode=mode)
