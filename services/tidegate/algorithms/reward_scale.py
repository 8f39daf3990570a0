"""The part of ``workload.reward`` that needs no statistics, for numpy in actors and torch in the learner."""

from typing import Any, Protocol


class RewardSettings(Protocol):
    """The run file's ``workload.reward``."""

    @property
    def scale(self) -> float:
        """Factor."""
        ...

    @property
    def clip(self) -> float:
        """Largest size; 0 for no limit."""
        ...

    @property
    def sign(self) -> bool:
        """Keep the sign alone."""
        ...

    @property
    def normalise(self) -> bool:
        """Divide by the running deviation of discounted returns."""
        ...


def scaled_rewards(rewards: Any, settings: RewardSettings, xp: Any) -> Any:
    """Rewards scaled, their sign, clipped; in this order. ``xp``: the module numpy or torch."""
    if settings.scale != 1.0:
        rewards = settings.scale * rewards
    if settings.sign:
        rewards = xp.sign(rewards)
    return xp.clip(rewards, -settings.clip, settings.clip) if settings.clip else rewards
