"""KEDA's external scaler: the recommended number of actors as a metric with a target of 1 per replica.

A metric of 7 with a target of 1 per replica makes the autoscaler want 7 replicas; bounds, windows and steps were
applied before. Without a recommendation the call fails, and KEDA keeps the scale (or applies its ``fallback``) instead
of reading a missing value as 0.
"""

from collections.abc import AsyncGenerator

from tidegate.admission.scaling import Scaling
from tidegate.core.errors import ConfigError, UnavailableError

METRIC = "tidegate-actors-wanted"
TARGET_PER_REPLICA = 1.0


class ModeError(ConfigError):
    """KEDA asked for recommendations, and this run's scaling mode is not external."""

    status = "FAILED_PRECONDITION"


class ExternalScaler:
    """The answers to KEDA's four calls, without gRPC."""

    def __init__(self, scaling: Scaling) -> None:
        self._scaling = scaling

    def wanted(self) -> int:
        """The recommended number of actors.

        Raises:
            ModeError: the mode is not external.
            UnavailableError: there is no recommendation yet.
        """
        self._check_mode()
        made = self._scaling.recommendation
        if made is None:
            raise UnavailableError("Admission has no recommendation yet", fix="retry in a second")
        return made.replicas

    async def activity(self) -> AsyncGenerator[bool]:
        """Whether at least one actor is recommended: once it is known, then at each change.

        Raises:
            ModeError: the mode is not external; the caller retries.
        """
        active: bool | None = None
        while True:
            changed = self._scaling.changed
            self._check_mode()
            made = self._scaling.recommendation
            if made is not None and (made.replicas > 0) != active:
                active = made.replicas > 0
                yield active
            await changed.wait()

    def _check_mode(self) -> None:
        mode = self._scaling.config.mode
        if mode != "external":
            raise ModeError(
                f"Admission does not scale through KEDA: its mode is {mode}",
                fix="set admission.scaling.mode to external, or delete the ScaledObject",
            )
