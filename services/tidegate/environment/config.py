"""The environment service's own section of the run file."""

from typing import Annotated, Literal

import msgspec

from tidegate.core.distributions import Distribution, Fixed, parse_distribution
from tidegate.core.errors import ConfigError
from tidegate.environment.sandbox.port import SandboxLimits
from tidegate.environment.state import TASK
from tidegate.environment.verifiers.settings import VerifierSettings

PositiveSeconds = Annotated[float, msgspec.Meta(gt=0.0)]


class EnvironmentConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How rollouts are scored and how many sessions may be open.

    ``slots``: groups scored at once by one worker; a slot is freed when its group's publish was acknowledged.
    ``max_ack_pending``: groups that all workers together may hold. ``ack_wait_s``: seconds without a heartbeat after
    which a group goes to another worker; must exceed a few broker round trips.
    ``score_deadline_s``: seconds a task's own verifier has for one completion; past it ``on_error`` decides, so it is a
    choice of reward design. ``verifier_threads``: such verifiers at work at once in this process, one thread each; one
    that hangs keeps its thread. 0 scores in the event loop, for verifiers that are known to take microseconds: then the
    deadline is only noticed afterwards.
    ``score_attempts``: times that a verifier is asked about one completion while its failures are such that asking
    again can help (a judge that is busy or away, a child process that died); what is wrong stays wrong and is not
    asked again.
    ``on_error``: what a verifier means that failed or was late, after all of its attempts. ``zero`` rewards nothing and
    says so in the verifier log; ``drop`` drops the whole group as failed; ``partial`` gives the failed verifier
    ``partial_credit`` (as if that had been its score) and counts the others as they are.
    ``cache_entries``: verdicts kept, of the task's own verifier and of all others, least recently used out first; 0
    scores everything anew.
    ``rewards``: what the reward is the weighted sum of: ``task`` (the environment's own score) and verifiers by name;
    empty is the task's own score. A weight of 0 keeps the component in the record and out of the reward.
    ``verifiers``: judges and classifiers by name, each of ``kind`` judge or classifier; each needs a weight.
    ``score_latency``: how long scoring takes at least, in place of slow verifiers: ``fixed:S``, ``exp:MEAN_S`` or
    ``lognormal:MEAN_S:C``; a group takes as long as the slowest of its samples. Drawn by task, so runs repeat; it burns
    no CPU, and holds one of the ``slots``.
    ``max_sessions``: open sessions; the next Reset is refused until one ends. ``session_idle_s``: seconds without a
    call after which a session is ended. ``session_deadline_s``: seconds that one reset or step may compute;
    must exceed ``sandbox.wall_s`` where programs are run.
    ``session_threads``: resets and steps that compute at once, programs in the sandbox among them.
    ``session_envs``: environments that live outside of Gymnasium's registry (``module:EnvId``) and may be opened by a
    call; naming a module imports it, which is why they are listed here.
    ``tool_latency``, ``tool_error_share``: how long tools of conversations take beyond their work, and the share of
    their calls that fail, to try out a trainer with; drawn by the session's seed.
    ``sandbox``: what one run of model-written code may use.
    """

    slots: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 8
    max_ack_pending: Annotated[int, msgspec.Meta(ge=1, le=65536)] = 256
    ack_wait_s: Annotated[float, msgspec.Meta(ge=1.0, le=3600.0)] = 10.0
    score_deadline_s: PositiveSeconds = 2.0
    verifier_threads: Annotated[int, msgspec.Meta(ge=0, le=256)] = 0
    score_attempts: Annotated[int, msgspec.Meta(ge=1, le=16)] = 3
    on_error: Literal["zero", "drop", "partial"] = "zero"
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

    def __post_init__(self) -> None:
        """Refuse rewards that nobody gives and times that cannot be read, before anything starts.

        Raises:
            ConfigError: one is such; the message says which.
        """
        names = {TASK, *self.verifiers}
        if TASK in self.verifiers:
            raise ConfigError(
                f"environment.verifiers.{TASK} is taken", why="it is the task's own score", fix="rename it"
            )
        for name in (*self.rewards, *self.verifiers):
            if name not in names:
                raise ConfigError(
                    f"environment.rewards.{name} is the score of nobody",
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
    """A distribution of times; an empty text is no time at all.

    Raises:
        ConfigError: it is none.
    """
    return parse_distribution(text) if text else Fixed(0.0)
