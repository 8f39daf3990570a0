"""The one refusal of what needs the files of a run where they are in the pods of a cluster."""

from tidegate.core.errors import ConfigError
from tidegate.launch.run_record import RunRecord


def require_local(record: RunRecord, *, otherwise: str = "") -> RunRecord:
    """The record again, of a run whose files are in its folder.

    ``otherwise``: what also answers in a cluster, as the first half of the fix.

    Raises:
        ConfigError: the run is in a cluster.
    """
    if not record.cluster:
        return record
    copy = "copy the volumes of its services into one folder and name that"
    raise ConfigError(
        f"Run {record.run_id} keeps its files in a cluster",
        why="each service's folder is on the volume of its own pod",
        fix=f"{otherwise}, or {copy}" if otherwise else copy,
    )
