"""The best version of a run as weight distribution records it; commands read it without loading that service."""

from pathlib import Path

import msgspec

BEST_FILE = "best.json"
TRAINING = "of training"


class BestVersion(msgspec.Struct, frozen=True):
    """``best.json``. ``measure``: what ``score`` is, with ``TRAINING`` behind it where no evaluation said it."""

    version: str
    score: float
    measure: str
    at_s: float

    @property
    def is_evaluated(self) -> bool:
        """Whether an evaluation decided."""
        return not self.measure.endswith(TRAINING)


def read_best(folder: Path) -> BestVersion | None:
    """The best version that ``folder`` of weight distribution knows; None without one, or where it cannot be read."""
    try:
        return msgspec.json.decode((folder / BEST_FILE).read_bytes(), type=BestVersion)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
