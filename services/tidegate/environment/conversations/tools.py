"""The run's settings for the tools of conversations: latency, error share, and a sandbox."""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from tidegate.core.curriculum import uniform_fraction
from tidegate.core.distributions import Distribution, Fixed
from tidegate.environment.sandbox.port import IsolationUnavailableError, Sandbox, SandboxLimits

TOOL_FAILED = "error"


class Conditions(msgspec.Struct, frozen=True):
    """Simulated latency and failures of tools, for tests of a trainer: a function of seed and turn.

    ``latency``: duration of a call. ``error_share``: share of calls that are answered ``error``.
    """

    latency: Distribution = Fixed(0.0)
    error_share: float = 0.0

    def delay_s(self, seed: int, turn_index: int) -> float:
        """Duration of this turn's call."""
        return self.latency.quantile(uniform_fraction(seed, "tool latency", turn_index))

    def fails(self, seed: int, turn_index: int) -> bool:
        """Whether this turn's call fails."""
        return uniform_fraction(seed, "tool error", turn_index) < self.error_share


def no_sandbox() -> Sandbox:
    """The factory without a sandbox.

    Raises:
        IsolationUnavailableError: always.
    """
    raise IsolationUnavailableError(
        "There is no sandbox here", fix="open such conversations in a session of the environment service"
    )


@dataclass(frozen=True, slots=True)
class Tools:
    """The environment of an episode's tools.

    ``sandbox`` raises ``IsolationUnavailableError`` where model-written code cannot be isolated; ``limits`` hold for
    each run of it.
    """

    conditions: Conditions = field(default_factory=Conditions)
    sandbox: Callable[[], Sandbox] = no_sandbox
    limits: SandboxLimits = field(default_factory=SandboxLimits)


NO_TOOLS = Tools()
