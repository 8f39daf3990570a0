"""``tidegate pause`` and ``tidegate resume``: stop and start the admission of tasks, as desired state.

Admission keeps the request in its data folder, so it holds across restarts of every service. What is in flight is
finished and trained.
"""

import asyncio
import getpass
import os
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.console import open_console
from tidegate.cli.queries import channel_to
from tidegate.cli.run_argument import RunArgument, RunOption, named_run
from tidegate.core.admission import Flow, Limits
from tidegate.core.pauses import RESUME, way_out
from tidegate.launch.cluster import POD_NAME_VARIABLE
from tidegate.launch.run_folder import find_running, read_record
from tidegate.wire.clients.admission import AdmissionClient


def pause(
    run: RunArgument = None,
    folder: RunOption = None,
    reason: Annotated[str, typer.Option("--reason", help="Why, for everyone who looks at the run.")] = "",
    by: Annotated[str, typer.Option("--by", help="Who asks (default: the user of this process).")] = "",
) -> None:
    """Admit no more tasks; what is in flight is finished and trained. Holds across restarts, until `tidegate resume`.

    Objectives spend no budget meanwhile, and the alert TidegateNothingTrained stays silent.
    """
    limits, flow = _ask(named_run(run, folder), paused=True, reason=reason, by=by or asker())
    console = open_console()
    console.print(f"{limits.reason}; {RESUME} to go on", soft_wrap=True)
    console.print(f"{flow.in_flight} trajectories in flight are still trained")


def resume(run: RunArgument = None, folder: RunOption = None) -> None:
    """End the pause of `tidegate pause`: admit tasks again."""
    limits, _ = _ask(named_run(run, folder), paused=False, reason="", by=asker())
    still = f"; admission is still paused: {limits.reason}" if limits.paused else ""
    end = f": {way_out(limits.reason)}" if limits.paused and way_out(limits.reason) else ""
    open_console().print(f"resumed{still}{end}", soft_wrap=True)


def asker() -> str:
    """The user of this process; in a pod, which has no users, the pod."""
    pod = os.environ.get(POD_NAME_VARIABLE, "")
    if pod:
        return f"an operator in the pod {pod}"
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an id that no file of users names
        return "an operator"


def _ask(folder: Path | None, *, paused: bool, reason: str, by: str) -> tuple[Limits, Flow]:
    """Set the desired state; returns the limits in force afterwards and the work in flight."""
    return asyncio.run(set_paused(find_running(folder), paused=paused, reason=reason, by=by))


async def set_paused(folder: Path, *, paused: bool, reason: str, by: str) -> tuple[Limits, Flow]:
    """Set the desired state of a running run; returns the limits in force afterwards and the work in flight.

    Raises:
        TidegateError: admission cannot be reached, or refused it.
    """
    async with channel_to(read_record(folder), "admission") as channel:
        admission = AdmissionClient(channel)
        await admission.set_paused(paused=paused, reason=reason, by=by)
        return await admission.limits()
