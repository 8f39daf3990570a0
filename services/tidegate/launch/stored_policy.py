"""Finds a version of a run's policy on disk: in the learner's checkpoints, or among those weight distribution keeps.

In a cluster each of the two is on the volume of its own pod, where the command has to run.
"""

from pathlib import Path

import msgspec

from tidegate.core.errors import NotFoundError
from tidegate.core.ids import PolicyVersion, RunId
from tidegate.core.records import Array
from tidegate.core.spaces import EnvironmentDescription
from tidegate.launch.cluster import POD_DATA
from tidegate.launch.forking import CHECKPOINTS
from tidegate.launch.local_files import require_local
from tidegate.launch.named_version import BEST, WEIGHT_DISTRIBUTION, best_version_of, version_of
from tidegate.launch.run_folder import find_folder, read_plan
from tidegate.launch.run_plan import RunFile
from tidegate.launch.run_record import RunRecord
from tidegate.learner.checkpoint import checkpoints_in
from tidegate.learner.checkpoint import read as read_checkpoint
from tidegate.learner.environment_file import read_environment
from tidegate.models.policies import build_policy
from tidegate.models.policy_port import SegmentPolicy
from tidegate.runtime.evaluations import version_order
from tidegate.runtime.loading import load
from tidegate.runtime.own_policy import load_policy_code
from tidegate.weight_distribution.reading import VersionsOnDisk

VERSIONS = WEIGHT_DISTRIBUTION / "versions"
LEARNER = Path("learner")


class StoredPolicy(msgspec.Struct, frozen=True, eq=False):
    """One version of a run: its tensors as published, and the run file that they belong to.

    ``folder`` has the run's files. ``described_in``: the folder of the run file, where it is another: in a pod.
    """

    folder: Path
    run: RunId
    version: PolicyVersion
    tensors: dict[str, Array]
    file: RunFile
    base_digest: str
    described_in: Path | None = None

    def description(self) -> EnvironmentDescription:
        """The environment as the learner wrote it down, or, in a folder from before it did, as it is now.

        Raises:
            NotFoundError: there is neither.
            ConfigError: the environment cannot be described.
        """
        # Only what needs the environment itself loads Gymnasium.
        return read_environment(self.folder / LEARNER) or load("tidegate.vector_envs.describing:describe")(
            self.file.workload
        )

    def policy(self) -> SegmentPolicy:
        """The network of segments that the tensors belong to.

        Raises:
            ConfigError: it does not fit the environment.
            RecordError: the tensors are of another network.
        """
        policy = build_policy(
            self.description(),
            self.file.policy,
            code=load_policy_code(self.file.policy, folder=self.file.files_dir),
        )
        policy.check_params(self.tensors)
        return policy


def read_stored_policy(
    folder: Path | None, version: PolicyVersion | None, *, in_pod: bool = False
) -> StoredPolicy:
    """A version of a running or stopped run; None is the newest on disk.

    ``in_pod``: whether the files of this pod's own service are enough, in a cluster.

    Raises:
        NotFoundError: no run is there, or it keeps no such version; the message names those it keeps.
        ConfigError: it is a run in a cluster, and no pod of it that keeps policies.
        CorruptionError: a file is damaged.
    """
    described_in = find_folder(folder)
    record, plan = read_plan(described_in)
    where = _files_of(record, described_in, in_pod=in_pod)
    kept = VersionsOnDisk(where / VERSIONS)
    directory = where / CHECKPOINTS
    checkpoints = {
        held: path for path, held in (checkpoints_in(directory) if directory.is_dir() else {}).items()
    }
    found = sorted({*checkpoints, *kept.versions()}, key=lambda each: version_order(str(each)))
    if not found:
        raise NotFoundError(
            f"{where} holds no policy",
            why="its learner has published none",
            fix="wait for the first version",
        )
    chosen = found[-1] if version is None else version
    if chosen in checkpoints:
        checkpoint = read_checkpoint(checkpoints[chosen])
        tensors, base_digest = checkpoint.policy, checkpoint.base_digest
    elif chosen in found:
        snapshot = kept.read(chosen)
        tensors, base_digest = snapshot.tensors, snapshot.base_digest
    else:
        raise NotFoundError(
            f"{where} does not hold version {chosen}",
            why=f"it holds {_ranges(found)}",
            fix="name one of these; learner.keep_checkpoints and weight_distribution.keep_versions keep more",
        )
    return StoredPolicy(
        folder=where,
        run=RunId(record.run_id),
        version=chosen,
        tensors=tensors,
        file=plan.file,
        base_digest=base_digest,
        described_in=described_in,
    )


def stored_version(folder: Path | None, text: str, *, in_pod: bool = False) -> StoredPolicy:
    """The version of a run that ``--version`` names; ``best`` by its evaluations, else by its training.

    ``in_pod``: as ``read_stored_policy``.

    Raises:
        NotFoundError: the run has no such version, or no best one yet.
        ConfigError: it is no version.
    """
    if text != BEST:
        return read_stored_policy(folder, version_of(text), in_pod=in_pod)
    where = find_folder(folder)
    files = _files_of(read_plan(where)[0], where, in_pod=in_pod, one_of=(WEIGHT_DISTRIBUTION,))
    return read_stored_policy(where, best_version_of(files), in_pod=in_pod)


def _files_of(
    record: RunRecord, where: Path, *, in_pod: bool, one_of: tuple[Path, ...] = (CHECKPOINTS, VERSIONS)
) -> Path:
    if not record.cluster:
        return where
    if not in_pod or not any((POD_DATA / each).is_dir() for each in one_of):
        pod = "RELEASE-weight-distribution-0"
        if CHECKPOINTS in one_of:
            pod = f"RELEASE-learner-0 or {pod}"
        require_local(record, otherwise=f"run `tidegate policy` in the pod {pod} (docs/policies.md)")
    return POD_DATA


def _ranges(versions: list[PolicyVersion]) -> str:
    """Versions in order, with runs of consecutive steps as one range."""
    parts: list[list[PolicyVersion]] = []
    for version in versions:
        last = parts[-1][-1] if parts else None
        if last is not None and (last.lineage, last.step + 1) == (version.lineage, version.step):
            parts[-1].append(version)
        else:
            parts.append([version])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in parts)
