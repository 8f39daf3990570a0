"""A server as a child: it ends with its actor, and none of its processes outlives it. The servers here are shells."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support.processes import is_alive
from tidegate.actor.engines.server_process import ServerProcess
from tidegate.core.errors import UnavailableError

pytestmark = pytest.mark.integration

# A server of two processes, of which the second writes its process id to a file.
TWO = 'sleep 600 & echo $! > "$1.new"; mv "$1.new" "$1"; wait'
# The same, and the second removes its shared file at SIGTERM.
TIDY = (
    """(trap 'rm "$2"; exit' TERM; echo ready > "$1.trap"; while true; do sleep 0.05; done) & second=$!; """
    """until test -e "$1.trap"; do sleep 0.05; done; echo $second > "$1.new"; mv "$1.new" "$1"; wait"""
)
ACTOR = """
import asyncio, sys
from pathlib import Path
from tidegate.actor.engines.server_process import ServerProcess

async def main():
    command = ["/bin/sh", "-c", sys.argv[1], "server", sys.argv[2]]
    process = ServerProcess(command, environment={}, log=Path(sys.argv[3]))
    await process.start()
    await asyncio.sleep(600)

asyncio.run(main())
"""
# A guard that is stopped when its server already runs and Popen has not returned.
STOPPED_EARLY = """
import os, signal, subprocess, sys, time
from pathlib import Path
from tidegate.actor.engines import server_guard

popen = subprocess.Popen

def stopped_early(*arguments, **options):
    server = popen(*arguments, **options)
    while not Path(sys.argv[2]).exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
    return server

subprocess.Popen = stopped_early
sys.exit(server_guard.main([str(os.getppid()), "/bin/sh", "-c", sys.argv[1], "server", sys.argv[2]]))
"""


def shell(script: str, folder: Path, *arguments: str) -> ServerProcess:
    return ServerProcess(
        ["/bin/sh", "-c", script, "server", *arguments], environment={"GREETING": "hello"}, log=folder / "log"
    )


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


async def test_an_ended_server_is_reported_with_its_last_output(tmp_path: Path) -> None:
    process = shell("echo $GREETING and goodbye; exit 7", tmp_path)
    await process.start()

    words = list[str]()

    def ended() -> bool:
        try:
            process.check()
        except UnavailableError as error:
            words.append(str(error))
        return bool(words)

    await until(ended)
    assert "exit code 7" in words[0]
    assert "hello and goodbye" in words[0]
    await process.stop()


async def test_stopping_ends_all_of_its_processes(tmp_path: Path) -> None:
    process = shell(TWO, tmp_path, str(tmp_path / "pid"))
    await process.start()
    await until((tmp_path / "pid").exists)
    second = int((tmp_path / "pid").read_text())
    process.check()
    await process.stop()
    await until(lambda: not is_alive(second))


async def test_a_server_whose_first_process_dies_leaves_no_second_one(tmp_path: Path) -> None:
    process = shell(TWO, tmp_path, str(tmp_path / "pid"))
    await process.start()
    await until((tmp_path / "pid").exists)
    second = int((tmp_path / "pid").read_text())
    os.kill(psutil.Process(second).ppid(), signal.SIGKILL)
    await until(lambda: not is_alive(second))
    await process.stop()


async def test_remaining_processes_may_clean_up_before_they_end(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.touch()
    process = shell(TIDY, tmp_path, str(tmp_path / "pid"), str(shared))
    await process.start()
    await until((tmp_path / "pid").exists)
    second = int((tmp_path / "pid").read_text())
    os.kill(psutil.Process(second).ppid(), signal.SIGKILL)
    await until(lambda: not is_alive(second))
    assert not shared.exists()
    await process.stop()


async def test_a_killed_actor_ends_its_server(tmp_path: Path) -> None:
    pid, log = tmp_path / "pid", tmp_path / "log"
    actor = await asyncio.create_subprocess_exec(sys.executable, "-c", ACTOR, TWO, str(pid), str(log))
    try:
        await until(pid.exists)
        second = int(pid.read_text())
    finally:
        actor.kill()
        await actor.wait()
    await until(lambda: not is_alive(second))


async def test_a_guard_stopped_while_it_starts_its_server_ends_the_server(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    guard = await asyncio.create_subprocess_exec(sys.executable, "-c", STOPPED_EARLY, TWO, str(pid))
    assert await guard.wait() == 1
    await until(lambda: not is_alive(int(pid.read_text())))
