"""``token_gaps.jsonl``: where the learner's log-probabilities are furthest from those of the actors, for the page.

One JSON line an update. Shapes: T tokens of one trajectory.
"""

import base64
import binascii
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from tidegate.core.ids import PolicyVersion, TrajectoryId
from tidegate.core.records import Array
from tidegate.runtime.json_lines_file import JsonLinesFile

TOKEN_GAPS_FILE = "token_gaps.jsonl"
# Of each of two files; about 3,000 updates with four completions of 100 tokens each.
BYTES_MAX = 4 << 20


class TrajectoryGaps(msgspec.Struct, frozen=True):
    """``largest``: the largest absolute gap, in nats; ``gaps``: of all tokens, float16 in base64, NaN without one."""

    trajectory_id: str
    largest: float
    gaps: str

    def decoded(self) -> NDArray[np.float32]:
        """The gap of each token, in nats (T,).

        Raises:
            ValueError: the text is damaged.
        """
        try:
            return np.frombuffer(base64.b64decode(self.gaps, validate=True), np.float16).astype(np.float32)
        except binascii.Error as error:
            raise ValueError(f"the gaps of {self.trajectory_id} are damaged: {error}") from error


class GapsLine(msgspec.Struct, frozen=True):
    """One update: the version that it made, and its trajectories, those furthest off first."""

    version: str
    trajectories: list[TrajectoryGaps]


class TokenGapsLog:
    """Appends lines; at ``BYTES_MAX`` the file becomes ``token_gaps.jsonl.1`` and replaces the previous one."""

    def __init__(self, path: Path) -> None:
        """Append to an existing file."""
        self._file = JsonLinesFile(path, bytes_max=BYTES_MAX)
        self._encoder = msgspec.json.Encoder()

    def append(self, version: PolicyVersion, gaps: Sequence[tuple[TrajectoryId, Array]]) -> None:
        """Append the line of an update; none of one without gaps.

        Raises:
            OSError: as ``JsonLinesFile.append``.
        """
        if not gaps:
            return
        line = GapsLine(str(version), [_encoded(trajectory_id, gaps_T) for trajectory_id, gaps_T in gaps])
        self._file.append(self._encoder.encode(line) + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _encoded(trajectory_id: TrajectoryId, gaps_T: Array) -> TrajectoryGaps:
    known = gaps_T[np.isfinite(gaps_T)]
    largest = float(np.abs(known).max()) if len(known) else 0.0
    data = base64.b64encode(np.ascontiguousarray(gaps_T, np.float16).tobytes()).decode()
    return TrajectoryGaps(str(trajectory_id), largest, data)
