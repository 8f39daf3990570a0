"""The messages of ``RecordsService``: the files from which a page shows a run."""

from tidegate.v1 import records_service_pb2 as pb
from tidegate.v1.records_service_pb2_grpc import add_RecordsServiceServicer_to_server
from tidegate.v1.snapshot_service_pb2 import SnapshotFile
from tidegate.wire.chunks import chunk_serializer
from tidegate.wire.snapshots import FileHeader

RECORDS_NAME = "tidegate.v1.RecordsService"
add_records = add_RecordsServiceServicer_to_server
READ_RECORDS_METHOD = "ReadRecords"
# How long a caller may take to read them.
RECORDS_DEADLINE_S = 900.0
serialize_records_response = chunk_serializer(1)


def record_file_to_proto(header: FileHeader) -> pb.ReadRecordsResponse:
    """The message before the bytes of a file."""
    return pb.ReadRecordsResponse(file=SnapshotFile(path=header.path, size=header.size))
