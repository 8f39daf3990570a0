"""The ledger's hash chain: each entry says what one transaction wrote, and its digest covers the entry before.

A transaction notes what it writes in a temporary table (``note``), and ``seal`` turns the notes into one entry just
before the commit. Together the entries contain every final value of every row, so a row that was changed later is named
with its column (``verifying``). A user who can write the file can also write the whole chain again: a head that was
noted elsewhere (an exported policy carries one) shows that.

Digests of entries are SHA-256, of a frame's provenance BLAKE2b with 128 bits. A payload is covered by the XXH3 digest
of its frame, which finds accidental changes and is no defence against bytes made to have the same digest.
"""

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from tidegate.core.ids import PolicyVersion, TrajectoryId
from tidegate.trajectory_store.replay.uses import num_units
from tidegate.wire.digest import DIGEST_BYTES
from tidegate.wire.frame import written_digest

PROVENANCE_DIGEST_BYTES = 16
FRAME_DIGEST_BYTES = PROVENANCE_DIGEST_BYTES + DIGEST_BYTES
# The digest before the first entry.
GENESIS = bytes(32)

CHAIN_TABLE = """
CREATE TABLE chain (
    number INTEGER PRIMARY KEY,
    content BLOB NOT NULL,
    digest BLOB NOT NULL
)
"""
# What is left of the rows that were folded (see ``folding``): one note, and their ids.
FOLDED_TABLES = """
CREATE TABLE folded (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), content BLOB NOT NULL);
CREATE TABLE folded_tasks (first INTEGER PRIMARY KEY, last INTEGER NOT NULL, samples TEXT NOT NULL);
CREATE TABLE folded_ids (number INTEGER PRIMARY KEY, trajectory_id TEXT NOT NULL UNIQUE);
"""
# The writer's notes of the transaction that is open; a rollback takes them back.
_NOTES_TABLE = "CREATE TEMP TABLE IF NOT EXISTS chain_notes (content BLOB NOT NULL)"

# Rows that follow each other, as their first and their number.
Runs = Sequence[tuple[int, int]]


class ArrivedNote(msgspec.Struct, frozen=True, array_like=True, tag="arrived"):
    """Frames arrived: from ``first_frame`` on, their rows from ``first_seq`` on.

    ``digests``: see ``frame_digest``, one after the other. ``num_rows``: of each frame. ``indexes``: of frames some of
    whose records had arrived before, by position, the places of those that had not.
    """

    at_s: float
    first_frame: int
    first_seq: int
    digests: bytes
    num_rows: list[int]
    indexes: dict[int, list[int]]


class UnarrivedNote(msgspec.Struct, frozen=True, array_like=True, tag="unarrived"):
    """Rows of trajectories that ended without a frame."""

    at_s: float
    first_seq: int
    trajectory_ids: list[TrajectoryId]


class TrainedNote(msgspec.Struct, frozen=True, array_like=True, tag="trained"):
    """Rows are trained by the update made at (``lineage``, ``step``).

    ``lags``, ``spans``, ``ages_s``: of each row, in the order of ``runs``. ``is_use``: a use of its own, and not one
    that an earlier entry has.
    """

    lineage: str
    step: int
    at_s: float
    is_use: bool
    runs: Runs
    lags: list[int]
    spans: list[int]
    ages_s: list[float]


class DroppedNote(msgspec.Struct, frozen=True, array_like=True, tag="dropped"):
    """Rows ended without a gradient."""

    at_s: float
    reason: str
    detail: str
    runs: Runs


class RevivedNote(msgspec.Struct, frozen=True, array_like=True, tag="revived"):
    """Rows are available again: a restore lost the update that had trained them."""

    runs: Runs


class UnitsNote(msgspec.Struct, frozen=True, array_like=True, tag="units"):
    """A sampled batch was committed: how many units it used, and the digest of their list.

    ``max_lag``: the largest lag of its units; None in an entry of an older program.
    """

    batch_id: str
    lineage: str
    step: int
    num_units: int
    digest: bytes
    max_lag: int | None = None


class LineageNote(msgspec.Struct, frozen=True, array_like=True, tag="lineage"):
    """A lineage was opened."""

    name: str
    parent: str | None
    fork_step: int


class BudgetNote(msgspec.Struct, frozen=True, array_like=True, tag="budget"):
    """From ``from_step`` of a lineage on, updates are judged by ``max_lag`` (see ``budgets``); None: unknown."""

    lineage: str
    from_step: int
    max_lag: int | None


class FoldedCount(msgspec.Struct, frozen=True, array_like=True):
    """How many folded rows ended alike; ``lag``: of trained ones. ``num_accepted``: those that had a payload."""

    state: str
    reason: str
    lag: int
    num_rows: int
    num_accepted: int


class FoldedNote(msgspec.Struct, frozen=True, array_like=True, tag="folded"):
    """Everything that is left of the rows up to ``through_seq``, since the run began.

    ``through_frame``, ``through_segment``: the last frame of theirs, and its segment. ``through_entry``: the last entry
    that was removed, because only these rows are in it, with its ``entry_digest``; the next entry's link covers it.
    ``lineage``, ``step``: the checkpoint that no later restore goes behind. ``through_step``: the last update
    that one of them was trained by. ``tasks_digest``: of the table
    ``folded_tasks``. ``num_ids`` and ``ids_digest``: of the table ``folded_ids``, see ``next_id_digest``.
    ``lineages``: those that removed entries opened; ``budgets``: those that removed entries noted. ``over_budget``,
    ``unnoted``: uses whose lag was above their budget, and uses without one.
    """

    through_seq: int = 0
    through_frame: int = 0
    through_segment: int = 0
    through_entry: int = 0
    entry_digest: bytes = GENESIS
    lineage: str = ""
    step: int = 0
    through_step: int = -1
    counts: tuple[FoldedCount, ...] = ()
    max_lag: int = 0
    trained_twice: int = 0
    tasks_digest: bytes = b""
    num_ids: int = 0
    ids_digest: bytes = GENESIS
    lineages: tuple[LineageNote, ...] = ()
    budgets: tuple[BudgetNote, ...] = ()
    over_budget: int = 0
    unnoted: int = 0


Note = (
    ArrivedNote
    | UnarrivedNote
    | TrainedNote
    | DroppedNote
    | RevivedNote
    | UnitsNote
    | LineageNote
    | BudgetNote
    | FoldedNote
)


class Entry(msgspec.Struct, frozen=True):
    """One entry as it is stored."""

    number: int
    content: bytes
    digest: bytes

    def notes(self) -> list[Note]:
        """What its transaction did.

        Raises:
            msgspec.MsgspecError: the content was changed.
        """
        return _decode_notes(self.content)


_encode = msgspec.msgpack.Encoder().encode
_decode_notes = msgspec.msgpack.Decoder(list[Note]).decode


def begin(db: sqlite3.Connection) -> None:
    """Prepare a writer's connection."""
    db.execute(_NOTES_TABLE)


def note(db: sqlite3.Connection, what: Note) -> None:
    """Note what the open transaction writes."""
    db.execute("INSERT INTO chain_notes VALUES (?)", (_encode(what),))


def seal(db: sqlite3.Connection) -> None:
    """Append what the open transaction noted as one entry; nothing noted, nothing appended."""
    notes = db.execute("SELECT content FROM chain_notes ORDER BY rowid").fetchall()
    if not notes:
        return
    db.execute("DELETE FROM chain_notes")
    content = _encode([msgspec.Raw(each) for (each,) in notes])
    number, before = head_of(db)
    db.execute(
        "INSERT INTO chain VALUES (?, ?, ?)", (number + 1, content, link_of(before, number + 1, content))
    )


def head_of(db: sqlite3.Connection) -> tuple[int, bytes]:
    """Number and digest of the newest entry; (0, ``GENESIS``) before the first."""
    row = db.execute("SELECT number, digest FROM chain ORDER BY number DESC LIMIT 1").fetchone()
    return row or (0, GENESIS)


def next_id_digest(before: bytes, name: str) -> bytes:
    """The digest of folded ids that no task number says, one more of them: SHA-256 of the one before it and the id."""
    return hashlib.sha256(before + name.encode()).digest()


def entries(db: sqlite3.Connection) -> Iterator[Entry]:
    """All entries, oldest first."""
    for number, content, digest in db.execute("SELECT number, content, digest FROM chain ORDER BY number"):
        yield Entry(number, content, digest)


def link_of(before: bytes, number: int, content: bytes) -> bytes:
    """The digest of an entry: SHA-256 of the digest before it, its number (8 bytes, little-endian) and its content."""
    return hashlib.sha256(before + number.to_bytes(8, "little") + content).digest()


def frame_digest(frame: bytes, head: bytes) -> bytes:
    """What the ledger keeps of a frame: the digest of its provenance (16 bytes), then the frame's own (16 bytes)."""
    return provenance_digest(head) + written_digest(frame)


def provenance_digest(head: bytes) -> bytes:
    """The digest of a frame's provenance."""
    return hashlib.blake2b(head, digest_size=PROVENANCE_DIGEST_BYTES).digest()


def units_note(batch_id: str, version: PolicyVersion, units: bytes, *, max_lag: int) -> UnitsNote:
    """The note of a sampled batch; ``units``: their list as the ledger keeps it."""
    return UnitsNote(
        batch_id, version.lineage, version.step, num_units(units), digest_of_units(units), max_lag
    )


def digest_of_units(units: bytes) -> bytes:
    """The digest of a batch's list of units."""
    return hashlib.sha256(units).digest()


def runs_of(seqs: Iterable[int], *, rows_max: int | None = None) -> list[tuple[int, int]]:
    """Rows that follow each other, as their first and their number (at most ``rows_max``)."""
    runs: list[tuple[int, int]] = []
    for seq in seqs:
        if runs and seq == sum(runs[-1]) and (rows_max is None or runs[-1][1] < rows_max):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((seq, 1))
    return runs
