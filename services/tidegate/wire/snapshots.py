"""The messages of ``SnapshotService``: what a backup copies of a service, and the moments that must fit each other."""

from typing import Literal, Protocol

import msgspec

from tidegate.core.ids import PolicyVersion
from tidegate.v1 import snapshot_service_pb2 as pb
from tidegate.v1.snapshot_service_pb2_grpc import add_SnapshotServiceServicer_to_server
from tidegate.wire.bounds import BATCH_MAX, check_count, check_name, check_version
from tidegate.wire.chunks import chunk_serializer
from tidegate.wire.convert import version_from_proto, version_to_proto

SNAPSHOTS_NAME = "tidegate.v1.SnapshotService"
add_snapshots = add_SnapshotServiceServicer_to_server
READ_METHOD = "ReadSnapshot"
# How long a caller may take to read one: the longest backup.
DEADLINE_S = 4 * 3600.0
serialize_response = chunk_serializer(1)


class JournalMoment(msgspec.Struct, frozen=True):
    """The task queue's journal. ``next_seq``: of the next task; ``running``: trajectories without a known outcome."""

    next_seq: int
    admitted: int
    running: tuple[str, ...]


class LedgerMoment(msgspec.Struct, frozen=True):
    """Trajectories of the ledger. ``beyond_checkpoint``: trained by updates that the checkpoint does not hold.

    ``in_flight``: of the journal's running ones, those that have not arrived.
    """

    trained: int
    beyond_checkpoint: int
    waiting: int
    in_flight: int


class SnapshotRequest(msgspec.Struct, frozen=True):
    """Empty, but for the trajectory store, whose moment follows the learner's and the task queue's."""

    checkpoint: PolicyVersion | None = None
    journal: JournalMoment | None = None


class SnapshotOpened(msgspec.Struct, frozen=True):
    """What the moments of other services must fit, of the service that answers."""

    checkpoint: PolicyVersion | None = None
    journal: JournalMoment | None = None
    ledger: LedgerMoment | None = None


class FilePart(Protocol):
    """A message of an answer that streams files."""

    chunk: bytes

    @property
    def file(self) -> pb.SnapshotFile:
        """Set before the bytes of a file, in a message of its own."""
        ...

    def HasField(self, field_name: Literal["file"], /) -> bool:  # noqa: N802  # protobuf's name
        """Whether ``file`` is set."""
        ...


class FileHeader(msgspec.Struct, frozen=True):
    """A file by its path in the run folder, before its bytes."""

    path: str
    size: int


def request_to_proto(request: SnapshotRequest) -> pb.ReadSnapshotRequest:
    """A request as a message."""
    return pb.ReadSnapshotRequest(
        checkpoint=None if request.checkpoint is None else version_to_proto(request.checkpoint),
        journal=None if request.journal is None else _journal_to_proto(request.journal),
    )


def request_from_proto(message: pb.ReadSnapshotRequest) -> SnapshotRequest:
    """A request that was checked.

    Raises:
        RecordError: it holds what no backup asks for.
    """
    if message.HasField("checkpoint"):
        check_version(message.checkpoint, "The version of the checkpoint")
    if message.HasField("journal"):
        check_count(len(message.journal.running), "running trajectories", max_count=BATCH_MAX)
        for name in message.journal.running:
            check_name(name, "The id of a trajectory")
    return SnapshotRequest(
        checkpoint=version_from_proto(message.checkpoint) if message.HasField("checkpoint") else None,
        journal=_journal_from_proto(message.journal) if message.HasField("journal") else None,
    )


def opened_to_proto(opened: SnapshotOpened) -> pb.ReadSnapshotResponse:
    """The first message of an answer."""
    return pb.ReadSnapshotResponse(
        opened=pb.SnapshotOpened(
            checkpoint=None if opened.checkpoint is None else version_to_proto(opened.checkpoint),
            journal=None if opened.journal is None else _journal_to_proto(opened.journal),
            ledger=None
            if opened.ledger is None
            else pb.LedgerMoment(**msgspec.structs.asdict(opened.ledger)),
        )
    )


def file_to_proto(header: FileHeader) -> pb.ReadSnapshotResponse:
    """The message before the bytes of a file."""
    return pb.ReadSnapshotResponse(file=pb.SnapshotFile(path=header.path, size=header.size))


def response_from_proto(message: pb.ReadSnapshotResponse) -> SnapshotOpened | FileHeader | bytes:
    """One message of an answer."""
    if message.HasField("opened"):
        return _opened_from_proto(message.opened)
    return file_part_from_proto(message)


def file_part_from_proto(message: FilePart) -> FileHeader | bytes:
    """One message of files: what comes before the bytes of each, or the next of them."""
    if message.HasField("file"):
        return FileHeader(message.file.path, message.file.size)
    return message.chunk


def _opened_from_proto(message: pb.SnapshotOpened) -> SnapshotOpened:
    ledger = message.ledger
    return SnapshotOpened(
        checkpoint=version_from_proto(message.checkpoint) if message.HasField("checkpoint") else None,
        journal=_journal_from_proto(message.journal) if message.HasField("journal") else None,
        ledger=LedgerMoment(ledger.trained, ledger.beyond_checkpoint, ledger.waiting, ledger.in_flight)
        if message.HasField("ledger")
        else None,
    )


def _journal_to_proto(moment: JournalMoment) -> pb.JournalMoment:
    return pb.JournalMoment(
        next_seq=moment.next_seq, admitted_trajectories=moment.admitted, running=moment.running
    )


def _journal_from_proto(message: pb.JournalMoment) -> JournalMoment:
    return JournalMoment(message.next_seq, message.admitted_trajectories, tuple(message.running))
