"""``tidegate throttle``: slow one service of a local run down for a while, to rehearse alerts and admission control.

It sends SIGSTOP and SIGCONT many times a second, so the service runs its ordinary code.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.console import open_console
from tidegate.cli.run_argument import RunFolderOption
from tidegate.core.distributions import parse_duration
from tidegate.core.errors import NotFoundError
from tidegate.launch.run_folder import find_running, read_processes

# Much shorter than a learner step and much longer than a context switch.
PERIOD_S = 0.05
# How often process ids are read again: a service that was restarted meanwhile is throttled as well.
REFRESH_S = 0.5
FACTOR_MAX = 100.0


def throttle(
    service: Annotated[
        str,
        typer.Argument(help="A service (all its instances) or one instance: learner, actor, environment-0."),
    ],
    factor: Annotated[
        float, typer.Option(min=1.0, max=FACTOR_MAX, help="How many times slower the service runs.")
    ] = 3.0,
    for_: Annotated[str, typer.Option("--for", help="Duration of the slowdown: 60s, 5m.")] = "60s",
    folder: RunFolderOption = None,
) -> None:
    """Slow down one service of a running local platform, then restore its speed.

    Ctrl-C restores the speed at once. Watch with `tidegate status`; query `tidegate explain` and `tidegate slo`.
    """
    where = find_running(folder)
    duration_s = parse_duration(for_)
    console = open_console(stderr=True)
    console.print(f"{service} runs {factor:g} times slower for {duration_s:g} s")
    slow_down(lambda: pids_of(where, service), factor=factor, duration_s=duration_s)
    console.print(f"{service} runs at full speed again")


def pids_of(folder: Path, service: str) -> list[int]:
    """Ids of the running processes of a service or instance.

    Raises:
        NotFoundError: the run has no process of that name.
    """
    record = read_processes(folder)
    processes = record.processes if record is not None else {}
    chosen = {
        name: process
        for name, process in processes.items()
        if name == service or name.rpartition("-")[0] == service
    }
    if not chosen:
        raise NotFoundError(
            f"This run has no process called {service!r}", fix=f"it has {', '.join(processes) or 'none'}"
        )
    return [process.pid for process in chosen.values() if process.pid is not None]


def slow_down(find: Callable[[], list[int]], *, factor: float, duration_s: float) -> None:
    """Let the processes run one part in ``factor`` of the time; full speed is restored on return and on interrupt."""
    pids = find()
    started_s = read_s = time.monotonic()
    try:
        while (now_s := time.monotonic()) - started_s < duration_s:
            if now_s - read_s >= REFRESH_S:
                pids, read_s = find(), now_s
            _signal(pids, signal.SIGSTOP)
            time.sleep(PERIOD_S * (1.0 - 1.0 / factor))
            _signal(pids, signal.SIGCONT)
            time.sleep(PERIOD_S / factor)
    finally:
        _signal(pids, signal.SIGCONT)


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(
            ProcessLookupError
        ):  # the process ended meanwhile; the next refresh finds its successor
            os.kill(pid, number)
