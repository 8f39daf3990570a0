"""The port of all engines: tasks in, rollouts out, under a policy that may change between two steps or tokens.

An engine is synchronous and computes; it knows nothing of streams. The actor's loops call ``generate`` in one worker
thread and control it through ``EngineControl``. The engine reads its attributes between steps: an attribute read is
atomic, so neither side waits for the other.
"""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import msgspec

from tidegate.catalogue.actor import ENVIRONMENT_FAULTS
from tidegate.catalogue.kinds import Counter, Gauge
from tidegate.core.ids import PolicyVersion, TaskId
from tidegate.core.records import Array, EpisodeEnd, PolicySnapshot, Sampler, Task, ToolCall, VersionSpan
from tidegate.vector_envs.calls import EnvironmentCalls
from tidegate.vector_envs.faults import RECENT_MAX, Fault, FaultLog


class Sample(msgspec.Struct, frozen=True, eq=False):
    """One finished rollout of an engine; ``actor.state`` builds its record.

    ``num_steps`` is what throughput counts: environment steps or generated tokens. ``reward``, ``components``, ``log``
    and ``tool_calls``: set when an environment played the episode; a sample without a reward is scored later.
    ``stream_id`` and ``stream_position``: of segments (``core.records.Trajectory``).
    """

    tensors: dict[str, Array]
    spans: tuple[VersionSpan, ...]
    num_steps: int
    episodes: tuple[EpisodeEnd, ...] = ()
    completion: str = ""
    finish_reason: str = ""
    reward: float | None = None
    components: dict[str, float] = {}
    log: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    stream_id: str = ""
    stream_position: int = 0


class Rollouts(msgspec.Struct, frozen=True, eq=False):
    """All samples of one task, in order of their index, with the time that they took (seconds since the epoch)."""

    task: Task
    samples: tuple[Sample, ...]
    started_at_s: float
    finished_at_s: float


class Completed(msgspec.Struct, frozen=True):
    """The answers to the prompts of an evaluation as verifiers read them, in order; one version generated all of them.

    ``rewards``: of episodes played with an environment; None where a verifier scores a completion, or all, later.
    """

    version: PolicyVersion
    completions: list[str]
    num_tokens: int
    rewards: Sequence[float | None] | None = None


class RunningBatch(msgspec.Struct, frozen=True):
    """The batch that an engine runs: its tasks, its start (seconds since the epoch), and its first version."""

    task_ids: frozenset[TaskId]
    oldest: PolicyVersion
    started_at_s: float


class EngineControl:
    """Shared state of the loops and a running engine: the loops' commands and the engine's status.

    ``newest``: the policy to serve; the engine swaps to it at its next boundary. ``stop``: finish what is nearly
    done and return; the tasks without rollouts are released to other actors. ``cut``: tasks that are not worth
    finishing; the engine ends them at its next boundary and returns no rollouts of them.
    ``serving``, ``num_swaps`` and ``swap_s``: the policy in use, how often it was swapped, and the seconds that
    generation paused for it. ``running`` and ``position``: the running batch, and how many steps or tokens of it are
    generated. ``figures``: statistics of this engine only, by their names on the actor's board; bounded by its code.
    ``away``: the engine's server starts or is lost; a task that the actor took now would only age.
    ``faults``: the newest faults of environments, for the log, which takes them out. ``watched``: the threads
    that call environments, which may never return. ``asking``: the engine waits for another service, and no environment
    runs.
    """

    __slots__ = (
        "asking",
        "away",
        "cut",
        "faults",
        "figures",
        "newest",
        "num_swaps",
        "position",
        "running",
        "serving",
        "stop",
        "swap_s",
        "watched",
    )

    def __init__(self) -> None:
        self.newest: PolicySnapshot | None = None
        self.stop = False
        self.cut: frozenset[TaskId] = frozenset()
        self.running: RunningBatch | None = None
        self.position = 0
        self.serving: PolicySnapshot | None = None
        self.num_swaps = 0
        self.swap_s = 0.0
        self.figures: dict[Counter | Gauge, float] = {}
        self.away = False
        self.asking = False
        self.faults: deque[Fault] = deque(maxlen=RECENT_MAX)
        self.watched: list[EnvironmentCalls] = []

    def begins(self, tasks: Sequence[Task], version: PolicyVersion, *, now_s: float) -> None:
        """The engine starts these tasks together, under ``version``."""
        self.position = 0
        self.running = RunningBatch(frozenset(task.task_id for task in tasks), version, now_s)

    def ends(self) -> None:
        """No batch runs."""
        self.running = None

    def swapped(self, snapshot: PolicySnapshot, *, seconds: float) -> None:
        """The engine now serves ``snapshot``; generation paused for ``seconds``."""
        self.serving = snapshot
        self.num_swaps += 1
        self.swap_s += seconds

    def count(self, statistic: Counter, value: float = 1.0) -> None:
        """Add to a counter in ``figures``."""
        self.figures[statistic] = self.figures.get(statistic, 0.0) + value

    def record_faults(self, faults: FaultLog) -> list[Fault]:
        """Count new faults of environments in ``figures``, leave the newest to the log, and return them."""
        report = faults.take()
        if report is None:
            return []
        for kind, count in report.counts.items():
            self.count(ENVIRONMENT_FAULTS.member(kind), count)
        self.faults.extend(report.newest)
        return report.newest


class Engine(Protocol):
    """Generates rollouts. Only one call runs at a time; the checks may come from another thread meanwhile."""

    def check_policy(self, snapshot: PolicySnapshot) -> None:
        """Whether this network can serve a policy.

        Raises:
            RecordError: names or shapes of the tensors do not fit; the message names the first that does not.
        """
        ...

    def check_task(self, task: Task) -> None:
        """Whether this engine can run a task; may prepare what it needs.

        Raises:
            TidegateError: it cannot; the message gives the reason.
        """
        ...

    def generate(self, tasks: Sequence[Task]) -> list[Rollouts]:
        """Run checked tasks under ``EngineControl.newest``. Tasks missing in the result were stopped or cut."""
        ...

    def complete(self, prompts: Sequence[str], sampler: Sampler) -> Completed:
        """Answer each prompt once under one version, for an evaluation.

        Raises:
            TidegateError: this engine has no prompts to answer.
        """
        ...

    def close(self) -> None:
        """Release what the engine holds."""
        ...
