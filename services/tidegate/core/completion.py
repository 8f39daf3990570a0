"""How a run in a cluster ends: its target holds, the loop runs empty, the learner writes a checkpoint, pods go.

Source: issue 18. On one machine `tidegate up` ends the run. In a cluster admission does, in stages that it keeps
across restarts: it admits nothing more; once the loop is empty it asks for a checkpoint; then actors are scaled to 0,
and the learner once the last backup, which asks it for its files, is made. A target that is changed or removed
afterwards ends the completion: what was scaled to 0 gets its number back.
"""

from collections.abc import Mapping, Sequence

import msgspec

from tidegate.core.targets import RunTarget

COMPLETE = "the run is complete"
# The loop is empty once nothing runs, no update is in progress, and no version was published for this long.
QUIET_S = 10.0
# A rollout or an update that takes longer than this does not delay the end: its work is lost, and no other.
FINISH_S_MAX = 1800.0
# How long the learner stays for the last backup.
BACKUP_S_MAX = 300.0


class RunEnd(msgspec.Struct, frozen=True):
    """What admission knows of the end of the run; times in seconds since the epoch.

    ``target``: as the run file has it, once it held; empty while the run works. ``quiet_since_s``: since when the loop
    has been empty, as far as it is known; ``step``: of the newest version by then. ``checkpointed``: the learner wrote
    its last checkpoint, at ``checkpointed_at_s``. ``replicas``: of what was scaled to 0, by name, to be restored.
    """

    target: str = ""
    reached_at_s: float = 0.0
    quiet_since_s: float = 0.0
    step: float = -1.0
    checkpointed: bool = False
    checkpointed_at_s: float = 0.0
    replicas: dict[str, int] = {}

    def reason(self) -> str:
        """Why admission is paused; empty while the run works."""
        return f"{COMPLETE}: {self.target} holds" if self.target else ""


class LoopState(msgspec.Struct, frozen=True):
    """``running`` rollouts, the ``step`` of the newest version, whether an update is in progress.

    None: the service that knows does not report, such as while it or admission starts again.
    """

    running: int | None
    step: float | None
    updating: bool


def advance(
    before: RunEnd,
    targets: Sequence[RunTarget],
    values: Mapping[str, float],
    loop: LoopState,
    *,
    now_s: float,
) -> RunEnd:
    """The completion one tick later. ``targets``: each ends the run. ``values``: statistics by name."""
    replace = msgspec.structs.replace
    if before.target and before.target not in map(str, targets):
        before = RunEnd(replicas=before.replicas)
    if not before.target:
        reached = next((target for target in targets if target.reached(values)), None)
        if reached is None:
            return before
        return replace(before, target=str(reached), reached_at_s=now_s, quiet_since_s=now_s)
    if before.checkpointed:
        return before
    step = before.step if loop.step is None else loop.step
    unknown = loop.running is None or loop.step is None
    busy = unknown or loop.running != 0 or loop.updating or step != before.step
    return replace(
        before,
        step=step,
        # A clock that was set back must not delay the end by as much.
        reached_at_s=min(before.reached_at_s, now_s),
        quiet_since_s=now_s if busy else min(before.quiet_since_s, now_s),
    )


def is_empty(completion: RunEnd, *, now_s: float) -> bool:
    """Whether the last checkpoint is due: the target holds and the loop ran empty, or had its time."""
    if not completion.target or completion.checkpointed:
        return False
    return now_s - completion.quiet_since_s >= QUIET_S or now_s - completion.reached_at_s >= FINISH_S_MAX


def waits_for_backup(completion: RunEnd, *, is_due: bool, now_s: float) -> bool:
    """Whether the learner stays for the last backup, which ``is_due``."""
    return is_due and 0.0 <= now_s - completion.checkpointed_at_s < BACKUP_S_MAX


def wanted_replicas(
    completion: RunEnd, found: Mapping[str, int], *, last: Sequence[str], keeps_last: bool = False
) -> dict[str, int]:
    """What to scale now, by name: all but ``last`` to 0 and then those unless it ``keeps_last``, or to what they had.

    ``found``: the numbers that are wanted at the moment. A number that was set since is not replaced by an old one.
    """
    if completion.checkpointed:
        first = {name: 0 for name, count in found.items() if count and name not in last}
        return first if first or keeps_last else {name: 0 for name, count in found.items() if count}
    if completion.target:
        return {}
    return {name: count for name, count in completion.replicas.items() if found.get(name) == 0}
