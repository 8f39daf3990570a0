"""``tidegate replay``."""

import math
import sys
from typing import Annotated

import msgspec
import numpy as np
import typer
from rich.progress import Progress

from tidegate.cli.accounting import ledger_path
from tidegate.cli.console import open_console
from tidegate.cli.replay.recomputing import Recomputation, RecomputedUpdate
from tidegate.cli.run_argument import RunFolderOption
from tidegate.core.ids import PolicyVersion, TrajectoryId
from tidegate.core.records import Array
from tidegate.launch.local_files import require_local
from tidegate.launch.named_version import NEWEST, version_of
from tidegate.launch.run_folder import find_folder, read_record
from tidegate.trajectory_store.kept_updates import open_updates

FIRST = "first"


class Replayed(msgspec.Struct, frozen=True):
    """What was recomputed and how it compares; the keys of ``--json``.

    ``start``: the checkpoint that it began from, empty for the run's first policy. ``num_losses``, ``num_versions``,
    ``num_checkpoints``: kept ones that were compared. ``differing``: by version, what is not equal to the last bit.
    ``distance``: with ``--without`` or ``--diff``, the Euclidean distance of the parameters, by tensor; None where the
    run no longer keeps the other side.
    """

    version: str
    start: str
    num_updates: int
    num_trajectories: int
    num_losses: int
    num_versions: int
    num_checkpoints: int
    differing: dict[str, list[str]]
    left_out: list[str]
    metrics: dict[str, float]
    kept_loss: float | None
    distance: dict[str, float] | None = None


def replay(
    version: Annotated[
        str,
        typer.Argument(help="Version whose update is recomputed, such as 0-3fa2@40 (default: the newest)."),
    ] = NEWEST,
    folder: RunFolderOption = None,
    since: Annotated[
        str,
        typer.Option(
            "--from",
            help="Recompute from this version, or from the `first`, up to VERSION.",
        ),
    ] = "",
    without: Annotated[
        str, typer.Option(help="Leave out this trajectory with its group, and tell what that changes.")
    ] = "",
    diff: Annotated[
        str,
        typer.Option(help="Another, earlier version: tell how far the parameters moved from it to VERSION."),
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Recompute the updates up to a version from ledger, payloads, checkpoints and random state.

    Each update is compared with what the run kept: the loss of its step, its published parameters, its checkpoint.
    Exits 0 if all are equal to the last bit, else 1.
    """
    where = find_folder(folder)
    require_local(read_record(where))
    with open_updates(ledger_path(where)) as updates:
        target = version_of(version) or updates.newest()
        other = version_of(diff) if diff else None
        recomputation = Recomputation(
            where,
            updates,
            target=target,
            since=other if other is not None else _since(since, target),
            without=TrajectoryId(without) if without else None,
        )
        result = _replay(recomputation, target, other=other, quiet=json or not sys.stderr.isatty())
    if json:
        sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    else:
        _print(result)
    raise typer.Exit(1 if result.differing else 0)


def _since(text: str, target: PolicyVersion) -> PolicyVersion | None:
    if text == FIRST:
        return PolicyVersion(lineage=target.lineage, step=-1)
    return version_of(text) if text else None


def _replay(
    recomputation: Recomputation, target: PolicyVersion, *, other: PolicyVersion | None, quiet: bool
) -> Replayed:
    made: list[RecomputedUpdate] = []
    other_policy: dict[str, Array] | None = None
    with Progress(console=open_console(stderr=True), transient=True, disable=quiet) as progress:
        bar = progress.add_task("updates", total=recomputation.num_updates)
        if other is not None and recomputation.start == other:
            other_policy = recomputation.kept_policy(other)
        for update in recomputation.updates():
            made.append(update)
            progress.advance(bar)
            if other is not None and update.version.step == other.step:
                other_policy = recomputation.policy()
    left_out = [name for update in made for name in update.left_out]
    if left_out:
        other_policy = recomputation.kept_policy(target)
    start = recomputation.start
    return Replayed(
        version=str(target),
        start="" if start is None else str(start),
        num_updates=len(made),
        num_trajectories=sum(update.num_trajectories for update in made),
        num_losses=_num_compared(made, "loss"),
        num_versions=_num_compared(made, "version"),
        num_checkpoints=_num_compared(made, "checkpoint"),
        differing={str(update.version): update.differs for update in made if update.differs},
        left_out=[str(name) for name in left_out],
        metrics=made[-1].metrics if made else {},
        kept_loss=made[-1].kept_loss if made else None,
        distance=None if other_policy is None else _distances(recomputation.policy(), other_policy),
    )


def _num_compared(made: list[RecomputedUpdate], what: str) -> int:
    return sum(what in update.compared for update in made)


def _distances(ours: dict[str, Array], theirs: dict[str, Array]) -> dict[str, float]:
    return {
        name: float(np.linalg.norm(ours[name].astype(np.float64) - theirs[name].astype(np.float64)))
        for name in ours
        if name in theirs
    }


def _print(result: Replayed) -> None:
    console = open_console()

    def say(text: str) -> None:
        console.print(text, soft_wrap=True)

    start = f"checkpoint {result.start}" if result.start else "the run's first policy"
    say(
        f"{result.version}: {result.num_updates:,} updates with {result.num_trajectories:,} trajectories recomputed"
        f" from {start}"
    )
    say(
        f"compared: {result.num_losses:,} losses, {result.num_versions:,} published versions,"
        f" {result.num_checkpoints:,} checkpoints"
    )
    for version, names in result.differing.items():
        say(f"DIFFERS at {version}: {', '.join(names)}")
    metrics = ", ".join(f"{name} {value:.6g}" for name, value in sorted(result.metrics.items()))
    say(f"last update: {metrics}")
    if result.left_out:
        say(f"left out: {', '.join(result.left_out)}; the run's own loss was {result.kept_loss}")
    if result.distance is not None:
        total = math.sqrt(sum(value**2 for value in result.distance.values()))
        farthest = sorted(result.distance.items(), key=lambda item: -item[1])[:5]
        say(
            f"distance of the parameters: {total:.6g} ("
            + ", ".join(f"{n} {v:.3g}" for n, v in farthest)
            + ")"
        )
    if not result.left_out:
        say("all equal to the last bit" if not result.differing else "NOT equal")
