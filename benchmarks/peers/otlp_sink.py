"""An OTLP/gRPC receiver that accepts everything and keeps nothing; it prints now and then how much it received.

Usage: ``python -m benchmarks.peers.otlp_sink ADDRESS COUNTS_FILE``; ends at SIGTERM.
"""

import signal
import sys
import threading
from concurrent import futures
from pathlib import Path
from typing import Any, cast

import grpc
import msgspec

from tidegate.runtime.files import replace_file

COUNTS_PERIOD_S = 0.5


class Counts(msgspec.Struct):
    """Exports and their bytes, by signal."""

    trace_exports: int = 0
    trace_bytes: int = 0
    metric_exports: int = 0
    metric_bytes: int = 0


class Sink(grpc.GenericRpcHandler):
    """Answers every method with an empty message, which is what an export that went well answers."""

    def __init__(self) -> None:
        """Nothing came yet."""
        self.counts = Counts()

    def service(self, handler_call_details: Any) -> Any:
        """Any method."""
        traces = "Trace" in handler_call_details.method

        def export(request: bytes, _context: Any) -> bytes:
            counts = self.counts
            if traces:
                counts.trace_exports += 1
                counts.trace_bytes += len(request)
            else:
                counts.metric_exports += 1
                counts.metric_bytes += len(request)
            return b""

        return cast("Any", grpc).unary_unary_rpc_method_handler(export)


def main(arguments: list[str]) -> int:
    """Serve until SIGTERM; returns the exit code."""
    address, counts_file = arguments
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stopped.set())
    sink = Sink()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=1))
    server.add_generic_rpc_handlers((sink,))
    server.add_insecure_port(address)
    server.start()
    path = Path(counts_file)
    while not stopped.wait(COUNTS_PERIOD_S):
        replace_file(path, msgspec.json.encode(sink.counts))
    server.stop(grace=None)
    replace_file(path, msgspec.json.encode(sink.counts))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
