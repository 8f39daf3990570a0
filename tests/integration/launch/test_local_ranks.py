"""Ranks of one machine as processes: a script per test calls ``run_ranks`` with a function that ends as it says."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tidegate.runtime import exit_codes

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
# A hang is the failure; nothing else is timed.
TIMEOUT_S = 120.0
SOURCE = """
import os, signal, sys, time
from pathlib import Path
from tidegate.launch.local_ranks import run_ranks

def run():
    rank = int(os.environ["RANK"])
    names = ("RANK", "WORLD_SIZE", "TIDEGATE_RANKS_STORE", "GLOO_SOCKET_IFNAME")
    os.write(1, (" ".join(os.environ[name] for name in names) + "\\n").encode())  # whole lines
    {body}
    return 0

{setup}
sys.exit(run_ranks({count}, run, folder=Path({folder!r}), drain_timeout_s={drain_timeout_s}))
"""

# The launcher gets SIGTERM once both ranks would drain, and before it waits for them.
SIGNALLED_EARLY = """
import asyncio
wait = asyncio.run
def wait_late(coroutine):
    while len(list(Path({folder!r}).glob("drains-*"))) < 2:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
    return wait(coroutine)
asyncio.run = wait_late
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    processes: list[subprocess.Popen[str]] = []

    def begin(
        body: str, *, setup: str = "", count: int = 2, drain_timeout_s: float = 600.0
    ) -> subprocess.Popen[str]:
        folder = str(tmp_path / "learner")
        source = SOURCE.format(
            body=body, setup=setup, count=count, folder=folder, drain_timeout_s=drain_timeout_s
        )
        process = subprocess.Popen(
            [sys.executable, "-c", source], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def lines(process: subprocess.Popen[str], count: int) -> list[list[str]]:
    assert process.stdout is not None
    return sorted(process.stdout.readline().split() for _ in range(count))


def ranks_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children()


def all_gone(ranks: list[psutil.Process]) -> None:
    _, left = psutil.wait_procs(ranks, timeout=TIMEOUT_S)
    assert not left


def test_ranks_know_each_other_and_meet_in_a_folder_of_this_user(start: Start, tmp_path: Path) -> None:
    process = start("time.sleep(600)", count=3)
    described = lines(process, 3)
    assert [line[:2] for line in described] == [["0", "3"], ["1", "3"], ["2", "3"]]
    assert len({line[2] for line in described}) == 1
    store = Path(described[0][2])
    assert store.parent.parent == tmp_path / "learner"
    assert store.parent.stat().st_mode & 0o777 == 0o700
    assert {line[3] for line in described} == {"lo"}


def test_ranks_of_a_later_pod_continue_the_numbers_and_keep_the_address_of_rank_0(tmp_path: Path) -> None:
    source = f"""
import os, sys
from pathlib import Path
from tidegate.launch.local_ranks import run_ranks
from tidegate.learner.ranks.membership import PodRanks

def run():
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "TIDEGATE_RANKS_STORE", "GLOO_SOCKET_IFNAME")
    os.write(1, (" ".join(os.environ.get(name, "none") for name in names) + "\\n").encode())  # whole lines
    return 0

pod = PodRanks(first=2, in_pod=2, count=4)
sys.exit(run_ranks(2, run, folder=Path({str(tmp_path)!r}), drain_timeout_s=60.0, pod=pod))
"""
    environ = {**os.environ, "MASTER_ADDR": "t-learner-0", "WORLD_SIZE": "4"}
    done = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environ,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "2 0 4 t-learner-0 none none",
        "3 1 4 t-learner-0 none none",
    ]


def test_group_ends_with_0_when_every_rank_does_and_leaves_no_file(start: Start, tmp_path: Path) -> None:
    process = start("")
    assert process.wait(TIMEOUT_S) == 0
    assert list((tmp_path / "learner").iterdir()) == []


def test_ranks_of_a_complete_run_end_as_it_did_and_a_failure_among_them_is_told(start: Start) -> None:
    # As rank 0 and those that it stops; the later one has the time of a drain.
    process = start(f"time.sleep(rank); sys.exit({exit_codes.COMPLETED})", drain_timeout_s=30.0)
    assert process.wait(TIMEOUT_S) == exit_codes.COMPLETED
    process = start(f"time.sleep(rank); sys.exit({exit_codes.COMPLETED} if rank == 0 else 3)")
    assert process.wait(TIMEOUT_S) == 3
    process = start(f"time.sleep(rank); sys.exit(3 if rank == 0 else {exit_codes.COMPLETED})")
    assert process.wait(TIMEOUT_S) == 3


def test_ranks_that_outlive_a_failed_one_are_killed_and_its_code_is_returned(start: Start) -> None:
    process = start("sys.exit(3) if rank else time.sleep(600)")
    assert process.wait(TIMEOUT_S) == 3


def test_signal_that_ended_a_rank_ends_the_group(start: Start) -> None:
    process = start("time.sleep(600)")
    lines(process, 2)
    ranks = ranks_of(process)
    ranks[1].kill()
    assert process.wait(TIMEOUT_S) == -signal.SIGKILL
    all_gone(ranks)


def test_sigterm_reaches_every_rank_and_waits_for_them(start: Start) -> None:
    process = start(
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); os.write(1, b'set\\n'); time.sleep(600)"
    )
    lines(process, 4)
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT_S) == 0


def test_sigterm_that_arrives_while_the_launcher_still_starts_reaches_every_rank(
    start: Start, tmp_path: Path
) -> None:
    folder = str(tmp_path)
    process = start(
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0));"
        f" (Path({folder!r}) / f'drains-{{rank}}').touch(); time.sleep(600)",
        setup=SIGNALLED_EARLY.format(folder=folder),
    )
    assert process.wait(TIMEOUT_S) == 0


def test_rank_that_hangs_after_a_clean_end_of_another_is_killed(start: Start) -> None:
    process = start("time.sleep(0 if rank else 600)", drain_timeout_s=0.1)
    assert process.wait(TIMEOUT_S) == 1, "and not as if it had been killed from outside"


def test_ranks_die_with_a_launcher_that_is_killed(start: Start, tmp_path: Path) -> None:
    process = start("time.sleep(600)")
    lines(process, 2)
    ranks = ranks_of(process)
    assert len(ranks) == 2
    process.kill()
    all_gone(ranks)
    assert len(list((tmp_path / "learner").iterdir())) == 1, "the place where they met is left behind"
    again = start("")
    assert again.wait(TIMEOUT_S) == 0
    assert list((tmp_path / "learner").iterdir()) == [], "and removed by the next start"


def test_process_with_a_thread_is_not_forked(tmp_path: Path) -> None:
    source = f"""
import threading, time
from pathlib import Path
from tidegate.launch.local_ranks import run_ranks
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
run_ranks(2, lambda: 0, folder=Path({str(tmp_path)!r}), drain_timeout_s=1.0)
"""
    ended = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 1
    assert "has 2 threads" in ended.stderr
    assert not list(tmp_path.iterdir())
