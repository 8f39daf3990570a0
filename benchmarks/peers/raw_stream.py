"""A gRPC server that streams bytes from memory as they are: no messages, no files, no digests.

Usage: ``python -m benchmarks.peers.raw_stream ADDRESS BYTES CHUNK_BYTES``; ends at SIGTERM.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc
import uvloop

from tidegate.runtime.rpc import MESSAGE_BYTES_MAX

SERVICE = "bench.Raw"
METHOD = "Pull"
OPTIONS = [
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
]


async def serve(address: str, num_bytes: int, chunk_bytes: int) -> None:
    """Until SIGTERM."""
    # Written: bytes(n) maps one page of zeros n / 4096 times, which never leaves the cache, as weights do.
    chunks = [b"\1" * min(chunk_bytes, num_bytes - start) for start in range(0, num_bytes, chunk_bytes)]

    async def pull(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    server = grpc.aio.server(options=OPTIONS)
    handlers: dict[str, Any] = {METHOD: cast("Any", grpc).unary_stream_rpc_method_handler(pull)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.add_insecure_port(address)
    await server.start()
    await stopped.wait()
    await server.stop(0.5)


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
