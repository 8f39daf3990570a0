"""The ranks of a learner on one machine or in one pod: forked together, ended together.

Consumes exits of the ranks and signals; produces one exit code; waits for the first rank that ends; unblocked by it. No
rank is restarted alone: when one fails the others are ended, and the supervisor restarts all of them.

The ranks meet in a file of a folder that only this user may enter, and exchange tensors over loopback. There is no
server that strangers could reach, and nothing is unpickled: torchrun, which this replaces, offers a store on all
interfaces and unpickles what it finds there. Ranks of several pods meet at the address that the chart gives them.
"""

import asyncio
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from setproctitle import getproctitle, setproctitle

from tidegate.core.errors import ConfigError
from tidegate.launch.fork_server.kinds import LEARNER
from tidegate.learner.ranks.membership import STORE_VARIABLE, PodRanks
from tidegate.runtime import exit_codes
from tidegate.runtime.parent_death import guard
from tidegate.runtime.threads import num_threads

# A rank detects the end of another at its next exchange, which the heartbeat starts every two seconds; the time is for
# it to log which rank was lost and to end by itself.
FAILED_GRACE_S = 5.0
# On top of the drain timeout, for what follows a drain in the lifecycle.
ENDED_GRACE_S = 5.0
EXIT_HUNG = 1
# Of ranks that did not fail.
CLEAN = (exit_codes.DRAINED, exit_codes.COMPLETED)
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Interfaces of the loopback network, by the names that Linux and the BSDs use.
LOOPBACK_INTERFACES = ("lo", "lo0")
_FOLDER_PREFIX = "rendezvous-"
# As a shell reports that a signal ended a process.
_SIGNALLED = 128


def num_ranks_of(service: str, config: Any) -> int:
    """How many processes one instance of a service has."""
    return config.ranks if service == LEARNER else 1


def run_ranks(
    count: int,
    run: Callable[[], int],
    *,
    folder: Path,
    drain_timeout_s: float,
    pod: PodRanks | None = None,
) -> int:
    """Fork ``count`` ranks that each call ``run``. In a rank: its result; in the caller: the exit code of all.

    That is the first failing one, else that of a complete run, else 0. ``folder`` holds the file in which the ranks
    meet, while they live. ``drain_timeout_s``: how long a rank may drain after another ended cleanly. ``pod``: these
    are some of the ranks of several pods, which meet at ``MASTER_ADDR``. When a signal ended a rank, the same signal
    ends this process, so that the supervisor learns what happened; the first process of a container, which the kernel
    does not let its own signals end, returns 128 and the signal.

    Raises:
        ConfigError: a library has started a thread here, which a fork would not have.
    """
    if sys.platform.startswith("linux") and num_threads() > 1:
        raise ConfigError(
            f"The process that starts {count} ranks has {num_threads()} threads",
            why="a fork would lose all but one of them",
            fix="unset what makes Python start threads at its start, or set learner.ranks to 1",
        )
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{_FOLDER_PREFIX}*"):  # of a group that was killed with its launcher
        shutil.rmtree(left, ignore_errors=True)
    place = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX, dir=folder))  # mode 0700
    launcher_pid = os.getpid()
    pids: list[int] = []
    # Before ``_wait`` handles them, they would end this process and kill ranks that can drain.
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    for rank in range(count):
        pid = os.fork()
        if pid == 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
            if not guard(launcher_pid, signal.SIGKILL):
                os._exit(1)
            if pod is None:
                _become_rank(rank, count, store=place / "store")
            else:
                _become_rank_of_pod(rank, pod)
            return run()
        pids.append(pid)
    setproctitle(f"{getproctitle()} ({count} ranks)")
    try:
        code = asyncio.run(_wait(pids, unblocked=unblocked, end_timeout_s=drain_timeout_s + ENDED_GRACE_S))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    if code < 0:
        os.kill(os.getpid(), -code)
        return _SIGNALLED - code
    return code


def _become_rank(rank: int, count: int, *, store: Path) -> None:
    """Set what ``learner.ranks`` and the libraries of the exchange read."""
    setproctitle(f"{getproctitle()} (rank {rank} of {count})")
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count))
    os.environ[STORE_VARIABLE] = str(store.resolve())
    interface = next(name for _, name in socket.if_nameindex() if name in LOOPBACK_INTERFACES)
    os.environ.update(GLOO_SOCKET_IFNAME=interface, NCCL_SOCKET_IFNAME=interface)


def _become_rank_of_pod(local_rank: int, pod: PodRanks) -> None:
    """Set what ``learner.ranks`` reads; address and port of rank 0 are the pod's."""
    rank = pod.first + local_rank
    setproctitle(f"{getproctitle()} (rank {rank} of {pod.count})")
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(local_rank), WORLD_SIZE=str(pod.count))


async def _wait(pids: list[int], *, unblocked: Collection[int], end_timeout_s: float) -> int:
    """Wait for every rank; returns the first exit code of a failure, else of a completed run, else 0.

    ``unblocked``: the signal mask from when signals are handled.
    """
    loop, changed, left = asyncio.get_running_loop(), asyncio.Event(), set(pids)
    loop.add_signal_handler(signal.SIGCHLD, changed.set)
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, _signal_all, left, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
    code, ends_s = 0, float("inf")
    while left:
        changed.clear()
        for pid in list(left):
            ended, status = os.waitpid(pid, os.WNOHANG)  # noqa: ASYNC222  # WNOHANG: it does not block
            if ended:
                left.remove(pid)
                code = _worse(code, os.waitstatus_to_exitcode(status))
                failed = code not in CLEAN
                ends_s = min(ends_s, loop.time() + (FAILED_GRACE_S if failed else end_timeout_s))
        if loop.time() >= ends_s:
            _signal_all(left, signal.SIGKILL)
            code = _worse(code, EXIT_HUNG)  # their kill is not one from outside
            ends_s = float("inf")  # SIGKILL cannot be refused
        try:
            async with asyncio.timeout_at(ends_s if ends_s < float("inf") else None):
                if left:
                    await changed.wait()
        except TimeoutError:
            continue
    return code


def _worse(code: int, other: int) -> int:
    """What two ranks end with together: the first failure, else the end of a complete run."""
    return code if code not in CLEAN else other or code


def _signal_all(pids: set[int], number: signal.Signals) -> None:
    """``pids`` are children that were not reaped, so each still names the process that was forked."""
    for pid in pids:
        os.kill(pid, number)
