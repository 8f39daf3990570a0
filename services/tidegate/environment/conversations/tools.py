"""What the run gives the tools of its conversations: how slow and how unreliable they are, and a sandbox."""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from tidegate.core.curriculum import uniform_fraction
from tidegate.core.distributions import Distribution, Fixed
from tidegate.environment.sandbox.port import IsolationUnavailableError, Sandbox, SandboxLimits

TOOL_FAILED = "error"


class Conditions(msgspec.Struct, frozen=True):
    """How tools behave beyond what they compute, for trying out a trainer: the same for the same seed and turn.

    ``latency``: how long a call takes. ``error_share``: share of calls that are answered ``error``.
    """

    latency: Distribution = Fixed(0.0)
    error_share: float = 0.0

    def delay_s(self, seed: int, turn_index: int) -> float:
        """How long the call of this turn takes."""
        return self.latency.quantile(uniform_fraction(seed, "tool latency", turn_index))

    def fails(self, seed: int, turn_index: int) -> bool:
        """Whether the call of this turn fails."""
        return uniform_fraction(seed, "tool error", turn_index) < self.error_share


def no_sandbox() -> Sandbox:
    """There is none.

    Raises:
        IsolationUnavailableError: always.
    """
    raise IsolationUnavailableError(
        "There is no sandbox here", fix="hold such conversations in a session of the environment service"
    )


@dataclass(frozen=True, slots=True)
class Tools:
    """What an episode's tools are given.

    ``sandbox`` raises ``IsolationUnavailableError`` where model-written code cannot be isolated; ``limits`` hold for
    each run of it.
    """

    conditions: Conditions = field(default_factory=Conditions)
    sandbox: Callable[[], Sandbox] = no_sandbox
    limits: SandboxLimits = field(default_factory=SandboxLimits)


NO_TOOLS = Tools()
