"""The environment service's own section of the run file."""

from typing import Annotated, Literal

import msgspec

from tidegate.core.distributions import Distribution, Fixed, parse_distribution
from tidegate.core.errors import ConfigError
from tidegate.environment.sandbox.port import SandboxLimits
from tidegate.environment.sandbox.settings import Isolation, LinuxIsolation
from tidegate.environment.state import TASK
from tidegate.environment.verifiers.settings import VerifierSettings

PositiveSeconds = Annotated[float, msgspec.Meta(gt=0.0)]


class EnvironmentConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scoring of rollouts, and limits of sessions.

    ``slots``: groups that one worker scores at once; a slot is freed when its group's publish is acknowledged.
    ``max_ack_pending``: groups that all workers together may hold. ``ack_wait_s``: seconds without a heartbeat after
    which a group goes to another worker; must exceed a few broker round trips.
    ``score_deadline_s``: seconds for the task's own verifier to score one completion; after that ``on_error`` decides,
    so it is a choice of reward design. Tasks of this package are scored in the worker itself, within microseconds; a
    task of one's own in ``verifier_processes`` child processes, of which one that is late or dead is replaced.
    ``verifier_start_deadline_s``: seconds in which its code must load. ``verifier_memory_bytes``: of data that one
    process may allocate (RLIMIT_DATA); its code gets a MemoryError at it, and the process is replaced; 0: no limit.
    ``score_attempts``: attempts to score one completion while failures are transient (a judge that is busy or away, a
    child process that died); permanent failures are not retried.
    ``on_error``: the result of a verifier that failed or was late in all of its attempts. ``drop`` drops the whole
    group as failed, so that nothing is learned from a missing verdict. ``zero`` trains it as reward 0, as if the
    completion were bad, and notes it in the verifier log; ``partial`` gives the failed verifier ``partial_credit`` (as
    its score) and counts the others unchanged.
    ``cache_entries``: cached verdicts of the task's own verifier and of all others, least recently used out first; 0
    disables the cache.
    ``rewards``: weights of the reward's components: ``task`` (the environment's own score) and verifiers by name;
    empty: the task's own score. A weight of 0 keeps the component in the record and out of the reward.
    ``verifiers``: further verifiers by name, each of ``kind`` judge, classifier, code or python; each needs a weight.
    ``score_latency``: the least time of scoring, to simulate slow verifiers: ``fixed:S``, ``exp:MEAN_S`` or
    ``lognormal:MEAN_S:C``; a group takes as long as the slowest of its samples. Drawn by task, so runs repeat; it uses
    no CPU, and occupies one of the ``slots``.
    ``max_sessions``: open sessions; Reset is refused beyond them until one ends. ``session_idle_s``: seconds without a
    call after which a session is closed. ``session_deadline_s``: seconds that one reset or step may compute; must
    exceed ``sandbox.wall_s`` where programs are run.
    ``session_threads``: resets and steps that compute at once, including programs in the sandbox.
    ``session_envs``: environments outside of Gymnasium's registry (``module:EnvId``) that a call may open; opening one
    imports its module, hence this list.
    ``tool_latency``, ``tool_error_share``: added latency of the tools of conversations, and the share of their calls
    that fail, to test a trainer; drawn by the session's seed.
    ``sandbox``: limits of one run of model-written code. ``isolation``: what runs it: of ``kind`` linux, in this
    process's machine or pod, or pods, in a pod of its own under a runtime class such as gVisor.
    """

    slots: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 8
    max_ack_pending: Annotated[int, msgspec.Meta(ge=1, le=65536)] = 256
    ack_wait_s: Annotated[float, msgspec.Meta(ge=1.0, le=3600.0)] = 10.0
    score_deadline_s: PositiveSeconds = 2.0
    verifier_processes: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    verifier_start_deadline_s: PositiveSeconds = 60.0
    verifier_memory_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 50)] = 4 << 30
    score_attempts: Annotated[int, msgspec.Meta(ge=1, le=16)] = 3
    on_error: Literal["zero", "drop", "partial"] = "drop"
    partial_credit: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.0
    cache_entries: Annotated[int, msgspec.Meta(ge=0, le=10_000_000)] = 65_536
    rewards: dict[str, Annotated[float, msgspec.Meta(ge=-1000.0, le=1000.0)]] = {}
    verifiers: dict[str, VerifierSettings] = {}
    score_latency: str = ""
    max_sessions: Annotated[int, msgspec.Meta(ge=1, le=65536)] = 64
    session_idle_s: PositiveSeconds = 60.0
    session_deadline_s: PositiveSeconds = 20.0
    session_threads: Annotated[int, msgspec.Meta(ge=1, le=256)] = 4
    session_envs: tuple[str, ...] = ()
    tool_latency: str = ""
    tool_error_share: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.0
    sandbox: SandboxLimits = SandboxLimits()
    isolation: Isolation = LinuxIsolation()

    def __post_init__(self) -> None:
        """Refuse weights without a verifier, verifiers without a weight, and invalid times.

        Raises:
            ConfigError: one is such; the message names it.
        """
        names = {TASK, *self.verifiers}
        if TASK in self.verifiers:
            raise ConfigError(
                f"environment.verifiers.{TASK} is taken", why="it is the task's own score", fix="rename it"
            )
        for name in (*self.rewards, *self.verifiers):
            if name not in names:
                raise ConfigError(
                    f"environment.rewards.{name} names no verifier",
                    fix=f"use one of {', '.join(sorted(names))}",
                )
            if name not in self.rewards:
                raise ConfigError(
                    f"environment.verifiers.{name} has no weight",
                    fix=f"add it to environment.rewards: {name}: 1.0",
                )
        for field, text in (("score_latency", self.score_latency), ("tool_latency", self.tool_latency)):
            try:
                times_of(text)
            except ConfigError as error:
                raise ConfigError(
                    f"environment.{field}: {error.what}", why=error.why, fix=error.fix
                ) from error

    def weights(self) -> dict[str, float]:
        """The weight of each part of the reward, by name."""
        return self.rewards or {TASK: 1.0}


def times_of(text: str) -> Distribution:
    """A distribution of times; empty text means 0.

    Raises:
        ConfigError: it is none.
    """
    return parse_distribution(text) if text else Fixed(0.0)
