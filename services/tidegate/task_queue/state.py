"""Decisions of the task queue, without IO: what may be admitted, which tasks, and which are lost.

A trajectory's life as the queue sees it: admitted (running), accepted (in the store), then trained or dropped. The
store's ledger is the truth; the queue follows its outcomes, and a revived trajectory goes back to accepted.
"""

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from enum import IntEnum
from typing import TypeAlias

import msgspec

from tidegate.core.admission import Admit, Delay, Flow, Limits, decide_admission, required_version
from tidegate.core.errors import ConfigError
from tidegate.core.ids import PolicyVersion, PromptId, RunId, task_id
from tidegate.core.records import Sampler, Task, TaskKind
from tidegate.core.staleness import LineageTree


class TrajectoryState(IntEnum):
    """A trajectory in the journal; up to ACCEPTED it is in flight. The numbers are what the file holds."""

    ADMITTED = 0
    ACCEPTED = 1
    TRAINED = 2
    DROPPED = 3


IN_FLIGHT = (TrajectoryState.ADMITTED, TrajectoryState.ACCEPTED)

# An outcome reports where a trajectory is now, not what happened to it: the ledger is the truth, also about a row it
# takes back after a power cut. A revived row is available, that is accepted, again.
_STATE_OF_OUTCOME = {
    "accepted": TrajectoryState.ACCEPTED,
    "available": TrajectoryState.ACCEPTED,
    "trained": TrajectoryState.TRAINED,
    "dropped": TrajectoryState.DROPPED,
}


def state_after(state: TrajectoryState, outcome: str) -> TrajectoryState:
    """Where an outcome takes a trajectory. The same outcome twice changes nothing; an unknown one neither."""
    return _STATE_OF_OUTCOME.get(outcome, state)


class Counts(msgspec.Struct, frozen=True):
    """Trajectories by state, kept up to date with every transition."""

    running: int = 0
    accepted: int = 0
    trained: int = 0
    dropped: int = 0

    @property
    def in_flight(self) -> int:
        """Admitted and not terminal."""
        return self.running + self.accepted

    @property
    def admitted(self) -> int:
        """All there ever were."""
        return self.running + self.accepted + self.trained + self.dropped

    def admit(self, count: int) -> "Counts":
        """The counts with ``count`` more running."""
        return msgspec.structs.replace(self, running=self.running + count)

    def move(self, before: TrajectoryState, after: TrajectoryState) -> "Counts":
        """The counts after one trajectory changed its state."""
        numbers = [self.running, self.accepted, self.trained, self.dropped]
        numbers[before] -= 1
        numbers[after] += 1
        return Counts(*numbers)

    def plus(self, other: "Counts") -> "Counts":
        """The counts of both."""
        return Counts(
            running=self.running + other.running,
            accepted=self.accepted + other.accepted,
            trained=self.trained + other.trained,
            dropped=self.dropped + other.dropped,
        )


TrainedAt: TypeAlias = dict[PolicyVersion, int]


def is_announced(trained_at: PolicyVersion, *, head: PolicyVersion, tree: LineageTree) -> bool:
    """Whether the update applied to ``trained_at`` is part of ``head``, or of a branch that ``head`` replaced."""
    if trained_at.lineage == head.lineage:
        return head.step > trained_at.step
    return trained_at.lineage in tree.lineages


def without_announced(trained_at: TrainedAt, *, head: PolicyVersion, tree: LineageTree) -> TrainedAt:
    """What was trained in updates that are not announced yet; the rest need not be kept."""
    return {
        version: count
        for version, count in trained_at.items()
        if not is_announced(version, head=head, tree=tree)
    }


class Snapshot(msgspec.Struct, frozen=True):
    """All that one admission decision is made from.

    ``unpublished_tasks``: journaled tasks that TASKS has not acknowledged yet. ``head``: newest announced policy.
    ``behind``: versions published since the oldest running rollout was admitted; used only with pacing.
    """

    limits: Limits
    counts: Counts
    trained_at: TrainedAt = {}
    unpublished_tasks: int = 0
    head: PolicyVersion | None = None
    tree: LineageTree = LineageTree()
    retired: bool = False
    behind: int = 0

    def flow(self) -> Flow:
        """Work in flight, as the capacity law counts it."""
        ahead = self.trained_at
        if self.head is not None:
            ahead = without_announced(ahead, head=self.head, tree=self.tree)
        return Flow(
            running=self.counts.running,
            in_flight=self.counts.in_flight,
            unannounced=sum(ahead.values()),
            behind=self.behind,
        )


def decide(snapshot: Snapshot, *, group_size: int) -> Admit | Delay:
    """How many trajectories to admit now, or what has to end first."""
    if snapshot.retired:
        return Delay(reason="the run is retired")
    if snapshot.unpublished_tasks:
        return Delay(reason="TASKS takes no more: waits for an actor to end a task")
    if snapshot.head is None:
        return Delay(reason="no policy yet: waits for the learner's first version")
    return decide_admission(snapshot.limits, snapshot.flow(), group_size=group_size)


def effective_limits(ceiling: Limits, published: Limits | None) -> Limits:
    """The limits in force: what admission asks for, never looser than the run file.

    A stream that outlived its run file (a resumed run with a smaller ``max_lag``) must not widen the budget. The
    batch size is the learner's and pacing a promise about what is trained, hence both the run file's.
    """
    if published is None:
        return ceiling
    return Limits(
        max_lag=max(0, min(published.max_lag, ceiling.max_lag)),
        batch_size=ceiling.batch_size,
        max_running=max(0, min(published.max_running, ceiling.max_running)),
        paused=published.paused,
        reason=published.reason,
        paced=ceiling.paced,
    )


def check_limits(limits: Limits, *, group_size: int) -> None:
    """Refuse settings under which the loop would wait for itself.

    Raises:
        ConfigError: a batch cannot be made of whole groups, or not even one group may run.
    """
    if limits.batch_size % group_size:
        raise ConfigError(
            f"batch_size {limits.batch_size} is not a multiple of workload.num_samples {group_size}",
            why="a batch is made of whole groups; the rest of the last group would wait for ever",
            fix=f"set batch_size to {max(1, limits.batch_size // group_size) * group_size}",
        )
    if limits.max_running < group_size:
        raise ConfigError(
            f"max_running {limits.max_running} is smaller than workload.num_samples {group_size}",
            why="not even one group could be admitted",
            fix=f"set max_running to at least {group_size}",
        )


class Workload(msgspec.Struct, frozen=True):
    """What every task of this run has in common. ``group_size`` is 1 for segments.

    ``env_id``: of tasks whose prompt names none.
    """

    run_id: RunId
    kind: TaskKind
    env_id: str
    group_size: int
    unroll_length: int
    sampler: Sampler
    seed: int


class Prompt(msgspec.Struct, frozen=True):
    """One problem of the dataset; segments, which need none, use an empty one.

    ``env``: the environment that it is of, where a run has several.
    """

    prompt_id: PromptId
    prompt: str = ""
    answer: str = ""
    bin: str = "all"
    env: str = ""


SEGMENT = Prompt(prompt_id=PromptId(""))


def task_seed(seed: int, seq: int) -> int:
    """A seed for one task, 63 bits, that depends on the run's seed and the task's number alone."""
    digest = hashlib.blake2b(f"{seed}/task/{seq}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def plan_tasks(
    snapshot: Snapshot,
    workload: Workload,
    *,
    first_seq: int,
    prompts: Sequence[Prompt],
    trace_parents: Sequence[str],
    now_s: float,
) -> list[Task]:
    """One task a prompt, numbered from ``first_seq``, each asking for the oldest policy that can still make its batch.

    A group is trained whole, so it asks for what its last sample asks for.
    """
    assert snapshot.head is not None, "decide() admits nothing before the first policy"
    flow = snapshot.flow()
    ahead = flow.in_flight + flow.unannounced
    tasks: list[Task] = []
    for number, (prompt, trace_parent) in enumerate(zip(prompts, trace_parents, strict=True)):
        last_sample = ahead + (number + 1) * workload.group_size - 1
        seq = first_seq + number
        tasks.append(
            Task(
                task_id=task_id(seq),
                run_id=workload.run_id,
                kind=workload.kind,
                required_version=required_version(snapshot.limits, head=snapshot.head, position=last_sample),
                num_samples=workload.group_size,
                prompt_id=prompt.prompt_id,
                prompt=prompt.prompt,
                answer=prompt.answer,
                env_id=prompt.env or workload.env_id,
                curriculum_bin=prompt.bin,
                seed=task_seed(workload.seed, seq),
                unroll_length=workload.unroll_length,
                sampler=workload.sampler,
                admitted_at_s=now_s,
                trace_parent=trace_parent,
            )
        )
    return tasks


class AdmittedUnder(msgspec.Struct, frozen=True):
    """Under which learner step tasks were admitted: from ``seqs[i]`` on it was ``steps[i]``. Both ascend with time."""

    seqs: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()

    def note(self, seq: int, *, step: int) -> "AdmittedUnder":
        """The knowledge that tasks from ``seq`` on were admitted under ``step``."""
        if self.steps and step == self.steps[-1]:
            return self
        return AdmittedUnder((*self.seqs, seq), (*self.steps, step))

    def since(self, oldest_running: int) -> "AdmittedUnder":
        """Without what no running task needs; that bounds it."""
        first = max(0, bisect_right(self.seqs, oldest_running) - 1)
        return AdmittedUnder(self.seqs[first:], self.steps[first:])

    def behind(self, oldest_running: int, *, head: PolicyVersion) -> int:
        """Versions published since a task was admitted; what a former life admitted counts from this one's start."""
        if not self.seqs:
            return 0
        index = max(0, bisect_right(self.seqs, oldest_running) - 1)
        return max(0, head.step - self.steps[index])


class Deliveries(msgspec.Struct, frozen=True):
    """What is known about how far TASKS was delivered: every task up to ``seqs[i]`` by ``at_s[i]``, both ascending.

    TASKS is read in order, but for the few tasks of one burst of publishes, which the deadline covers. So all before
    a task whose trajectories arrived were delivered, and all that were published when an actor found nothing to do. A
    task that no actor took yet is not lost, however old: zero actors is a pause (I9).
    """

    seqs: tuple[int, ...] = ()
    at_s: tuple[float, ...] = ()

    def note(self, seq: int, *, at_s: float) -> "Deliveries":
        """The knowledge that everything up to ``seq`` was delivered by now."""
        if self.seqs and seq <= self.seqs[-1]:
            return self
        return Deliveries((*self.seqs, seq), (*self.at_s, at_s))

    def forget_before(self, seq: int) -> "Deliveries":
        """Without entries that no open task needs; ``seq`` is the oldest open one."""
        first = bisect_left(self.seqs, seq)
        return Deliveries(self.seqs[first:], self.at_s[first:])


def lost_before(deliveries: Deliveries, *, reachable_since_s: float, deadline_s: float, now_s: float) -> int:
    """Tasks numbered below this, and still without a trajectory, are lost.

    The deadline counts from the delivery, or from the moment the store came back, whichever is later: while the
    store is away a finished rollout waits in its stream and is not lost.
    """
    if now_s - reachable_since_s < deadline_s:
        return 0
    late = [
        seq for seq, at_s in zip(deliveries.seqs, deliveries.at_s, strict=True) if now_s - at_s >= deadline_s
    ]
    return late[-1] + 1 if late else 0


# An actor that spent this share of the time between two of its reports waiting for a task had nothing to do; the rest
# is what a report itself and the last acknowledgement take.
STARVED_SHARE = 0.9


def was_starved(*, waited_s: float, elapsed_s: float) -> bool:
    """Whether an actor found nothing to do, so that all that was published before had been delivered."""
    return elapsed_s > 0 and waited_s >= STARVED_SHARE * elapsed_s


def evaluation_due(head: PolicyVersion, *, last: PolicyVersion | None, every_versions: int) -> bool:
    """Whether ``head`` is to be evaluated: the first version, then once a multiple."""
    if every_versions == 0:
        return False
    return last is None or head.step // every_versions != last.step // every_versions
