"""Verifying a ledger against its hash chain: what was changed, lost or invented since it was written, by name.

Works on the file of a live or a stopped run, beside the writer.
"""

import os
import sqlite3
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from tidegate.core.errors import RecordError
from tidegate.core.verification import Finding, FindingKind, Verification
from tidegate.runtime.files import LOST_ERRNOS
from tidegate.trajectory_store import hash_chain
from tidegate.trajectory_store.chain_state import DROPPED, TRAINED, WAITING, ChainState, ExpectedFrame
from tidegate.trajectory_store.folded_ids import digest_of_tasks, load_ids, read_folded
from tidegate.trajectory_store.hash_chain import PROVENANCE_DIGEST_BYTES, FoldedNote, TrainedNote
from tidegate.trajectory_store.replay.accounting import units_of_ledger
from tidegate.trajectory_store.rows import (
    ARRIVED_COLUMNS,
    Arrival,
    ArrivedColumns,
    NewTrajectoryRow,
    never_arrived,
)
from tidegate.trajectory_store.schema import reading
from tidegate.trajectory_store.segments import segment_path
from tidegate.trajectory_store.state import Location
from tidegate.wire.frame import columns_of_provenance, verify_frame, written_digest

# Findings beyond these are counted and not kept.
FINDINGS_MAX = 1_000
STATES = {WAITING: ("available", "leased"), TRAINED: ("trained",), DROPPED: ("dropped",)}
_FINAL_COLUMNS = (
    "state",
    "reason",
    "detail",
    "trained_lineage",
    "trained_step",
    "lag",
    "span",
    "age_s",
    "terminal_at_s",
    "num_revivals",
)
_STATIC_COLUMNS = tuple(dict.fromkeys((*ARRIVED_COLUMNS, *NewTrajectoryRow._fields)))
_COLUMNS = tuple(dict.fromkeys((*_STATIC_COLUMNS, *_FINAL_COLUMNS)))
_FRAME_COLUMNS = "segment, offset, size, received_at_s, head, digest"

Row = Mapping[str, Any]


def verify(path: Path, *, head: str = "") -> Verification:
    """Verify the ledger at ``path`` and the payloads beside it.

    ``head``: the digest of an entry, or its first digits, noted earlier and elsewhere; the chain must contain it.

    Raises:
        NotFoundError: there is no such ledger.
        StaleFolderError: another version of the schema wrote it.
        CorruptionError: the file cannot be read.
    """
    with reading(path) as db:
        return _Verifier(db, path.parent / "segments").verify(head.lower())


def read_head(path: Path) -> str:
    """The newest digest of the chain of the ledger at ``path``, in hexadecimal digits; nothing is verified.

    Raises:
        NotFoundError, StaleFolderError, CorruptionError: as ``verify``.
    """
    with reading(path) as db:
        return hash_chain.head_of(db)[1].hex()


class _Verifier:
    """One verification of one file."""

    def __init__(self, db: sqlite3.Connection, segments: Path) -> None:
        self._db = db
        self._segments = segments
        self._findings: list[Finding] = []
        self._num_findings = 0
        self._num_rows = 0
        self._num_payloads = 0
        self._open_segment: tuple[int, int | None] = (-1, None)
        (num_rows,) = db.execute("SELECT coalesce(max(seq), 0) FROM trajectories").fetchone()
        self._folded = self._read_folded()
        through_seq = self._folded.through_seq
        self._expected = ChainState(num_rows=max(0, num_rows - through_seq), through_seq=through_seq)
        # With replay, tensors lie in rings that are written again, and pages have checksums of their own.
        self._has_segments = units_of_ledger(db) is None

    def verify(self, head: str) -> Verification:
        """All of it, in the order in which it was written."""
        digests = self._verify_chain()
        if head and not any(digest.startswith(head) for digest in digests):
            self._find("changed", "the chain", f"no entry has the digest {head}: it was written again")
        self._verify_folded()
        try:
            for frame in self._expected.frames:
                self._verify_frame(frame)
        finally:
            self._close_segment()
        for seq, trajectory_id, at_s in self._expected.unarrived:
            row = never_arrived(seq, trajectory_id, state="", now_s=at_s)._asdict()
            self._verify_row(seq, row, name=trajectory_id)
        self._find_invented()
        self._verify_uses()
        self._verify_units()
        self._verify_lineages()
        self._verify_budgets()
        return Verification(
            num_entries=len(digests),
            num_rows=self._num_rows,
            num_payloads=self._num_payloads,
            head=digests[-1] if digests else hash_chain.GENESIS.hex(),
            findings=self._findings,
            num_findings=self._num_findings,
            num_folded=self._folded.through_seq,
        )

    def _find(self, kind: FindingKind, what: str, why: str) -> None:
        self._num_findings += 1
        if len(self._findings) < FINDINGS_MAX:
            self._findings.append(Finding(kind, what, why))

    def _verify_chain(self) -> list[str]:
        """Every link; returns the digests as they are stored, each of which the next link is held against."""
        digests: list[str] = []
        before, first = self._folded.entry_digest, self._folded.through_entry + 1
        for lineage in self._folded.lineages:
            self._expected.lineages[lineage.name] = lineage
        for budget in self._folded.budgets:
            self._expected.budgets[budget.lineage, budget.from_step] = budget.max_lag
        for entry in hash_chain.entries(self._db):
            what = f"entry {entry.number} of the chain"
            missing = entry.number - first - len(digests)
            if missing:
                self._find("lost", f"{missing} entries before {what}", "their numbers are missing")
                digests += [""] * missing
            elif entry.digest != hash_chain.link_of(before, entry.number, entry.content):
                self._find("changed", what, "its digest is not that of its content after the entry before")
            try:
                self._expected.apply(entry)
            except (RecordError, msgspec.MsgspecError, UnicodeDecodeError) as error:
                self._find("changed", what, f"its content cannot be read: {error}")
            before = entry.digest
            digests.append(entry.digest.hex())
        return digests

    # -- what was folded -------------------------------------------------------------------------------------------

    def _read_folded(self) -> FoldedNote:
        try:
            return read_folded(self._db)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._find("changed", "the folded rows", f"what is left of them cannot be read: {error}")
            return FoldedNote()

    def _verify_folded(self) -> None:
        """What is left of folded rows, against the newest entry that folded some."""
        expected = self._expected.folded
        if expected is None:
            if self._folded.through_seq:
                self._find("invented", "the folded rows", "no entry folded any")
            return
        for name in FoldedNote.__struct_fields__:
            if getattr(self._folded, name) != getattr(expected, name):
                what = f"{name} of the folded rows"
                self._find("changed", what, f"the entry that folded them says {getattr(expected, name)!r}")
        if digest_of_tasks(load_ids(self._db)) != expected.tasks_digest:
            self._find("changed", "the tasks of folded rows", "they are not those that were folded")
        num_ids, digest = 0, hash_chain.GENESIS
        for (name,) in self._db.execute("SELECT trajectory_id FROM folded_ids ORDER BY number"):
            num_ids, digest = num_ids + 1, hash_chain.next_id_digest(digest, name)
        if (num_ids, digest) != (expected.num_ids, expected.ids_digest):
            self._find("changed", "the ids of folded rows", "they are not those that were folded")

    # -- rows and payloads -----------------------------------------------------------------------------------------

    def _verify_frame(self, frame: ExpectedFrame) -> None:
        """A frame's provenance and payload, and its rows, which say what the provenance says."""
        found = self._db.execute(
            f"SELECT {_FRAME_COLUMNS} FROM frames WHERE frame_id = ?", (frame.frame_id,)
        ).fetchone()
        if found is None:
            self._find("lost", f"frame {frame.frame_id}", f"it brought {self._names(frame)}")
            return
        segment, offset, size, received_at_s, head, digest = found
        if digest != frame.digest or hash_chain.provenance_digest(head) != digest[:PROVENANCE_DIGEST_BYTES]:
            self._find(
                "changed", f"frame {frame.frame_id} of {self._names(frame)}", "its provenance is another one"
            )
            return
        self._verify_payload(frame, Location(segment, offset, size))
        columns = columns_of_provenance(head)
        indexes = range(len(columns)) if frame.indexes is None else frame.indexes
        arrival = Arrival(
            location=Location(segment, offset, size),
            head=head,
            digest=digest,
            columns=columns if frame.indexes is None else columns.only(frame.indexes),
            frame_indexes=indexes,
            received_at_s=received_at_s,
        )
        arrived = ArrivedColumns([arrival], first_seq=frame.first_seq, first_frame=frame.frame_id)
        for seq, row in enumerate(arrived.rows(now_s=frame.at_s), start=frame.first_seq):
            expected: dict[str, Any] = dict(zip(ARRIVED_COLUMNS, row, strict=True))
            self._verify_row(seq, expected, name=expected["trajectory_id"])

    def _names(self, frame: ExpectedFrame) -> str:
        rows = self._db.execute(
            "SELECT trajectory_id FROM trajectories WHERE seq >= ? AND seq < ? LIMIT 3",
            (frame.first_seq, frame.first_seq + frame.num_rows),
        )
        return ", ".join(name for (name,) in rows) or f"row {frame.first_seq}"

    def _verify_payload(self, frame: ExpectedFrame, location: Location) -> None:
        """The frame's bytes, where their segment is still on disk."""
        descriptor = self._segment(location.segment) if self._has_segments else None
        if descriptor is None:
            return
        self._num_payloads += 1
        is_same, why = False, "has other bytes"
        try:
            payload = os.pread(descriptor, location.size, location.offset)
            verify_frame(payload)
            is_same = written_digest(payload) == frame.digest[PROVENANCE_DIGEST_BYTES:]
        except OSError as error:
            if error.errno not in LOST_ERRNOS:
                raise
            why = f"cannot be read ({error.strerror})"
        except RecordError:
            pass
        if not is_same:
            what = f"payload of frame {frame.frame_id} of {self._names(frame)}"
            self._find("changed", what, f"segment {location.segment} {why} at {location.offset}")

    def _segment(self, segment: int) -> int | None:
        if self._open_segment[0] != segment:
            self._close_segment()
            try:
                descriptor = os.open(segment_path(self._segments, segment), os.O_RDONLY)
            except FileNotFoundError:  # the live store removes those that it needs no more
                descriptor = None
            self._open_segment = (segment, descriptor)
        return self._open_segment[1]

    def _close_segment(self) -> None:
        if self._open_segment[1] is not None:
            os.close(self._open_segment[1])
        self._open_segment = (-1, None)

    def _verify_row(self, seq: int, static: Row, *, name: str) -> None:
        """One row against its provenance and the entry that it was changed by last."""
        columns = self._db.execute(
            f"SELECT {', '.join(_COLUMNS)} FROM trajectories WHERE seq = ?", (seq,)
        ).fetchone()
        if columns is None:
            self._find("lost", name, f"the ledger has no row {seq}, which entry {self._entry(seq)} wrote")
            return
        self._num_rows += 1
        stored = dict(zip(_COLUMNS, columns, strict=True))
        expected = {**static, **self._final_values(seq)}
        wrong = [
            column
            for column, value in expected.items()
            if stored[column] != value and not (column == "state" and stored[column] in value)
        ]
        if wrong:
            entry = self._entry(seq)
            self._find("changed", name, f"{', '.join(wrong)} of row {seq} are not what entry {entry} wrote")

    def _entry(self, seq: int) -> int:
        return int(self._expected.row(seq)["entry"])

    def _final_values(self, seq: int) -> dict[str, Any]:
        """The columns that change after the arrival; of ``state`` the values that are right."""
        row = self._expected.row(seq)
        values: dict[str, Any] = dict.fromkeys(_FINAL_COLUMNS)
        values |= {"state": STATES[int(row["state"])], "reason": "", "detail": ""}
        values["num_revivals"] = int(row["num_revivals"])
        if row["state"] == WAITING:
            return values
        note, place = self._expected.notes[int(row["note"])], int(row["place"])
        if isinstance(note, TrainedNote):
            values |= {"trained_lineage": note.lineage, "trained_step": note.step}
            values |= {"lag": note.lags[place], "span": note.spans[place], "age_s": note.ages_s[place]}
        elif note is not None:
            values |= {"reason": note.reason, "detail": note.detail}
        values["terminal_at_s"] = None if note is None else note.at_s
        return values

    def _find_invented(self) -> None:
        for seq, name in self._db.execute("SELECT seq, trajectory_id FROM trajectories ORDER BY seq"):
            if not self._expected.knows(seq):
                self._num_rows += 1
                is_folded = seq <= self._folded.through_seq
                why = f"row {seq} was folded" if is_folded else f"no entry wrote row {seq}"
                self._find("invented", name, why)
        frames = {frame.frame_id for frame in self._expected.frames}
        for (frame_id,) in self._db.execute("SELECT frame_id FROM frames ORDER BY frame_id"):
            if frame_id not in frames:
                self._find("invented", f"frame {frame_id}", "no entry wrote it")

    # -- updates ---------------------------------------------------------------------------------------------------

    def _verify_uses(self) -> None:
        rows = self._db.execute(
            "SELECT lineage, step, seq, lag, span, age_s FROM uses ORDER BY lineage, step, seq"
        )
        noted = {update: uses.by_row() for update, uses in self._expected.uses.items()}
        for update, uses in groupby(rows, key=lambda row: (row[0], row[1])):
            stored = {seq: (lag, span, age_s) for _, _, seq, lag, span, age_s in uses}
            self._compare_uses(update, noted=noted.pop(update, {}), stored=stored)
        for update, expected in noted.items():
            self._compare_uses(update, noted=expected, stored={})

    def _compare_uses(
        self, update: tuple[str, int], *, noted: Mapping[int, object], stored: Mapping[int, object]
    ) -> None:
        for seq in sorted(noted.keys() | stored.keys()):
            if seq <= self._folded.through_seq and seq not in stored:
                continue  # folded with its row
            what = f"use of row {seq} by update {update[0]}@{update[1]}"
            if seq not in stored:
                self._find("lost", what, "the ledger has none")
            elif seq not in noted or seq <= self._folded.through_seq:
                self._find("invented", what, "no entry has it")
            elif noted[seq] != stored[seq]:
                self._find("changed", what, "its lag, span and age are not those of its entry")

    def _verify_units(self) -> None:
        """Of sampled batches; once their units are folded into counts, only their number."""
        known = dict(self._expected.units)
        for batch_id, num_samples, units, max_lag in self._db.execute(
            "SELECT batch_id, num_samples, units, max_lag FROM batches WHERE state = 'committed' AND num_samples > 0"
        ):
            note = known.pop(batch_id, None)
            what = f"batch {batch_id}"
            if note is None:
                self._find("invented", what, f"it used {num_samples} units, and no entry has it")
            elif note.num_units != num_samples:
                self._find(
                    "changed", what, f"it used {note.num_units} units, and the ledger says {num_samples}"
                )
            elif units is not None and note.digest != hash_chain.digest_of_units(units):
                self._find("changed", what, "its list of units is not the one that was committed")
            elif note.max_lag is not None and note.max_lag != max_lag:
                self._find("changed", what, f"its units had a lag of {note.max_lag}, not of {max_lag}")
        for batch_id in known:
            self._find("lost", f"batch {batch_id}", "its units were committed, and the ledger has none")

    def _verify_lineages(self) -> None:
        stored = {
            name: (parent, fork_step)
            for name, parent, fork_step in self._db.execute("SELECT name, parent, fork_step FROM lineages")
        }
        noted: dict[str, Sequence[object]] = {
            name: (note.parent, note.fork_step) for name, note in self._expected.lineages.items()
        }
        for name in sorted(noted.keys() | stored.keys()):
            if name not in stored:
                self._find("lost", f"lineage {name}", "an entry opened it")
            elif name not in noted:
                self._find("invented", f"lineage {name}", "no entry opened it")
            elif noted[name] != stored[name]:
                self._find("changed", f"lineage {name}", "it does not fork where its entry says")

    def _verify_budgets(self) -> None:
        """What the audit judges lags by."""
        table = self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'budgets'").fetchone()
        rows = self._db.execute("SELECT lineage, from_step, max_lag FROM budgets") if table else ()
        stored: dict[tuple[str, int], int | None] = {
            (lineage, step): max_lag for lineage, step, max_lag in rows
        }
        noted = self._expected.budgets
        for lineage, step in sorted(noted.keys() | stored.keys()):
            what, key = f"budget from {lineage}@{step} on", (lineage, step)
            if key not in stored:
                self._find("lost", what, f"an entry says max_lag {noted[key]}")
            elif key not in noted:
                self._find("invented", what, "no entry noted it")
            elif noted[key] != stored[key]:
                self._find("changed", what, f"its entry says max_lag {noted[key]}")
