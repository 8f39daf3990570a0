"""``tidegate await``: wait until a running platform has done something, for scripts and for ``helm test``."""

import asyncio
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tidegate.cli.folder import find_folder, read_record
from tidegate.cli.run_record import RunRecord
from tidegate.cli.up.board import Board
from tidegate.cli.up.targets import Target, parse_duration, parse_target
from tidegate.cli.up.watch import StatsWatch
from tidegate.core.errors import UnavailableError
from tidegate.core.ids import RunId
from tidegate.runtime.rpc import HEALTH_READINESS, ask_health, open_channel

LOOK_S = 0.5
CALL_TIMEOUT_S = 3.0
# What is counted from the moment of asking: a trajectory admitted, one trained, a version published.
GROWING = ("admitted_total", "trained_total", "version_step")


def wait(
    folder: Annotated[
        Path | None, typer.Option("--dir", help="A run folder; in a pod its run, else the newest here.")
    ] = None,
    until: Annotated[
        str,
        typer.Option("--until", help="A target, such as `mean_return>=475`; without it: one more update."),
    ] = "",
    timeout: Annotated[str, typer.Option("--timeout", help="When to give up.")] = "5m",
) -> None:
    """Wait until every service is ready and the target holds, or a task has gone through to a gradient.

    Exits 0 then, and 1 with what is missing after the timeout.
    """
    record = read_record(find_folder(folder))
    console = Console(stderr=True)
    asyncio.run(_wait(record, parse_target(until), timeout_s=parse_duration(timeout), console=console))


async def _wait(record: RunRecord, target: Target, *, timeout_s: float, console: Console) -> None:
    deadline_s = time.monotonic() + timeout_s
    missing = ""
    for service in record.addresses:
        if service in ("actor", "environment"):
            continue
        await _until_ready(service, record.addresses[service][0], deadline_s=deadline_s)
        console.print(f"{service} is ready", highlight=False)
    board = Board(headline="mean_return")
    async with StatsWatch(record.broker, RunId(record.run_id), board):
        before: dict[str, float] = {}
        while time.monotonic() < deadline_s:
            await asyncio.sleep(LOOK_S)
            values = board.values()
            if target.conditions:
                if target.reached(values):
                    console.print(f"{target} holds", highlight=False)
                    return
                shown = {each.name: values.get(each.name) for each in target.conditions}
                missing = f"{target} does not hold: {shown}"
                continue
            now = {name: values[name] for name in GROWING if name in values}
            missing = "nothing is known of " + ", ".join(name for name in GROWING if name not in now)
            if len(now) < len(GROWING):
                continue
            before = before or now
            still = [name for name in GROWING if now[name] <= before[name]]
            if not still:
                told = ", ".join(f"{name} {before[name]:g} -> {now[name]:g}" for name in GROWING)
                console.print(f"a task went through to a gradient: {told}", highlight=False)
                return
            missing = f"no growth of {', '.join(still)}"
    raise UnavailableError(
        f"Waited {timeout_s:g} s for nothing",
        why=missing,
        fix="`tidegate explain` says what holds the loop up",
    )


async def _until_ready(service: str, address: str, *, deadline_s: float) -> None:
    """Ask the service's own readiness until it says so."""
    channel = open_channel(address)
    answer = "nobody asked"
    try:
        while answer and time.monotonic() < deadline_s:
            answer = await ask_health(channel, HEALTH_READINESS, timeout_s=CALL_TIMEOUT_S)
            await asyncio.sleep(LOOK_S if answer else 0.0)
    finally:
        await channel.close()
    if answer:
        raise UnavailableError(f"{service} at {address} did not become ready", why=answer)
