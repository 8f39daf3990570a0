"""What an experiment tracker has to offer."""

from collections.abc import Mapping
from typing import Protocol


class Tracker(Protocol):
    """Keeps numbers by step, and texts. ``at_s``: seconds since the epoch."""

    def numbers(self, values: Mapping[str, float], *, step: int, at_s: float) -> None:
        """Numbers of one update, or of a version that was evaluated; names have sections, as ``train/loss``."""
        ...

    def text(self, name: str, text: str, *, step: int, at_s: float) -> None:
        """A text such as the run file."""
        ...

    def close(self) -> None:
        """Write what is left."""
        ...
