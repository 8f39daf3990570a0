"""Checkpoints: all state that a learner needs to resume, in one folder that is written atomically.

A checkpoint holds the policy and the optimiser's tensors (safetensors) and the rest as JSON, with a manifest of
digests. It is written beside the others, synced, and renamed into place: a crash leaves the previous one. Folders are
numbered in the order of writing, because a restore from an older one resumes at an older step.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tidegate.core.audit import LearnerTotals
from tidegate.core.errors import CorruptionError, NotFoundError, StaleFolderError
from tidegate.core.ids import LineageName, PolicyVersion, RunId
from tidegate.core.records import Array
from tidegate.core.staleness import Lineage
from tidegate.learner.checkpoint_tensors import DIGEST_BYTES, FileEntry, entry_of, read_tensors, write_tensors
from tidegate.learner.optim.port import TrainerState
from tidegate.learner.state import TrainingProgress
from tidegate.runtime.files import LOST_ERRNOS, sync_folder
from tidegate.wire.clients.trajectory_store import ConsumedBatch

FORMAT = 1
POLICY_FILE = "policy.safetensors"
TRAINER_FILE = "trainer.safetensors"
STATE_FILE = "state.json"
MANIFEST_FILE = "manifest.json"
FILES = frozenset({POLICY_FILE, TRAINER_FILE, STATE_FILE, MANIFEST_FILE})
PARTIAL_PREFIX = ".partial-"
CORRUPT_PREFIX = "corrupt-"
_NAME = re.compile(r"[0-9]{8,}\.(?P<lineage>[^.]+)\.(?P<step>[0-9]+)")


class Checkpoint(msgspec.Struct, frozen=True, eq=False):
    """The state of training between two steps.

    ``lineages``: the tree at ``progress.version``, parents first. ``consumed``: batches that updates up to
    ``progress.version`` were trained on, and whose commit was not acknowledged yet. ``base_digest``: of the model that
    adapters belong to (``PolicySnapshot``). ``forked_from``: only in the checkpoint that a fork starts from, the run
    that it was copied from: the fork's trajectory store learns ``lineages`` from it.
    """

    run: RunId
    policy_kind: str
    progress: TrainingProgress
    lineages: tuple[Lineage, ...]
    consumed: tuple[ConsumedBatch, ...]
    policy: dict[str, Array]
    trainer: TrainerState
    written_at_s: float
    base_digest: str = ""
    forked_from: RunId | None = None


class _CheckpointState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON part of a checkpoint."""

    format: int
    run: RunId
    policy_kind: str
    progress: TrainingProgress
    lineages: tuple[Lineage, ...]
    consumed: tuple[ConsumedBatch, ...]
    trainer_values: dict[str, Any]
    written_at_s: float
    base_digest: str = ""
    forked_from: RunId | None = None


class _Format(msgspec.Struct, frozen=True):
    format: int


class FoundCheckpoint(msgspec.Struct, frozen=True, eq=False):
    """The newest intact checkpoint, and why newer ones were skipped."""

    checkpoint: Checkpoint
    path: Path
    passed_over: tuple[str, ...]


class CheckpointFolder:
    """The numbered checkpoints of one learner; ``write`` keeps the newest ``keep`` and deletes the others.

    An early one is replaced by the next checkpoint, so that it takes the place of at most one that was due.
    """

    def __init__(self, directory: Path, *, keep: int) -> None:
        """Removes the partial folders of a crashed write."""
        self._directory = directory
        self._keep = keep
        self._early: Path | None = None
        directory.mkdir(parents=True, exist_ok=True)
        for partial in directory.glob(f"{PARTIAL_PREFIX}*"):
            shutil.rmtree(partial)

    def paths(self) -> list[Path]:
        """Every checkpoint, oldest first."""
        return list(checkpoints_in(self._directory))

    def versions(self) -> list[PolicyVersion]:
        """The version that each checkpoint holds, oldest first."""
        return list(checkpoints_in(self._directory).values())

    def write(self, checkpoint: Checkpoint, *, early: bool = False) -> Path:
        """Make a checkpoint durable, also against power loss, then delete the oldest.

        ``early``: written before it was due, because that cost little.

        Raises:
            OSError: the disk failed or is full; earlier checkpoints are untouched.
        """
        paths = self.paths()
        number = int(paths[-1].name.partition(".")[0]) + 1 if paths else 1
        version = checkpoint.progress.version
        name = f"{number:08d}.{version.lineage}.{version.step}"
        partial = self._directory / f"{PARTIAL_PREFIX}{name}"
        path = self._directory / name
        partial.mkdir()
        try:
            _write_files(partial, checkpoint)
            partial.rename(path)
        except OSError:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        sync_folder(self._directory)
        replaced, self._early = self._early, path if early else None
        if replaced is not None:
            shutil.rmtree(replaced, ignore_errors=True)  # a rollback may have deleted it
        for old in self.paths()[: -self._keep]:
            shutil.rmtree(old)
        return path

    def newest(self, *, run: RunId, policy_kind: str, base_digest: str = "") -> FoundCheckpoint | None:
        """The newest intact checkpoint; None when there is none at all.

        A corrupt one is set aside and the previous one is used: the store keeps the payloads to resume from there.

        Raises:
            CorruptionError: there are checkpoints and none is intact.
            StaleFolderError: it belongs to another run, kind of policy or frozen model, or to another version of this
                program.
        """
        passed_over: list[str] = []
        for path in reversed(self.paths()):
            try:
                checkpoint = read(path)
            except CorruptionError as error:
                passed_over.append(f"{path.name}: {error.what}")
                continue
            _check_belongs(path, checkpoint, run=run, policy_kind=policy_kind, base_digest=base_digest)
            for corrupt in self.paths()[self.paths().index(path) + 1 :]:
                self._set_aside(corrupt)
            return FoundCheckpoint(checkpoint=checkpoint, path=path, passed_over=tuple(passed_over))
        if passed_over:
            raise CorruptionError(
                f"No checkpoint in {self._directory} is intact",
                why="; ".join(passed_over),
                fix="put the folder back from a copy or a backup, or begin another run",
            )
        return None

    def holding(
        self, version: PolicyVersion, *, run: RunId, policy_kind: str, base_digest: str = ""
    ) -> FoundCheckpoint:
        """The newest checkpoint that holds ``version``.

        Raises:
            NotFoundError: none does.
            CorruptionError: it is damaged.
            StaleFolderError: as ``newest``.
        """
        path = self._path_of(version)
        checkpoint = read(path)
        _check_belongs(path, checkpoint, run=run, policy_kind=policy_kind, base_digest=base_digest)
        return FoundCheckpoint(checkpoint=checkpoint, path=path, passed_over=())

    def verify(self, version: PolicyVersion) -> None:
        """Check the newest checkpoint that holds ``version`` byte by byte, without loading its tensors.

        Raises:
            NotFoundError: none does.
            CorruptionError: it is damaged.
        """
        _verified_manifest(self._path_of(version))

    def delete_after(self, path: Path) -> None:
        """Delete every checkpoint that was written after the one at ``path``.

        Raises:
            OSError: the disk failed; the newest ones may be gone.
        """
        for newer in reversed(self.paths()):
            if newer.name <= path.name:
                break
            shutil.rmtree(newer)
        sync_folder(self._directory)

    def _path_of(self, version: PolicyVersion) -> Path:
        found = [path for path, held in checkpoints_in(self._directory).items() if held == version]
        if not found:
            raise NotFoundError(f"No checkpoint in {self._directory} holds version {version}")
        return found[-1]

    def _set_aside(self, path: Path) -> None:
        """Move a corrupt checkpoint aside for inspection; only the newest such one is kept."""
        for old in self._directory.glob(f"{CORRUPT_PREFIX}*"):
            shutil.rmtree(old)
        path.rename(self._directory / f"{CORRUPT_PREFIX}{path.name}")


def _check_belongs(
    path: Path, checkpoint: Checkpoint, *, run: RunId, policy_kind: str, base_digest: str
) -> None:
    if checkpoint.run != run or checkpoint.policy_kind != policy_kind:
        raise StaleFolderError(
            f"{path} holds a {checkpoint.policy_kind} policy of run {checkpoint.run}",
            why=f"this is run {run} with a {policy_kind} policy",
            fix="start in a new run folder, or restore this one's settings",
        )
    if checkpoint.base_digest != base_digest:
        raise StaleFolderError(
            f"{path} holds adapters of the model {checkpoint.base_digest or 'none'!r}",
            why=f"policy.path is now the model {base_digest or 'none'!r}",
            fix="set policy.path to the model that the run started with, or start in a new run folder",
        )


def checkpoints_in(directory: Path) -> dict[Path, PolicyVersion]:
    """Every checkpoint of a folder, oldest first, with the version that it holds; nothing is opened or changed.

    What has another name, such as a copy that a person made, is no checkpoint of the run.
    """
    found: dict[Path, PolicyVersion] = {}
    for path in sorted(directory.iterdir()):
        version = version_named(path.name)
        if version is not None:
            found[path] = version
    return found


def version_named(name: str) -> PolicyVersion | None:
    """The version that the checkpoint of this name holds; None where it is no name of a checkpoint."""
    named = _NAME.fullmatch(name)
    return named and PolicyVersion(lineage=LineageName(named["lineage"]), step=int(named["step"]))


def adopt(partial: Path, name: str) -> None:
    """Make a folder beside the checkpoints, into which one of another learner was copied, the only checkpoint.

    At any moment the newest checkpoint is that one, or what was the newest before. ``partial``: its files are synced.

    Raises:
        CorruptionError: a file is missing or does not match its digest; nothing was changed.
        OSError: the disk refused.
    """
    _verified_manifest(partial)
    sync_folder(partial)
    directory = partial.parent
    others = [path for path in checkpoints_in(directory) if path.name != name]
    for newer in (path for path in others if path.name > name):  # of a branch that was abandoned
        shutil.rmtree(newer)
    shutil.rmtree(directory / name, ignore_errors=True)
    partial.rename(directory / name)
    sync_folder(directory)
    for older in (path for path in others if path.name < name):
        shutil.rmtree(older)


def read(path: Path) -> Checkpoint:
    """Read one checkpoint and verify every byte against the manifest.

    Raises:
        CorruptionError: a file is missing, does not match its digest, or cannot be read for good; the message names it.
        StaleFolderError: another version of this program wrote it.
        OSError: it cannot be read at present, such as without a file descriptor.
    """
    try:
        return _read(path)
    except OSError as error:
        if error.errno not in LOST_ERRNOS:
            raise
        raise CorruptionError(f"{path} cannot be read", why=str(error)) from error


def _read(path: Path) -> Checkpoint:
    manifest = _read_manifest(path)
    data = _read_file(path / STATE_FILE)
    _check(path / STATE_FILE, manifest, entry_of(data))
    state = _read_state(path, data)
    policy = _read_tensors(path / POLICY_FILE, manifest)
    tensors = _read_tensors(path / TRAINER_FILE, manifest)
    return Checkpoint(
        run=state.run,
        policy_kind=state.policy_kind,
        progress=state.progress,
        lineages=state.lineages,
        consumed=state.consumed,
        policy=policy,
        trainer=TrainerState(tensors=tensors, values=state.trainer_values),
        written_at_s=state.written_at_s,
        base_digest=state.base_digest,
        forked_from=state.forked_from,
    )


def sampled_units(directory: Path) -> LearnerTotals | None:
    """What the newest checkpoint in a folder counts of replay, without its tensors; None where none can be read."""
    for path in reversed(checkpoints_in(directory) if directory.is_dir() else {}):
        try:
            data = _read_file(path / STATE_FILE)
            _check(path / STATE_FILE, _read_manifest(path), entry_of(data))
            state = _read_state(path, data)
        except CorruptionError:
            continue
        return learner_totals(state.progress, state.consumed)
    return None


def learner_totals(progress: TrainingProgress, unacknowledged: Sequence[ConsumedBatch]) -> LearnerTotals:
    """The learner's side of the audit of replay, without batches whose commit may be on its way.

    ``unacknowledged``: batches of the newest updates, in their order.
    """
    pending = [batch for batch in unacknowledged if batch.units]
    if not pending:
        return LearnerTotals(progress.version, progress.sampled_units)
    num_pending = sum(len(places) for batch in pending for places in batch.units.values())
    return LearnerTotals(pending[0].version, progress.sampled_units - num_pending)


def fork(path: Path, directory: Path, *, run: RunId) -> RunId:
    """Copy the checkpoint at ``path`` into the new, empty folder ``directory`` as the start of another run.

    The copy keeps policy, optimiser, version and lineages; its counts of what was consumed and its window of returns
    start at zero, because they are of the run. Tensors are copied without loading them. Returns the run that it was of.

    Raises:
        CorruptionError: a file is missing or does not match its digest; nothing was written.
        StaleFolderError: another version of this program wrote it.
    """
    manifest = _verified_manifest(path)
    state = _read_state(path, _read_file(path / STATE_FILE))
    start = msgspec.structs.replace(
        state,
        run=run,
        progress=TrainingProgress(version=state.progress.version),
        consumed=(),
        forked_from=state.run,
    )
    copy = directory / f"{1:08d}.{state.progress.version.lineage}.{state.progress.version.step}"
    copy.mkdir(parents=True)
    for name in (POLICY_FILE, TRAINER_FILE):
        shutil.copyfile(path / name, copy / name)
    data = msgspec.json.encode(start)
    _write_synced(copy / STATE_FILE, data)
    entries = {**manifest, STATE_FILE: entry_of(data)}
    _write_synced(copy / MANIFEST_FILE, msgspec.json.encode(entries))
    sync_folder(copy)
    return state.run


def _verified_manifest(path: Path) -> dict[str, FileEntry]:
    """The manifest of a checkpoint whose files match it; tensors are not loaded."""
    manifest = _read_manifest(path)
    for name in (STATE_FILE, POLICY_FILE, TRAINER_FILE):
        if not (path / name).is_file():
            raise CorruptionError(f"{path / name} is missing")
        with (path / name).open("rb") as file:
            digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST_BYTES)).hexdigest()
            _check(path / name, manifest, FileEntry(size=file.tell(), digest=digest))
    return manifest


def _read_manifest(path: Path) -> dict[str, FileEntry]:
    try:
        return msgspec.json.decode(_read_file(path / MANIFEST_FILE), type=dict[str, FileEntry])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptionError(f"{path / MANIFEST_FILE} cannot be read", why=str(error)) from error


def _check(file: Path, manifest: Mapping[str, FileEntry], found: FileEntry) -> None:
    if manifest.get(file.name) != found:
        raise CorruptionError(f"{file} is corrupt", why="its digest does not match")


def _read_tensors(file: Path, manifest: Mapping[str, FileEntry]) -> dict[str, Array]:
    try:
        tensors, found = read_tensors(file)
    except FileNotFoundError as error:
        raise CorruptionError(f"{file} is missing") from error
    _check(file, manifest, found)
    return tensors


def _read_state(path: Path, data: bytes) -> _CheckpointState:
    found = msgspec.json.decode(data, type=_Format).format
    if found != FORMAT:
        raise StaleFolderError(
            f"{path} has checkpoint format {found}",
            why=f"this program reads format {FORMAT}",
            fix="resume with the version that wrote it, or start in a new run folder",
        )
    try:
        return msgspec.json.decode(data, type=_CheckpointState)
    except msgspec.ValidationError as error:
        raise CorruptionError(f"{path} cannot be read", why=str(error)) from error


def _write_files(directory: Path, checkpoint: Checkpoint) -> None:
    state = msgspec.json.encode(
        _CheckpointState(
            format=FORMAT,
            run=checkpoint.run,
            policy_kind=checkpoint.policy_kind,
            progress=checkpoint.progress,
            lineages=checkpoint.lineages,
            consumed=checkpoint.consumed,
            trainer_values=checkpoint.trainer.values,
            written_at_s=checkpoint.written_at_s,
            base_digest=checkpoint.base_digest,
            forked_from=checkpoint.forked_from,
        )
    )
    _write_synced(directory / STATE_FILE, state)
    manifest = {
        STATE_FILE: entry_of(state),
        POLICY_FILE: write_tensors(directory / POLICY_FILE, checkpoint.policy),
        TRAINER_FILE: write_tensors(directory / TRAINER_FILE, checkpoint.trainer.tensors),
    }
    _write_synced(directory / MANIFEST_FILE, msgspec.json.encode(manifest))
    sync_folder(directory)


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise CorruptionError(f"{path} is missing") from error


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
