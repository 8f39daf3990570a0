"""``tidegate await``: wait until a running platform has done something, for scripts and for ``helm test``."""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tidegate.cli.asking import channel_to
from tidegate.core.errors import UnavailableError
from tidegate.core.ids import RunId
from tidegate.launch.board import Board
from tidegate.launch.folder import find_folder, read_record
from tidegate.launch.run_record import RunRecord
from tidegate.launch.services import SERVICES
from tidegate.launch.targets import Target, parse_duration, parse_target
from tidegate.launch.watch import StatsWatch
from tidegate.runtime.rpc import HEALTH_READINESS, ask_health

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
    for service in record.addresses:
        if not SERVICES[service].scalable:
            await _until_ready(record, service, deadline_s=deadline_s)
            console.print(f"{service} is ready", highlight=False)
    board = Board(headline="mean_return")
    before: dict[str, float] = {}
    said = ""
    async with StatsWatch(record.broker, RunId(record.run_id), board):
        while time.monotonic() < deadline_s:
            await asyncio.sleep(LOOK_S)
            values = board.values()
            if not before and all(name in values for name in GROWING):
                before = values
            done, said = (
                look_at_target(target, values) if target.conditions else look_at_growth(before, values)
            )
            if done:
                console.print(said, highlight=False)
                return
    raise UnavailableError(
        f"Waited {timeout_s:g} s for nothing",
        why=said,
        fix="`tidegate explain` says what holds the loop up",
    )


def look_at_target(target: Target, values: Mapping[str, float]) -> tuple[bool, str]:
    """Whether the target holds, and a sentence about it."""
    if target.reached(values):
        return True, f"{target} holds"
    shown = {each.name: values.get(each.name) for each in target.conditions}
    return False, f"{target} does not hold: {shown}"


def look_at_growth(before: Mapping[str, float], values: Mapping[str, float]) -> tuple[bool, str]:
    """Whether a task went through to a gradient since ``before``, and a sentence about it."""
    unknown = [name for name in GROWING if name not in values]
    if unknown:
        return False, f"nothing is known of {', '.join(unknown)}"
    still = [name for name in GROWING if values[name] <= before[name]]
    if still:
        return False, f"no growth of {', '.join(still)}"
    told = ", ".join(f"{name} {before[name]:g} -> {values[name]:g}" for name in GROWING)
    return True, f"a task went through to a gradient: {told}"


async def _until_ready(record: RunRecord, service: str, *, deadline_s: float) -> None:
    """Ask the service's own readiness until it says so."""
    answer = "nobody asked"
    async with channel_to(record, service) as channel:
        while answer and time.monotonic() < deadline_s:
            answer = await ask_health(channel, HEALTH_READINESS, timeout_s=CALL_TIMEOUT_S)
            await asyncio.sleep(LOOK_S if answer else 0.0)
    if answer:
        raise UnavailableError(f"{service} did not become ready", why=answer)
