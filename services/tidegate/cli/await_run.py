"""``tidegate await``: wait until a running platform trains, reaches a target or is complete, for scripts and Jobs."""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tidegate.catalogue import learner as learner_stats
from tidegate.catalogue import task_queue as queue_stats
from tidegate.catalogue import trajectory_store as store_stats
from tidegate.cli.console import open_console
from tidegate.cli.queries import channel_to
from tidegate.core.distributions import parse_duration
from tidegate.core.errors import ConfigError, NotFoundError, TidegateError, UnavailableError
from tidegate.core.ids import RunId
from tidegate.core.targets import RunTarget, parse_target
from tidegate.launch.board import Board
from tidegate.launch.operator_credential import operator_token
from tidegate.launch.run_folder import find_folder, is_run_folder, is_running, read_record
from tidegate.launch.run_record import RunRecord
from tidegate.launch.stats_subscription import StatsSubscription
from tidegate.launch.target_check import own_values, reports_of_others
from tidegate.runtime.instances import REPLICATED
from tidegate.runtime.rpc import HEALTH_READINESS, await_health
from tidegate.wire.clients.admission import AdmissionClient, CompletionReport

POLL_S = 0.5
COMPLETION_POLL_S = 2.0
# Counters that must grow from the first snapshot on: trajectories admitted and trained, versions published.
GROWING = (queue_stats.ADMITTED, store_stats.TRAINED, learner_stats.VERSION_STEP)


def await_run(
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Run folder (default: in a pod its run, else the newest).")
    ] = None,
    until: Annotated[
        str,
        typer.Option("--until", help="A target, such as `mean_return>=475` (default: one more update)."),
    ] = "",
    complete: Annotated[
        bool,
        typer.Option("--complete", help="In a cluster: until the run reached its `until` and has ended."),
    ] = False,
    timeout: Annotated[str, typer.Option("--timeout", help="Fail after this long: 90s, 5m.")] = "5m",
) -> None:
    """Wait until every service is ready and the target holds or, without --until, one more update was trained.

    With an operator's credential the processes' own counters decide, and not what is on the broker. Exits 0 on success,
    1 after the timeout with the condition that is missing, and 2 where nothing would ever end the run.
    """
    console = open_console(stderr=True)
    deadline_s = time.monotonic() + parse_duration(timeout)
    if folder is not None and not is_run_folder(folder):
        console.print(f"no run has begun in {folder} yet", markup=False)
        # One that another command is starting has no files at first.
        while not is_run_folder(folder) and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
    where = find_folder(folder)
    record = read_record(where)
    timeout_s = max(0.0, deadline_s - time.monotonic())
    if complete:
        asyncio.run(wait_for_end(record, timeout_s=timeout_s, console=console))
        return
    try:
        asyncio.run(wait_for(record, parse_target(until), timeout_s=timeout_s, console=console))
    except UnavailableError as error:
        if is_running(where):
            raise
        raise UnavailableError(
            f"No platform runs in {where}",
            why=f"none began to within {timeout}",
            fix="start it with `tidegate up`, or name another --dir",
        ) from error


async def wait_for(record: RunRecord, target: RunTarget, *, timeout_s: float, console: Console) -> None:
    """Return once every service is ready and the target holds or, without one, an update was trained.

    Raises:
        UnavailableError: ``timeout_s`` passed before.
    """
    deadline_s = time.monotonic() + timeout_s
    may_ask = _may_ask(record, console)
    for service, addresses in record.addresses.items():
        if addresses and service not in REPLICATED:
            await _until_ready(record, service, deadline_s=deadline_s)
            console.print(f"{service} is ready")
    board = Board(headline=learner_stats.MEAN_RETURN)
    before: dict[str, float] = {}
    status = ""
    async with StatsSubscription(record.broker, RunId(record.run_id), board):
        while time.monotonic() < deadline_s:
            await asyncio.sleep(POLL_S)
            values = (
                await own_values(record, reports=reports_of_others(record, board))
                if may_ask
                else board.values()
            )
            if not before and all(name in values for name in GROWING):
                before = values
            done, status = (
                check_target_reached(target, values) if target.conditions else check_growth(before, values)
            )
            if done:
                console.print(status)
                return
    raise UnavailableError(
        f"The condition did not hold within {timeout_s:g} s",
        why=status,
        fix="`tidegate explain` names the bottleneck",
    )


async def wait_for_end(record: RunRecord, *, timeout_s: float, console: Console) -> None:
    """Return once the run is complete: its target held, and the learner wrote its last checkpoint.

    Raises:
        ConfigError: nothing ends the run.
        UnavailableError: ``timeout_s`` passed before.
    """
    if not record.cluster:
        raise ConfigError(
            "`await --complete` is for a run in a cluster",
            why="on one machine `tidegate up` ends, with exit code 0",
        )
    deadline_s = time.monotonic() + timeout_s
    shown = status = "admission did not answer"
    async with channel_to(record, "admission") as channel:
        while time.monotonic() < deadline_s:
            try:
                found = await AdmissionClient(channel).completion()
            except TidegateError as error:  # while it restarts, or has not seen a rotated credential
                if not error.retryable:
                    raise
                status = str(error)
            else:
                if not found.targets:
                    raise ConfigError(
                        "Nothing ends this run",
                        why="its run file has no `until`, and no TrainingRun has stop.maxVersions",
                        fix="set run.until by `helm upgrade`, such as version_step>=200",
                    )
                status = status_of(found)
                if status != shown:
                    console.print(status)
                    shown = status
                if found.complete:
                    return
            await asyncio.sleep(COMPLETION_POLL_S)
    raise UnavailableError(f"The run is not complete after {timeout_s:g} s", why=status)


def status_of(found: CompletionReport) -> str:
    """How far the end of the run is, in a line."""
    if not found.reached:
        return f"the run works until {' or '.join(found.targets)}"
    return f"{found.reached} holds" + (
        ": the run is complete" if found.complete else "; what is in flight is still trained"
    )


def _may_ask(record: RunRecord, console: Console) -> bool:
    """Whether the processes can be asked for their own values: with an operator's credential."""
    try:
        operator_token(record)
    except NotFoundError as error:
        console.print(f"the broker's statistics decide, unconfirmed: {error}")
        return False
    return True


def check_target_reached(target: RunTarget, values: Mapping[str, float]) -> tuple[bool, str]:
    """Whether the target holds, and a status line."""
    if target.reached(values):
        return True, f"{target} holds"
    shown = {each.name: values.get(each.name) for each in target.conditions}
    return False, f"{target} does not hold: {shown}"


def check_growth(before: Mapping[str, float], values: Mapping[str, float]) -> tuple[bool, str]:
    """Whether an update was trained and published since ``before``, and a status line."""
    unknown = [name for name in GROWING if name not in values]
    if unknown:
        return False, f"no statistics yet of {', '.join(unknown)}"
    still = [name for name in GROWING if values[name] <= before[name]]
    if still:
        return False, f"no growth of {', '.join(still)}"
    growth = ", ".join(f"{name} {before[name]:g} -> {values[name]:g}" for name in GROWING)
    return True, f"one more update was trained: {growth}"


async def _until_ready(record: RunRecord, service: str, *, deadline_s: float) -> None:
    """Poll the readiness endpoint of a service until it answers ready."""
    answer = await await_health(
        record.addresses[service][0], HEALTH_READINESS, deadline_s=deadline_s, period_s=POLL_S
    )
    if answer:
        raise UnavailableError(f"{service} did not become ready", why=answer)
