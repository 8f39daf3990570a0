"""What an experiment tracker has to offer."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

# How a run ended: by its target or time limit; because it could not go on; interrupted, or killed outright.
Ending = Literal["finished", "failed", "killed"]


class Tracker(Protocol):
    """Keeps numbers by step, texts and tables. ``at_s``: seconds since the epoch.

    Every call may take as long as the tracker's service or disk does, and raise one of ``errors``, after which the same
    call comes again.
    """

    errors: tuple[type[Exception], ...]

    def settings(self, run_file: Mapping[str, Any], *, at_s: float) -> None:
        """The run file with its defaults, once."""
        ...

    def numbers(self, values: Mapping[str, float], *, step: int, at_s: float) -> None:
        """Numbers of one update, or of a version that was evaluated; names have sections, as ``train/loss``."""
        ...

    def text(self, name: str, text: str, *, step: int, at_s: float) -> None:
        """A text such as the receipt; another one of the same name replaces it."""
        ...

    def table(self, name: str, rows: Sequence[Mapping[str, Any]], *, step: int, at_s: float) -> None:
        """Rows with the same columns, such as the samples of a version."""
        ...

    def flush(self) -> None:
        """Write or send what ``numbers`` left for later; once a look."""
        ...

    def close(self, ending: Ending) -> None:
        """Write what is left of a run that is over, and how it ended; it may be resumed, and is then tracked again."""
        ...
