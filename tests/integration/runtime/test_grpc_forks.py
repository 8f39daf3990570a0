"""Programs that are started beside gRPC, by real forks."""

import os
import subprocess
import sys

import pytest

from tidegate.runtime.grpc_forks import SETTING

pytestmark = [pytest.mark.integration, pytest.mark.slow]

# gRPC's fork handlers log a line where they meet a thread that uses gRPC: the poller of a server is one.
PROGRAM = """
import asyncio, sys
if sys.argv[1] == "as a command":
    from tidegate.runtime.grpc_forks import leave_grpc_out_of_forks
    leave_grpc_out_of_forks()
from grpc import aio
import uvloop

async def main():
    server = aio.server()
    server.add_insecure_port("127.0.0.1:0")
    await server.start()
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await process.wait()
    await server.stop(None)

uvloop.run(main())
"""


def errors_of(how: str) -> str:
    environ = {name: value for name, value in os.environ.items() if name != SETTING}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how],
        env={**environ, "GRPC_VERBOSITY": "INFO"},
        capture_output=True,
        text=True,
        timeout=120.0,
        check=True,
    )
    return done.stderr


def test_a_fork_of_the_event_loop_runs_no_handler_of_grpc() -> None:
    assert "fork" not in errors_of("as a command")


def test_grpc_itself_runs_its_handlers_in_each_fork() -> None:
    assert "fork() handlers" in errors_of("as grpc is"), (
        "nothing is left to switch off, or this test looks elsewhere"
    )
