import asyncio
import errno
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from tests.support.processes import is_alive
from tidegate.launch import supervisor as module
from tidegate.launch.log_tail import final_message
from tidegate.launch.programs import ProcessSpec, RunningProcess, start_program
from tidegate.launch.restarts import CRASHES_MAX
from tidegate.launch.supervisor import (
    LOG_BYTES_MAX,
    REPLICAS_STARTING_MAX,
    TURN_POLL_S,
    ProcessView,
    Supervisor,
)

pytestmark = pytest.mark.integration

SLEEPS = "import time; print('up', flush=True); time.sleep(600)"
DIES = "import sys; print('no such table', file=sys.stderr); sys.exit(1)"
REFUSES = "import sys; print('run.json: unknown field', file=sys.stderr); sys.exit(2)"
FAILS_AND_DRAINS = """
import sys
print('timestamp=t level=error event=loop_failed loop=generate error="the cause"')
print('timestamp=t level=info event=service_stopped failed=true')
sys.exit(1)
"""
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"


def program(name: str, source: str, folder: Path) -> ProcessSpec:
    return ProcessSpec(name=name, command=[sys.executable, "-c", source], log=folder / f"{name}.log")


def view_of(supervisor: Supervisor, name: str) -> ProcessView:
    return next(view for view in supervisor.view() if view.name == name)


def is_up(supervisor: Supervisor, name: str, folder: Path) -> bool:
    """Whether it has printed so, and its start has returned: on a busy machine a program may be the faster of both."""
    return final_message(folder / f"{name}.log") == "up" and view_of(supervisor, name).pid is not None


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


@pytest.fixture
async def supervisor() -> AsyncIterator[Supervisor]:
    supervisor = Supervisor()
    yield supervisor
    supervisor.kill_all()
    await asyncio.sleep(0)


async def test_killed_process_comes_back_with_another_pid(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.start(program("sleeper", SLEEPS, tmp_path))
    await until(lambda: is_up(supervisor, "sleeper", tmp_path))
    pid = view_of(supervisor, "sleeper").pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await until(lambda: view_of(supervisor, "sleeper").pid not in (None, pid))
    assert view_of(supervisor, "sleeper").restarts == 1
    assert supervisor.failure is None


async def test_many_replicas_of_a_service_start_in_turns_and_others_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    async def start(spec: ProcessSpec) -> RunningProcess:
        started.append(spec.name)
        return await start_program(spec)

    supervisor = Supervisor(start=start)
    replicas = [
        msgspec.structs.replace(program(f"actor-{n}", SLEEPS, tmp_path), replica_of="actor")
        for n in range(REPLICAS_STARTING_MAX + 4)
    ]
    try:
        for each in replicas:
            supervisor.start(each)
        supervisor.start(program("learner", SLEEPS, tmp_path))
        await until(lambda: len(started) == REPLICAS_STARTING_MAX + 1)
        await asyncio.sleep(2 * TURN_POLL_S)
        assert len(started) == REPLICAS_STARTING_MAX + 1
        assert "learner" in started
        # Three are ready, and one dies: it is started again, and takes no turn.
        for name in ("actor-0", "actor-1", "actor-2"):
            supervisor.mark_ready(name)
        await until(lambda: len(started) == REPLICAS_STARTING_MAX + 4)
        # One that is never ready makes way after a while.
        monkeypatch.setattr(module, "STARTING_S", 0.0)
        await until(lambda: len(started) == len(replicas) + 1)
    finally:
        await supervisor.stop([*(each.name for each in replicas), "learner"], grace_s=10.0)


async def test_stop_ends_processes_whose_turn_to_start_never_came(tmp_path: Path) -> None:
    supervisor = Supervisor()
    names = [f"actor-{n}" for n in range(REPLICAS_STARTING_MAX + 2)]
    for name in names:
        supervisor.start(msgspec.structs.replace(program(name, SLEEPS, tmp_path), replica_of="actor"))
    await until(lambda: view_of(supervisor, names[REPLICAS_STARTING_MAX - 1]).pid is not None)
    await supervisor.stop(names, grace_s=10.0)
    assert {view.state for view in supervisor.view()} == {"stopped"}
    assert view_of(supervisor, names[-1]).pid is None


async def test_stop_ends_processes_and_starts_none_again(supervisor: Supervisor, tmp_path: Path) -> None:
    for name in ("a", "b"):
        supervisor.start(program(name, SLEEPS, tmp_path))
    await until(lambda: all(is_up(supervisor, name, tmp_path) for name in ("a", "b")))
    pids = [view.pid for view in supervisor.view()]
    await supervisor.stop(["a", "b"], grace_s=10)
    assert [view.state for view in supervisor.view()] == ["stopped", "stopped"]
    assert not any(is_alive(pid) for pid in pids if pid is not None)


async def test_process_that_ignores_sigterm_is_killed_after_its_grace(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    supervisor.start(program("deaf", DEAF, tmp_path))
    await until(lambda: is_up(supervisor, "deaf", tmp_path))
    pid = view_of(supervisor, "deaf").pid
    await supervisor.stop(["deaf"], grace_s=0.2)
    assert pid is not None
    assert not is_alive(pid)


async def test_process_between_two_starts_can_be_stopped(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.start(program("dies", DIES, tmp_path))
    await until(lambda: view_of(supervisor, "dies").state == "backoff")
    await supervisor.stop(["dies"], grace_s=10)
    assert view_of(supervisor, "dies").state == "stopped"
    assert view_of(supervisor, "dies").pid is None


async def test_process_that_refuses_its_settings_fails_the_platform_with_its_message(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    supervisor.start(program("refuses", REFUSES, tmp_path))
    await asyncio.wait_for(supervisor.failed.wait(), timeout=60)
    assert view_of(supervisor, "refuses").restarts == 0
    assert "run.json: unknown field" in str(supervisor.failure)
    assert "logs/refuses.log" in str(supervisor.failure)


async def test_group_of_a_process_that_ended_long_ago_gets_no_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may have given its number to another process."""
    supervisor = Supervisor()
    supervisor.start(program("refuses", REFUSES, tmp_path))
    await asyncio.wait_for(supervisor.failed.wait(), timeout=60)
    signalled: list[int] = []

    def note(group: int, _number: int) -> None:
        signalled.append(group)

    monkeypatch.setattr(os, "killpg", note)
    await supervisor.stop(["refuses"], grace_s=10)
    supervisor.kill_all()
    assert signalled == []


async def test_grandchildren_end_with_their_process(supervisor: Supervisor, tmp_path: Path) -> None:
    source = (
        f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {SLEEPS!r}]);"
        " print(p.pid, flush=True); p.wait()"
    )
    supervisor.start(program("parent", source, tmp_path))
    log = tmp_path / "parent.log"

    def printed() -> list[str]:
        """By parent and grandchild, in either order."""
        return log.read_text(encoding="utf-8").split() if log.exists() else []

    await until(lambda: any(word.isdigit() for word in printed()))
    grandchild = next(int(word) for word in printed() if word.isdigit())
    await supervisor.stop(["parent"], grace_s=10)
    await until(lambda: not is_alive(grandchild))


async def test_overgrown_log_is_truncated_and_continued(supervisor: Supervisor, tmp_path: Path) -> None:
    log = tmp_path / "writer.log"
    log.write_bytes(b"")
    os.truncate(log, LOG_BYTES_MAX + 1)
    supervisor.start(program("writer", SLEEPS, tmp_path))
    await until(lambda: log.stat().st_size > LOG_BYTES_MAX + 1)
    supervisor.trim_logs()
    assert log.stat().st_size == 0
    assert log.with_suffix(".log.1").stat().st_size > LOG_BYTES_MAX


def test_processes_die_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    guarded = [sys.executable, "-m", "tidegate.launch.guarded", sys.executable, "-c", SLEEPS]
    source = f"""
import asyncio, pathlib
from tidegate.launch.log_tail import final_message
from tidegate.launch.programs import ProcessSpec, RunningProcess, start_program
from tidegate.launch.restarts import CRASHES_MAX
from tidegate.launch.supervisor import Supervisor

async def main():
    supervisor = Supervisor()
    log = pathlib.Path({str(tmp_path)!r}) / "guarded.log"
    supervisor.start(ProcessSpec("guarded", {guarded!r}, log))
    while final_message(log) != "up" or supervisor.view()[0].pid is None:
        await asyncio.sleep(0.01)
    print(supervisor.view()[0].pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert is_alive(pid)
        process.kill()
    asyncio.run(asyncio.wait_for(until(lambda: not is_alive(pid)), timeout=60))


async def test_process_that_is_given_up_is_reported_with_its_last_error(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    supervisor.start(program("fails", FAILS_AND_DRAINS, tmp_path))
    await until(lambda: view_of(supervisor, "fails").restarts > 0)
    assert "fails crashed" in supervisor.unstable()
    assert "its last error: the cause" in supervisor.unstable()
    await asyncio.wait_for(supervisor.failed.wait(), timeout=60)
    assert "its last error: the cause" in str(supervisor.failure)


async def test_signal_that_ends_a_process_for_good_is_named(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.start(program("killed", "import os; os.kill(os.getpid(), 6)", tmp_path))
    await asyncio.wait_for(supervisor.failed.wait(), timeout=60)
    assert "signal 6 (Aborted) ended it; its log is empty" in str(supervisor.failure)


async def test_replica_that_is_given_up_fails_the_platform_only_when_it_is_the_last(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    works = msgspec.structs.replace(program("works", SLEEPS, tmp_path), replica_of="actor")
    fails = msgspec.structs.replace(program("fails", FAILS_AND_DRAINS, tmp_path), replica_of="actor")
    supervisor.start(works)
    await until(lambda: is_up(supervisor, "works", tmp_path))
    supervisor.mark_ready("works")
    supervisor.start(fails)
    await until(lambda: view_of(supervisor, "fails").state == "failed")
    assert supervisor.failure is None
    assert "fails failed for good" in supervisor.unstable()
    assert "its last error: the cause" in supervisor.unstable()
    supervisor.start(msgspec.structs.replace(fails, name="another", replica_of="environment"))
    await asyncio.wait_for(supervisor.failed.wait(), timeout=60)
    assert "another failed for good" in str(supervisor.failure)


async def test_process_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    attempts = 0

    async def start(spec: ProcessSpec) -> RunningProcess:
        nonlocal attempts
        attempts += 1
        if attempts <= 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return await start_program(spec)

    supervisor = Supervisor(start=start)
    supervisor.start(program("sleeper", SLEEPS, tmp_path))
    await until(lambda: view_of(supervisor, "sleeper").state == "backoff")
    assert "No space left" in supervisor.unstable()
    await until(lambda: view_of(supervisor, "sleeper").pid is not None)
    assert supervisor.failure is None
    supervisor.kill_all()


async def test_process_that_crashes_on_a_full_disk_is_started_until_there_is_space(tmp_path: Path) -> None:
    full = True
    supervisor = Supervisor(disk_full=lambda: full)
    space = tmp_path / "space"
    source = f"import pathlib, sys, time; time.sleep(600 if pathlib.Path({str(space)!r}).exists() else 0); sys.exit(1)"
    supervisor.start(program("writer", source, tmp_path))
    await until(
        lambda: view_of(supervisor, "writer").restarts >= 5
    )  # a run ends after 4 crashes before it is ready
    assert supervisor.failure is None
    space.touch()
    full = False
    await until(lambda: view_of(supervisor, "writer").pid is not None)
    supervisor.kill_all()


async def test_failure_of_the_supervision_of_a_process_ends_the_platform(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("a defect")

    supervisor = Supervisor(on_change=fail)
    supervisor.start(program("sleeper", SLEEPS, tmp_path))
    await asyncio.wait_for(supervisor.failed.wait(), timeout=60)
    assert "The supervisor of sleeper failed" in str(supervisor.failure)
    assert "a defect" in str(supervisor.failure)
    supervisor.kill_all()


async def test_process_that_is_killed_again_and_again_is_no_crash_loop(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    supervisor.start(program("sleeper", SLEEPS, tmp_path))
    killed: set[int] = set()
    while len(killed) <= CRASHES_MAX:  # none of its lives was ready, or long
        await until(lambda: view_of(supervisor, "sleeper").pid not in (None, *killed))
        pid = view_of(supervisor, "sleeper").pid
        assert pid is not None
        killed.add(pid)
        os.kill(pid, signal.SIGKILL if len(killed) % 2 else signal.SIGTERM)
    await until(lambda: view_of(supervisor, "sleeper").pid not in (None, *killed))
    assert supervisor.failure is None
