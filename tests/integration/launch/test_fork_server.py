"""The fork server with its client, as the supervisor uses both; services wait for a broker that is not there."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from tests.support.processes import is_alive
from tidegate.launch.fork_server.client import ForkedProcess, ServiceStarter
from tidegate.launch.fork_server.kinds import LIGHT
from tidegate.launch.fork_server.preloading import is_supported
from tidegate.launch.processes import fork_server_process
from tidegate.launch.programs import ProcessSpec, RunningProcess
from tidegate.launch.run_file import read_run_file
from tidegate.launch.run_folder import new_record, write_record
from tidegate.launch.supervisor import ProcessView, Supervisor

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not is_supported(), reason="the fork server needs Linux"),
]

ROOT = Path(__file__).parents[3]
PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture(autouse=True)
def no_orphans_adopted_afterwards() -> Iterator[None]:
    """The starter makes this process adopt orphans; other tests expect the system to reap theirs."""
    yield
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_record(tmp_path, new_record(read_run_file(ROOT / "runs" / "cartpole.yaml", [])))
    return tmp_path


@pytest.fixture
async def supervisor(folder: Path) -> AsyncIterator[Supervisor]:
    starter = ServiceStarter(title=f"--run-dir {folder}")
    supervisor = Supervisor(start=starter.start)
    yield supervisor
    supervisor.kill_all()
    await until(lambda: not any(is_alive(pid) for pid in pids_of(supervisor)))


def fork_server(folder: Path) -> ProcessSpec:
    return fork_server_process(read_run_file(ROOT / "runs" / "cartpole.yaml", []), folder, LIGHT)


def service(name: str, *, run_dir: Path, log: Path) -> ProcessSpec:
    arguments = [name, "--run-dir", str(run_dir), "--index", "0"]
    command = [sys.executable, "-m", "tidegate.cli.main", "serve", *arguments]
    return ProcessSpec(name, command, log, fork_server=LIGHT, serve=arguments, modules=["no.such.module"])


def view_of(supervisor: Supervisor, name: str) -> ProcessView:
    return next(view for view in supervisor.view() if view.name == name)


def pids_of(supervisor: Supervisor) -> list[int]:
    return [view.pid for view in supervisor.view() if view.pid is not None]


def title_of(pid: int) -> str:
    return " ".join(psutil.Process(pid).cmdline())


FAILING_SERVICE = """
import os
from unittest import mock
from tidegate.launch import serve
from tidegate.launch.fork_server import preloading, server
with mock.patch.object(server.ForkServer, "run", lambda self: ["admission"]), mock.patch.object(
    serve, "main", side_effect=MemoryError("no page left")
):
    try:
        preloading.serve_forks("fork-server", None, supervisor_pid=os.getpid())
    finally:
        print("cleaned up")
"""


def test_error_that_ends_a_forked_service_runs_nothing_of_the_supervisor_that_it_was_forked_from() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAILING_SERVICE], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert "no page left" in done.stderr
    assert done.stdout == ""


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def started(supervisor: Supervisor, spec: ProcessSpec) -> int:
    supervisor.start(spec)
    await until(lambda: view_of(supervisor, spec.name).pid is not None)
    pid = view_of(supervisor, spec.name).pid
    assert pid is not None
    return pid


async def test_forked_service_is_a_child_of_the_supervisor_with_a_session_title_and_log(
    supervisor: Supervisor, folder: Path
) -> None:
    server = await started(supervisor, fork_server(folder))
    log = folder / "logs" / "environment.log"
    pid = await started(supervisor, service("environment", run_dir=folder, log=log))
    assert psutil.Process(pid).ppid() == os.getpid()
    assert psutil.Process(server).children() == []
    assert os.getpgid(pid) == os.getsid(pid) == pid
    assert title_of(pid) == f"tidegate serve environment --run-dir {folder} --index 0"
    await until(lambda: title_of(server) == f"tidegate fork-server --run-dir {folder}")
    assert os.readlink(f"/proc/{pid}/fd/1") == os.readlink(f"/proc/{pid}/fd/2") == str(log)
    assert os.readlink(f"/proc/{pid}/fd/0") == os.devnull


async def test_exit_code_of_a_forked_service_reaches_the_supervisor(
    supervisor: Supervisor, folder: Path
) -> None:
    await started(supervisor, fork_server(folder))
    log = folder / "elsewhere.log"
    supervisor.start(service("task_queue", run_dir=folder / "no-run-folder", log=log))
    await asyncio.wait_for(supervisor.failed.wait(), timeout=60)
    assert "it rejects its settings or its folder" in str(supervisor.failure)
    assert "is no run folder" in log.read_text(encoding="utf-8")


async def test_killed_service_is_forked_again_with_its_restart_counted(
    supervisor: Supervisor, folder: Path
) -> None:
    await started(supervisor, fork_server(folder))
    pid = await started(supervisor, service("environment", run_dir=folder, log=folder / "e.log"))
    os.kill(pid, signal.SIGKILL)
    await until(lambda: view_of(supervisor, "environment").pid not in (None, pid))
    again = view_of(supervisor, "environment")
    assert again.pid is not None
    assert title_of(again.pid).startswith("tidegate serve")
    assert again.restarts == 1


async def test_killed_fork_server_takes_no_service_with_it_and_comes_back(
    supervisor: Supervisor, folder: Path
) -> None:
    server = await started(supervisor, fork_server(folder))
    pid = await started(supervisor, service("environment", run_dir=folder, log=folder / "e.log"))
    os.kill(server, signal.SIGKILL)
    await until(lambda: view_of(supervisor, LIGHT).pid not in (None, server))
    assert is_alive(pid)
    assert view_of(supervisor, "environment").restarts == 0
    other = await started(supervisor, service("task_queue", run_dir=folder, log=folder / "t.log"))
    assert title_of(other).startswith("tidegate serve task_queue"), "it is forked by the new server"


async def test_service_starts_as_a_program_while_there_is_no_fork_server(
    supervisor: Supervisor, folder: Path
) -> None:
    pid = await started(supervisor, service("environment", run_dir=folder, log=folder / "e.log"))
    assert "tidegate.cli.main serve environment" in title_of(pid)


async def test_service_starts_as_a_program_when_the_fork_server_dies_under_its_request(folder: Path) -> None:
    starter = ServiceStarter(title="")
    server = await starter.start(fork_server(folder))
    os.kill(server.pid, signal.SIGSTOP)
    request = asyncio.create_task(starter.start(service("environment", run_dir=folder, log=folder / "e.log")))
    await asyncio.sleep(0)
    os.kill(server.pid, signal.SIGKILL)
    process: RunningProcess = await request
    assert not isinstance(process, ForkedProcess)
    assert "tidegate.cli.main serve environment" in title_of(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    assert await process.wait() == -signal.SIGKILL
    assert await server.wait() == -signal.SIGKILL


def test_forked_service_dies_with_a_supervisor_that_is_killed(folder: Path) -> None:
    source = f"""
import asyncio, pathlib, sys
from tests.integration.launch.test_fork_server import fork_server, service, started
from tidegate.launch.fork_server.client import ServiceStarter
from tidegate.launch.supervisor import Supervisor

async def main():
    folder = pathlib.Path({str(folder)!r})
    supervisor = Supervisor(start=ServiceStarter(title="").start)
    server = await started(supervisor, fork_server(folder))
    print(server, await started(supervisor, service("environment", run_dir=folder, log=folder / "e.log")), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""
    with subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        alive = [is_alive(pid) for pid in pids]
        process.kill()
    assert alive == [True, True]
    asyncio.run(until(lambda: not any(is_alive(pid) for pid in pids)))


async def test_orphan_of_a_dead_service_is_reaped(supervisor: Supervisor, folder: Path) -> None:
    await started(supervisor, fork_server(folder))
    source = "import subprocess, sys; print(subprocess.Popen(['sleep', '0']).pid, flush=True)"
    ends = ProcessSpec("ends", [sys.executable, "-c", source], folder / "ends.log")
    supervisor.start(ends)
    await until(lambda: bool(ends.log.exists() and ends.log.read_text(encoding="utf-8").strip()))
    orphan = int(ends.log.read_text(encoding="utf-8").split()[0])

    def is_reaped() -> bool:
        supervisor.reap_orphans()
        return not psutil.pid_exists(orphan)

    await until(is_reaped)


def program_that_refuses_its_settings() -> "subprocess.Popen[bytes]":
    """It has ended, and nobody has waited for it."""
    program = subprocess.Popen([sys.executable, "-S", "-c", "raise SystemExit(2)"])
    os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
    return program


async def test_process_that_ends_before_its_start_has_returned_is_no_orphan() -> None:
    """Otherwise its exit code would be lost, and with it the reason not to start it again."""
    refused = program_that_refuses_its_settings()

    async def start(_spec: ProcessSpec) -> RunningProcess:
        supervisor.reap_orphans()
        return ForkedProcess(refused.pid)

    supervisor = Supervisor(start=start)
    supervisor.start(ProcessSpec("ends", [], Path(os.devnull)))
    await asyncio.wait_for(supervisor.failed.wait(), timeout=60)
    assert "it rejects its settings" in str(supervisor.failure)


async def test_exit_code_of_a_process_beside_the_run_is_left_to_who_waits_for_it() -> None:
    """Otherwise a tracker or a backup that failed during the run would count as one that succeeded."""
    failed = program_that_refuses_its_settings()
    supervisor = Supervisor(beside=[failed])
    supervisor.reap_orphans()
    assert failed.wait() == 2


async def test_fork_server_in_which_a_library_started_a_thread_forks_nothing(
    supervisor: Supervisor, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # a program finds no module of its working directory
    await started(supervisor, fork_server(folder))
    spec = service("environment", run_dir=folder, log=folder / "e.log")
    spec = msgspec.structs.replace(spec, modules=["tests.support.starts_a_thread"])
    pid = await started(supervisor, spec)
    assert "tidegate.cli.main serve environment" in title_of(pid), "as a program instead"
    assert "2 threads" in (folder / "logs" / "fork-server.log").read_text(encoding="utf-8")


def test_forked_child_shows_and_inherits_nothing_of_the_secrets_of_its_parent() -> None:
    source = """
import os, sys
from pathlib import Path
from tidegate.launch.fork_server.preloading import begin_child, prepare
prepare()
parent_pid = os.getpid()
if os.fork() == 0:
    begin_child(parent_pid, ("MINE",), title="tidegate child")
    print(b"hidden-value" in Path("/proc/self/environ").read_bytes())
    print("SOME_API_KEY" in os.environ, os.environ["MINE"], Path("/proc/self/cmdline").read_text()[:14], flush=True)
    os._exit(0)
os.wait()
"""
    environment = {**os.environ, "SOME_API_KEY": "hidden-value", "MINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", source], env=environment, capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.splitlines() == ["False", "False 1 tidegate child"]
