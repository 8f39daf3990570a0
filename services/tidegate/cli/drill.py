"""``tidegate drill``: make one service of a local run slow for a while, to see the platform hold its promises.

The kernel does it, by stopping and continuing the process many times a second, so the service runs the code that it
always runs and knows nothing of it.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tidegate.core.errors import ConfigError, NotFoundError
from tidegate.launch.folder import find_folder, is_running, read_processes
from tidegate.launch.targets import parse_duration

# Short beside a learner step and long beside a context switch.
PERIOD_S = 0.05
# A service that was restarted meanwhile is slowed as well.
LOOK_AGAIN_S = 0.5
FACTOR_MAX = 100.0


def drill(
    service: Annotated[
        str,
        typer.Argument(help="Whose processes: learner, actor, environment-0, ... (all instances, or one)."),
    ],
    factor: Annotated[
        float, typer.Option(min=1.0, max=FACTOR_MAX, help="How many times slower it becomes.")
    ] = 3.0,
    for_: Annotated[str, typer.Option("--for", help="How long: 60s, 5m.")] = "60s",
    folder: Annotated[
        Path | None, typer.Option("--dir", help="A run folder; without it the newest one here.")
    ] = None,
) -> None:
    """Slow one service of a running local platform down, then let it go.

    Interrupting it lets the service go at once. Watch with `tidegate status`; ask `tidegate explain` and `slo`.
    """
    where = find_folder(folder)
    duration_s = parse_duration(for_)
    if not is_running(where):
        raise ConfigError(
            f"Nothing runs in {where}", fix="start it with `tidegate up`, or name another --dir"
        )
    console = Console(stderr=True)
    console.print(f"{service} runs {factor:g} times slower for {duration_s:g} s", highlight=False)
    slow_down(lambda: pids_of(where, service), factor=factor, duration_s=duration_s)
    console.print(f"{service} runs at its own speed again", highlight=False)


def pids_of(folder: Path, service: str) -> list[int]:
    """The living processes of a service or instance.

    Raises:
        NotFoundError: this run has none by that name.
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
    """Let the processes run one part in ``factor`` of the time; they run freely when this returns or is interrupted."""
    pids = find()
    started_s = looked_s = time.monotonic()
    try:
        while (now_s := time.monotonic()) - started_s < duration_s:
            if now_s - looked_s >= LOOK_AGAIN_S:
                pids, looked_s = find(), now_s
            _signal(pids, signal.SIGSTOP)
            time.sleep(PERIOD_S * (1.0 - 1.0 / factor))
            _signal(pids, signal.SIGCONT)
            time.sleep(PERIOD_S / factor)
    finally:
        _signal(pids, signal.SIGCONT)


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it ended meanwhile; its successor is found at the next look
            os.kill(pid, number)
