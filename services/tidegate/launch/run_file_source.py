"""The file in which a service looks for changed sections of its run file: ``run.json``, or a pod's ``run.yaml``."""

from pathlib import Path

import msgspec

from tidegate.admission.config import AdmissionConfig
from tidegate.core.errors import ConfigError
from tidegate.launch.cluster import RUN_FILE, is_cluster
from tidegate.launch.run_folder import RUN_JSON, read_record
from tidegate.launch.run_parsing import parse_plan
from tidegate.launch.run_plan import RunPlan
from tidegate.launch.run_target import target_of
from tidegate.runtime.files import change_mark
from tidegate.runtime.live_settings import LiveSections

# A ConfigMap is at most 1 MiB.
FILE_BYTES_MAX = 4 << 20


class RunFileSource:
    """See ``runtime.live_settings.SectionsSource``."""

    def __init__(self, folder: Path, *, user: str) -> None:
        """To be made before the run file is read, so that no change between the two is lost.

        ``user``: of this process at the broker, whose password alone it may need.
        """
        self._folder = folder
        self._user = user
        self._path = folder / (RUN_FILE if is_cluster(folder) else RUN_JSON)
        self._mark = self._look()

    def changed(self) -> bool:
        """Whether the file was replaced or written; one that is missing has not changed."""
        mark = self._look()
        if mark is None or mark == self._mark:
            return False
        self._mark = mark
        return True

    def read(self) -> LiveSections:
        """The sections, of a run file that holds together as a whole.

        Raises:
            TidegateError: the file is missing, too large, or no run file that a run could start with.
        """
        size = self._path.stat().st_size if self._path.is_file() else 0
        if size > FILE_BYTES_MAX:
            raise ConfigError(
                f"{self._path} has {size} bytes",
                why=f"a run file has at most {FILE_BYTES_MAX}",
                fix="put the file back; the sections before it stay in force",
            )
        plan = parse_plan(read_record(self._folder, user=self._user).run_file, source=str(self._path))
        target_of(plan)
        sections = live_sections(plan)
        return msgspec.structs.replace(sections, until=plan.file.until if is_cluster(self._folder) else "")

    def _look(self) -> tuple[int, int] | None:
        try:
            return change_mark(self._path)
        except OSError:
            return None


def live_sections(plan: RunPlan) -> LiveSections:
    """The sections of a plan that take effect without a restart."""
    admission = plan.services["admission"]
    assert isinstance(admission, AdmissionConfig)
    return LiveSections(plan.file.staleness, plan.file.slos, admission.scaling)
