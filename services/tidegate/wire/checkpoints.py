"""The messages by which a learner sends its newest checkpoint to one that stands by."""

from tidegate.core.ids import PolicyVersion
from tidegate.v1 import learner_service_pb2 as pb
from tidegate.v1.snapshot_service_pb2 import SnapshotFile
from tidegate.wire.chunks import chunk_serializer
from tidegate.wire.convert import version_to_proto
from tidegate.wire.snapshots import FileHeader

READ_CHECKPOINT_METHOD = "ReadCheckpoint"
# How long a caller may take: of a model of a hundred gigabytes at 30 MB/s.
READ_CHECKPOINT_DEADLINE_S = 3600.0
serialize_checkpoint_response = chunk_serializer(1)


def checkpoint_request(known: PolicyVersion | None) -> pb.ReadCheckpointRequest:
    """Asks for the newest checkpoint, unless it holds ``known``."""
    return pb.ReadCheckpointRequest(known=None if known is None else version_to_proto(known))


def checkpoint_file_to_proto(header: FileHeader) -> pb.ReadCheckpointResponse:
    """The message before the bytes of a file."""
    return pb.ReadCheckpointResponse(file=SnapshotFile(path=header.path, size=header.size))
