"""The state of a run in a cluster, whose owners stream what they keep; nothing of it is written in this pod.

The order of the moments makes the parts fit each other, as on one machine (``snapshot``), with the calls in place of
reads:

1. Weight distribution opens the best version and the learner its newest checkpoint: open files outlive a deletion.
2. The task queue begins to read its journal; it answers with the number of the next task.
3. The trajectory store begins to read its ledger after that answer. It refuses where the ledger has a trajectory of a
   task from that number on, which needs a task that was admitted, played and stored within two calls, and both look
   again.

So the journal's moment J is before the ledger's L, and the checkpoint's C before both:

- every trajectory of L is admitted in J, by the check of 3;
- every outcome that J knows is in L: the ledger logs it before the task queue can read it, and J is before L. Outcomes
  of L that J does not know follow from J's cursor, as after a restart of the task queue;
- every update that C holds is trained in L or in C's list of batches without an acknowledged commit: the learner
  commits a batch or lists it before it writes a checkpoint, and C is before L.

These are the three relations that a crash of all services at once leaves as well, so a restore is a start from such a
crash. A service that restarts ends its stream, and with it the backup: the one before stays in force.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import grpc
import msgspec

from tidegate.admission.snapshot import LINES as ADMISSION_LINES
from tidegate.core.errors import ConflictError, NotFoundError, RecordError
from tidegate.core.ids import PolicyVersion
from tidegate.launch.backup.manifest import BackupCounts
from tidegate.launch.backup.snapshot import (
    PAIR_ATTEMPTS,
    PAIR_PAUSE_S,
    add_record,
    counts_of,
    file_parts,
    not_seen_together,
)
from tidegate.launch.backup.source import BackupSource, FileParts
from tidegate.launch.cluster import RUN_FILE
from tidegate.launch.run_parsing import parse_plan
from tidegate.launch.run_record import RunRecord
from tidegate.learner.snapshot import NoCheckpointError
from tidegate.runtime.object_storage.place import OBJECT_BYTES_MAX
from tidegate.runtime.snapshots.files import SnapshotFiles
from tidegate.wire.clients.snapshots import SnapshotCall
from tidegate.wire.snapshots import FileHeader, SnapshotRequest

# Of the laptop that resumes the run; where it is taken, another one.
NATS_PORT = 4222
# By service: what of the run folder it may send. Admission's files are on the volume of this pod.
OWN_FILES = {
    "weight_distribution": ("weight_distribution/",),
    "learner": ("learner/",),
    "task_queue": ("task_queue/", "data/"),
    "trajectory_store": ("trajectory_store/",),
}


class PodsSnapshot(msgspec.Struct, frozen=True, eq=False):
    """See the module. ``calls``: by service, each of which has fixed its moment; ``local``: files of this pod."""

    run_id: str
    made_at_s: float
    version: PolicyVersion
    counts: BackupCounts
    calls: dict[str, SnapshotCall]
    local: SnapshotFiles
    left_out: tuple[str, ...]

    async def files(self) -> AsyncIterator[FileParts]:
        """Each file with its parts, one service after the other.

        Raises:
            TidegateError: a service restarted, refused, or did not answer in time.
        """
        for service, call in self.calls.items():
            while (file := await call.next_file()) is not None:
                if not file.path.startswith(OWN_FILES[service]):
                    raise RecordError(f"{service} sent {file.path}", why="this file is not its own")
                yield FileParts(file.path, file.size, _joined(call, file))
        for each in self.local.found:
            yield FileParts(each.path, each.size, file_parts(each))


@asynccontextmanager
async def pods_source(
    record: RunRecord, data_dir: Path, *, staging: Path, channel_to: Callable[[str], grpc.aio.Channel]
) -> AsyncGenerator[BackupSource]:
    """The run of a cluster; its services hold what they opened as long as the block.

    ``data_dir``: on admission's volume. ``staging``: a folder for the two small files that say what the run is.

    Raises:
        NoCheckpointError: the run has no checkpoint yet, or no ledger or journal.
        TidegateError: a service refused, or did not answer in time.
    """
    calls: dict[str, SnapshotCall] = {}

    def begin(service: str) -> SnapshotCall:
        if service in calls:
            calls[service].close()
        calls[service] = SnapshotCall(channel_to(service), service=service)
        return calls[service]

    with ExitStack() as opened:
        local = SnapshotFiles(data_dir, staging=staging, opened=opened)
        try:
            try:
                await begin("weight_distribution").open(SnapshotRequest())
                version = (await begin("learner").open(SnapshotRequest())).checkpoint
                if version is None:
                    raise RecordError("The learner named no checkpoint", why="it runs another version")
                made_at_s = time.time()
                counts = await _open_pair(begin, version, run_id=record.run_id)
            except NotFoundError as error:
                raise NoCheckpointError("The run has nothing to copy yet", why=str(error)) from error
            left_out = _add_run_file(local, record)
            local.add_found(*ADMISSION_LINES)
            yield PodsSnapshot(record.run_id, made_at_s, version, counts, calls, local, left_out)
        finally:
            for call in calls.values():
                call.close()


async def _open_pair(
    begin: Callable[[str], SnapshotCall], version: PolicyVersion, *, run_id: str
) -> BackupCounts:
    for _ in range(PAIR_ATTEMPTS):
        journal = (await begin("task_queue").open(SnapshotRequest())).journal
        try:
            ledger = (await begin("trajectory_store").open(SnapshotRequest(version, journal))).ledger
        except ConflictError:
            await asyncio.sleep(PAIR_PAUSE_S)
            continue
        if journal is None or ledger is None:
            raise RecordError("Task queue or store named no moment", why="one of them runs another version")
        return counts_of(journal, ledger)
    raise not_seen_together(run_id)


async def _joined(call: SnapshotCall, file: FileHeader) -> AsyncIterator[bytes]:
    """The bytes of a file in parts as long as an object."""
    part = bytearray()
    async for chunk in call.bytes_of(file):
        part += chunk
        while len(part) >= OBJECT_BYTES_MAX:
            yield bytes(part[:OBJECT_BYTES_MAX])
            del part[:OBJECT_BYTES_MAX]
    if part:
        yield bytes(part)


def _add_run_file(files: SnapshotFiles, record: RunRecord) -> tuple[str, ...]:
    """``run.json`` and ``run.yaml`` of a run folder, so that a backup is also a run of one machine."""
    left_out: list[str] = []
    file = parse_plan(record.run_file, source=RUN_FILE).file
    if file.policy.kind == "transformers":
        left_out.append(f"policy.path: {file.policy.path}")
    if file.files_dir:
        left_out.append("the files that the run file names (own code, prompts), which its release carries")
    document = {**record.run_file, "files_dir": "", "begin_from": ""}
    add_record(files, record.on_one_machine(), document, nats_port=NATS_PORT)
    return tuple(left_out)
