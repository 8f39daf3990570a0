"""Client of the services whose records a page shows."""

import grpc

from tidegate.v1.records_service_pb2 import ReadRecordsRequest
from tidegate.v1.records_service_pb2_grpc import RecordsServiceStub
from tidegate.wire.clients.file_stream import FileStream
from tidegate.wire.clients.remote import remote_errors
from tidegate.wire.records import RECORDS_DEADLINE_S
from tidegate.wire.snapshots import FileHeader, file_part_from_proto


def read_records(channel: grpc.aio.Channel, *, service: str) -> FileStream[FileHeader | bytes]:
    """The records of one service; close it. ``service``: what an error names.

    Raises:
        TidegateError: the service refused.
    """
    with remote_errors(service):
        call = RecordsServiceStub(channel).ReadRecords(ReadRecordsRequest(), timeout=RECORDS_DEADLINE_S)
    return FileStream(call, service=service, decode=file_part_from_proto)
