"""``tidegate rollback``: send a live run back to a version that a kept checkpoint holds.

The learner writes the decision to its disk before it changes anything, so the rollback is finished whether or not this
command still waits for it.
"""

import asyncio
import contextlib
import time
from typing import Annotated

import typer

from tidegate.cli.console import open_console
from tidegate.cli.pause import asker
from tidegate.cli.queries import channel_to
from tidegate.cli.run_argument import RunArgument, RunOption, named_run
from tidegate.core.errors import DeadlineError, UnavailableError
from tidegate.core.ids import PolicyVersion
from tidegate.launch.named_version import version_of
from tidegate.launch.run_folder import find_running, read_record
from tidegate.launch.run_record import RunRecord
from tidegate.wire.clients.learner import AcceptedRollback, LearnerClient, LearnerReport

POLL_S = 0.5
# A learner that was killed meanwhile starts again and loads its model first.
FINISHED_WITHIN_S = 600.0


def rollback(
    run: RunArgument = None,
    folder: RunOption = None,
    to: Annotated[
        str,
        typer.Option("--to", help="Version to go back to, such as 0-3fa2@40; a kept checkpoint holds it."),
    ] = "",
    reason: Annotated[
        str, typer.Option("--reason", help="Why, for everyone who reads the run's events.")
    ] = "",
    by: Annotated[str, typer.Option("--by", help="Who asks (default: the user of this process).")] = "",
) -> None:
    """Send a running platform back to a kept checkpoint; without --to, list the versions that it can go back to.

    The learner restores the policy and the optimiser of that version and trains on from it. Updates after it no longer
    count, and their checkpoints are deleted. Trajectories that they used are trained again, or dropped as stale.
    `tidegate fork` keeps them, in another run.
    """
    target = version_of(to, option="--to") if to else None
    where = find_running(named_run(run, folder))
    for line in asyncio.run(roll_back(read_record(where), target, reason=reason, by=by or asker())):
        open_console().print(line, soft_wrap=True)


async def roll_back(record: RunRecord, target: PolicyVersion | None, *, reason: str, by: str) -> list[str]:
    """Send the learner back and wait until it went, or ask where it could go; returns the lines to print.

    Raises:
        NotFoundError: no kept checkpoint holds ``target``.
        DeadlineError: the learner did not finish it in time.
    """
    async with channel_to(record, "learner") as channel:
        learner = LearnerClient(channel)
        if target is None:
            return _choice(await learner.progress())
        accepted = await learner.rollback(target, reason=reason, by=by)
        version = await _finished(learner, accepted)
    return [
        f"rolled back from {accepted.head} to {accepted.target}: training goes on from {version}",
        f"{accepted.head.step - accepted.target.step} updates no longer count",
    ]


def _choice(report: LearnerReport) -> list[str]:
    kept = dict.fromkeys(map(str, report.kept))
    if not kept:
        return [f"the newest version is {report.version}, and no checkpoint is kept yet"]
    return [f"the newest version is {report.version}; --to can be one of", *kept]


async def _finished(learner: LearnerClient, accepted: AcceptedRollback) -> PolicyVersion:
    """The first version seen of the lineage that the learner opened.

    Raises:
        DeadlineError: it opened none in time.
    """
    deadline_s = time.monotonic() + FINISHED_WITHIN_S
    while time.monotonic() < deadline_s:
        with contextlib.suppress(UnavailableError):  # it starts again, also after a kill
            version = (await learner.progress()).version
            if version.lineage != accepted.head.lineage:
                return version
        await asyncio.sleep(POLL_S)
    raise DeadlineError(
        f"The rollback to {accepted.target} was accepted and is not finished after {FINISHED_WITHIN_S:g} s",
        why="the learner is starting, or waits for the trajectory store",
        fix="nothing: it is finished without this command; `tidegate status` shows the version",
    )
