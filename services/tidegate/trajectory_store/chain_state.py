"""What a ledger must contain, from the entries of its hash chain alone."""

from array import array
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tidegate.core.errors import RecordError
from tidegate.core.ids import TrajectoryId
from tidegate.trajectory_store.hash_chain import (
    FRAME_DIGEST_BYTES,
    ArrivedNote,
    BudgetNote,
    DroppedNote,
    Entry,
    FoldedNote,
    LineageNote,
    Note,
    RevivedNote,
    Runs,
    TrainedNote,
    UnarrivedNote,
    UnitsNote,
)

WAITING, TRAINED, DROPPED = range(3)

# One row as the chain has it: its state, the entry and the note that made it so, its place in that note, and how
# often it was revived. `entry` is 0 for a row that the chain does not know.
ROW = np.dtype([("state", "u1"), ("entry", "i8"), ("note", "i4"), ("place", "i4"), ("num_revivals", "i4")])


class ExpectedFrame(msgspec.Struct, frozen=True, gc=False):
    """A frame that arrived, and its rows: ``num_rows`` from ``first_seq`` on; ``indexes``: see ``ArrivedNote``."""

    frame_id: int
    first_seq: int
    num_rows: int
    digest: bytes
    at_s: float
    indexes: list[int] | None


class Uses:
    """The uses by one update, each as it was noted first."""

    def __init__(self) -> None:
        self.seqs = array("q")
        self.lags = array("q")
        self.spans = array("q")
        self.ages_s = array("d")

    def by_row(self) -> dict[int, tuple[int, int, float]]:
        """Lag, span and age by row; a use that was noted again keeps its first values, as in the ledger."""
        uses: dict[int, tuple[int, int, float]] = {}
        for seq, lag, span, age_s in zip(self.seqs, self.lags, self.spans, self.ages_s, strict=True):
            uses.setdefault(seq, (lag, span, age_s))
        return uses


class ChainState:
    """The entries replayed, oldest first. Memory: about 21 bytes a row, 32 a use and 100 a frame or note."""

    def __init__(self, *, num_rows: int, through_seq: int = 0) -> None:
        """``num_rows``: about how many rows there are after ``through_seq``; those up to it were folded."""
        self._through_seq = through_seq
        self.folded: FoldedNote | None = None
        self.rows: NDArray[Any] = np.zeros(num_rows + 1, ROW)
        self.frames: list[ExpectedFrame] = []
        self.unarrived: list[tuple[int, TrajectoryId, float]] = []
        self.uses: dict[tuple[str, int], Uses] = {}
        self.units: dict[str, UnitsNote] = {}
        self.lineages: dict[str, LineageNote] = {}
        self.budgets: dict[tuple[str, int], int | None] = {}
        self.notes: list[TrainedNote | DroppedNote | None] = [None]

    def row(self, seq: int) -> Any:
        """What the entries say of a row that was not folded (see ``ROW``)."""
        return self.rows[seq - self._through_seq]

    def knows(self, seq: int) -> bool:
        """Whether an entry wrote the row, and it was not folded."""
        return 0 < seq - self._through_seq < len(self.rows) and bool(self.row(seq)["entry"])

    def apply(self, entry: Entry) -> None:
        """Apply one entry.

        Raises:
            RecordError, msgspec.MsgspecError, UnicodeDecodeError: its content is not what ``seal`` writes.
        """
        for note in entry.notes():
            self._apply(entry.number, note)

    def _apply(self, number: int, note: Note) -> None:
        match note:
            case ArrivedNote():
                self._arrived(number, note)
            case UnarrivedNote():
                seqs = self._seqs([(note.first_seq, len(note.trajectory_ids))])
                places = self._places(seqs)
                self.rows["entry"][places] = number
                self.unarrived += [
                    (seq, name, note.at_s)
                    for seq, name in zip(seqs.tolist(), note.trajectory_ids, strict=True)
                    if seq > self._through_seq
                ]
            case TrainedNote():
                self._trained(number, note)
            case DroppedNote():
                self._final(number, note, self._seqs(note.runs), DROPPED)
            case RevivedNote():
                places = self._places(self._seqs(note.runs))
                self.rows["state"][places] = WAITING
                self.rows["entry"][places] = number
                self.rows["num_revivals"][places] += 1
            case UnitsNote():
                self.units[note.batch_id] = note
            case LineageNote():
                self.lineages[note.name] = note
            case BudgetNote():
                self.budgets[note.lineage, note.from_step] = note.max_lag
            case FoldedNote():
                self.folded = note

    def _arrived(self, number: int, note: ArrivedNote) -> None:
        if len(note.digests) != FRAME_DIGEST_BYTES * len(note.num_rows):
            raise RecordError(f"Entry {number} does not have one digest a frame")
        seq = note.first_seq
        for position, num_rows in enumerate(note.num_rows):
            digest = note.digests[position * FRAME_DIGEST_BYTES : (position + 1) * FRAME_DIGEST_BYTES]
            frame_id, indexes = note.first_frame + position, note.indexes.get(position)
            if seq > self._through_seq:
                self.frames.append(ExpectedFrame(frame_id, seq, num_rows, digest, note.at_s, indexes))
            seq += num_rows
        places = self._places(self._seqs([(note.first_seq, seq - note.first_seq)]))
        self.rows["entry"][places] = number

    def _trained(self, number: int, note: TrainedNote) -> None:
        seqs = self._seqs(note.runs)
        if not len(seqs) == len(note.lags) == len(note.spans) == len(note.ages_s):
            raise RecordError(f"Entry {number} does not have one lag, span and age a row")
        self._final(number, note, seqs, TRAINED)
        if note.is_use:
            uses = self.uses.setdefault((note.lineage, note.step), Uses())
            uses.seqs.extend(seqs.tolist())
            uses.lags.extend(note.lags)
            uses.spans.extend(note.spans)
            uses.ages_s.extend(note.ages_s)

    def _final(
        self, number: int, note: TrainedNote | DroppedNote, seqs: NDArray[np.int64], state: int
    ) -> None:
        self.notes.append(note)
        places = self._places(seqs)
        self.rows["state"][places] = state
        self.rows["entry"][places] = number
        self.rows["note"][places] = len(self.notes) - 1
        self.rows["place"][places] = np.arange(len(seqs))[seqs > self._through_seq]

    def _seqs(self, runs: Runs) -> NDArray[np.int64]:
        """The rows of ``runs`` one by one."""
        if any(first < 1 or count < 1 for first, count in runs):
            raise RecordError(f"There are no such rows: {runs}")
        return np.concatenate([np.arange(first, first + count, dtype=np.int64) for first, count in runs])

    def _places(self, seqs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where ``rows`` has those that were not folded, all of them afterwards: the end of a table may be lost."""
        places = seqs[seqs > self._through_seq] - self._through_seq
        missing = int(places.max(initial=0)) + 1 - len(self.rows)
        if missing > 0:
            self.rows = np.concatenate([self.rows, np.zeros(missing, ROW)])
        return places
