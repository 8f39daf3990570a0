"""What KEDA is answered: the recommended number of actors as a metric, of which one replica is to stand for 1.

An autoscaler that is told 7 with a target of 1 a replica wants 7 replicas; bounds, windows and steps were applied
before. Where nothing can be said the call fails, and KEDA leaves the scale as it is (or does what its ``fallback``
says) instead of taking silence for 0.
"""

from collections.abc import AsyncGenerator

from tidegate.admission.scaling import Scaling
from tidegate.core.errors import ConfigError, UnavailableError

METRIC = "tidegate-actors-wanted"
TARGET_PER_REPLICA = 1.0


class ModeError(ConfigError):
    """Somebody follows recommendations that this run does not make."""

    status = "FAILED_PRECONDITION"


class ExternalScaler:
    """The four answers, without gRPC."""

    def __init__(self, scaling: Scaling) -> None:
        """``scaling`` holds what is recommended."""
        self._scaling = scaling

    def wanted(self) -> int:
        """Actors to have now.

        Raises:
            ModeError: the mode is another one than external.
            UnavailableError: nothing is recommended yet.
        """
        self._check_mode()
        made = self._scaling.recommendation
        if made is None:
            raise UnavailableError("Admission has looked at nothing yet", fix="ask again in a second")
        return made.replicas

    async def activity(self) -> AsyncGenerator[bool]:
        """Whether there should be any actor at all: once it is known, and then whenever it changes.

        Raises:
            ModeError: the mode is another one than external; the caller asks anew.
        """
        told: bool | None = None
        while True:
            changed = self._scaling.changed
            self._check_mode()
            made = self._scaling.recommendation
            if made is not None and (made.replicas > 0) != told:
                told = made.replicas > 0
                yield told
            await changed.wait()

    def _check_mode(self) -> None:
        mode = self._scaling.config.mode
        if mode != "external":
            raise ModeError(
                f"Admission does not scale through KEDA: its mode is {mode}",
                fix="set admission.scaling.mode to external, or delete the ScaledObject",
            )
