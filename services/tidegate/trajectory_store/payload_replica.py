"""Payloads in the replica: each frame of the segments on disk, so that what was accepted can still be trained.

A payload is pushed with the row of its frame, and removed with its segment.
"""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.runtime.replication.changes import ChangedRows
from tidegate.runtime.replication.replicated_files import sql
from tidegate.trajectory_store.segments import segment_path, segments_in

if TYPE_CHECKING:
    from psycopg import Connection

# Payloads of one statement; a larger one is alone.
BYTES_AT_ONCE = 16 << 20
ROWS_READ_AT_ONCE = 16
# PostgreSQL takes no value of a gigabyte. A larger payload is not replicated, and lost with its volume.
PAYLOAD_BYTES_MAX = 256 << 20


class PayloadReplica:
    """The segments of one store; used in the replica's thread."""

    def __init__(self, folder: Path, *, replay: Path) -> None:
        """``folder``: of the segments. ``replay``: of the pages of replay.

        They are not replicated, and those of an earlier owner do not fit the ledger that is filled.
        """
        self._folder = folder
        self._replay_folder = replay
        # When payloads were last removed. What a transaction that failed removed is removed with the next segment.
        self._segments: set[int] | None = None

    def create(self, db: "Connection[tuple[Any, ...]]", schema: str) -> None:
        """Make the table new."""
        db.execute(sql(f"DROP TABLE IF EXISTS {schema}.payloads"))
        db.execute(
            sql(
                f"CREATE TABLE {schema}.payloads (segment bigint NOT NULL, start bigint NOT NULL,"
                " payload bytea NOT NULL, PRIMARY KEY (segment, start))"
            )
        )
        # Compressed tensors do not get smaller, and trying takes the server's time.
        db.execute(sql(f"ALTER TABLE {schema}.payloads ALTER payload SET STORAGE EXTERNAL"))

    def push(self, db: "Connection[tuple[Any, ...]]", schema: str, changed: ChangedRows) -> None:
        """Send the payloads of new frames; a segment that was deleted meanwhile is not needed."""
        if changed.table.name != "frames":
            return
        places = [changed.table.columns.index(name) for name in ("segment", "offset", "size")]
        locations = sorted((row[places[0]], row[places[1]], row[places[2]]) for row in changed.rows)
        for portion in _portions(self._read(locations)):
            db.execute(
                sql(
                    f"INSERT INTO {schema}.payloads (segment, start, payload)"
                    " SELECT * FROM unnest(%b::bigint[], %b::bigint[], %b::bytea[]) ON CONFLICT DO NOTHING"
                ),
                [list(column) for column in zip(*portion, strict=True)],
            )

    def finish(self, db: "Connection[tuple[Any, ...]]", schema: str) -> None:
        """Remove the payloads of segments that are gone."""
        segments = segments_in(self._folder)
        if segments != self._segments:
            db.execute(sql(f"DELETE FROM {schema}.payloads WHERE segment <> ALL(%s)"), (sorted(segments),))
            self._segments = segments

    def fill(self, db: "Connection[tuple[Any, ...]]", schema: str) -> None:
        """Write the segments again.

        Raises:
            OSError: the disk is full or does not answer.
        """
        for left in (self._folder, self._replay_folder):
            shutil.rmtree(left, ignore_errors=True)
        self._folder.mkdir(parents=True)
        with db.transaction(), db.cursor("payloads", binary=True) as cursor:
            cursor.execute(
                sql(f"SELECT segment, start, payload FROM {schema}.payloads ORDER BY segment, start")
            )
            while portion := cursor.fetchmany(ROWS_READ_AT_ONCE):
                for segment, start, payload in portion:
                    path = segment_path(self._folder, segment)
                    with path.open("r+b" if path.exists() else "wb") as file:
                        file.seek(start)
                        file.write(payload)

    def _read(self, locations: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, int, bytes]]:
        for segment, start, size in locations:
            if size > PAYLOAD_BYTES_MAX:
                continue
            with suppress(FileNotFoundError):
                descriptor = os.open(segment_path(self._folder, segment), os.O_RDONLY | os.O_CLOEXEC)
                try:
                    payload = os.pread(descriptor, size, start)
                finally:
                    os.close(descriptor)
                if len(payload) == size:
                    yield segment, start, payload


def _portions(payloads: Iterable[tuple[int, int, bytes]]) -> Iterator[list[tuple[int, int, bytes]]]:
    """Together at most ``BYTES_AT_ONCE``, or one."""
    portion: list[tuple[int, int, bytes]] = []
    num_bytes = 0
    for each in payloads:
        if portion and num_bytes + len(each[2]) > BYTES_AT_ONCE:
            yield portion
            portion, num_bytes = [], 0
        portion.append(each)
        num_bytes += len(each[2])
    if portion:
        yield portion
