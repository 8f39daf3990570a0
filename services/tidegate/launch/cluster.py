"""A run in a cluster: two mounted files and the environment of a pod replace the ``run.json`` of a local run.

``run.yaml`` is the run file and ``cluster.yaml`` holds the addresses of the services. Credentials are files of a
mounted Secret or environment variables from one, and are written nowhere. In every pod of a run ``tidegate status`` and
the other queries work.
"""

import os
import zlib
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec

from tidegate.core.errors import ConfigError, NotFoundError
from tidegate.core.workloads import ONE_MACHINE, Workloads
from tidegate.launch.broker import BrokerEndpoint
from tidegate.launch.overrides import parse_yaml
from tidegate.launch.run_record import FORMAT, RunRecord
from tidegate.launch.short_forms import expand_short_forms
from tidegate.runtime.broker_password import broker_password

CLUSTER_FILE, RUN_FILE = "cluster.yaml", "run.yaml"
# Where a pod's tools find the two files.
FOLDER_VARIABLE = "TIDEGATE_CLUSTER"
USER_VARIABLE, PASSWORD_VARIABLE = "TIDEGATE_BROKER_USER", "TIDEGATE_BROKER_PASSWORD"
# In place of the second: a file of a mounted Secret, which changes when the password is rotated.
PASSWORD_PATH_VARIABLE = "TIDEGATE_BROKER_PASSWORD_PATH"
# The file of a mounted Secret, in the pods of the task queue and of the trajectory store alone.
TASK_SECRET_VARIABLE = "TIDEGATE_TASK_SECRET"
POD_NAME_VARIABLE, POD_UID_VARIABLE = "TIDEGATE_POD_NAME", "TIDEGATE_POD_UID"
NAMESPACE_VARIABLE = "TIDEGATE_NAMESPACE"
# Set in the pods of a Job.
JOB_VARIABLE = "TIDEGATE_JOB"
# The volume of a pod's service, where the chart mounts it; in admission's also what is known of backups.
POD_DATA = Path("/data")
# Every service listens here in its own pod.
LISTEN = "0.0.0.0:7700"
# A broker's pod may be pulled, scheduled and given a volume first; the startup probe's budget is the real limit.
BROKER_WAIT_S = 1800.0


class ClusterFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The addresses of the services of a run.

    ``run_id``: names the run's streams; never reuse a name that another broker's data was written under.
    ``addresses``: host:port by service, of those that others call. ``stream_copies``: servers of the broker that keep
    each message; 3 needs a broker of three. ``workloads``: the objects of the release, for the commands of a fix.
    """

    run_id: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?$")]
    broker_url: str
    addresses: dict[str, list[str]]
    stream_copies: Annotated[int, msgspec.Meta(ge=1, le=5)] = 1
    workloads: Workloads = ONE_MACHINE


def is_cluster(folder: Path) -> bool:
    """Whether ``folder`` holds the files of a run in a cluster."""
    return (folder / CLUSTER_FILE).is_file()


def cluster_folder() -> Path | None:
    """The folder of these files from the environment of this process; None outside of a cluster."""
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named) if named else None


def read_cluster(folder: Path) -> RunRecord:
    """The record of the run that ``folder`` and this process' environment describe.

    Raises:
        NotFoundError: a file is missing.
        ConfigError: a file lacks a required value, or the run file gives one in two forms.
    """
    # As `run.json` has it: what reads a part of it knows no short forms.
    document = expand_short_forms(_read_yaml(folder / RUN_FILE))
    try:
        cluster = msgspec.convert(_read_yaml(folder / CLUSTER_FILE), ClusterFile)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"The files in {folder} do not describe a run",
            why=str(error),
            fix="they are made by the chart: see the ConfigMap of the release",
        ) from error
    return RunRecord(
        format=FORMAT,
        run_id=cluster.run_id,
        created_at_s=(folder / CLUSTER_FILE).stat().st_mtime,
        run_file=document,
        broker=BrokerEndpoint(
            port=0,
            elsewhere=cluster.broker_url,
            user=os.environ.get(USER_VARIABLE, ""),
            password=_present_password(),
        ),
        addresses=cluster.addresses,
        cluster=True,
        stream_copies=cluster.stream_copies,
        workloads=msgspec.structs.replace(
            cluster.workloads, namespace=os.environ.get(NAMESPACE_VARIABLE, "")
        ),
    )


def password_path() -> str:
    """The file with the password of this process at the broker; empty where it is a variable."""
    return os.environ.get(PASSWORD_PATH_VARIABLE, "")


def _present_password() -> str:
    """The password of this process at the broker now, for a command that connects once."""
    path = password_path()
    if not path:
        return os.environ.get(PASSWORD_VARIABLE, "")
    return broker_password("", path).current()


def pod_index() -> int:
    """A number that is probably unique to this pod, for seeds; it replaces the index that a supervisor assigns."""
    name = os.environ.get(POD_UID_VARIABLE) or os.environ.get(POD_NAME_VARIABLE) or "pod"
    return zlib.crc32(name.encode()) & 0x7FFFFFFF


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise NotFoundError(
            f"{path} cannot be read",
            why=error.strerror or str(error),
            fix="mount the ConfigMap of the release there, or correct --cluster",
        ) from error
    document = parse_yaml(text, source=str(path))
    if not isinstance(document, dict):
        raise ConfigError(f"{path} holds no settings", fix="see the ConfigMap of the release")
    return cast("dict[str, Any]", document)
