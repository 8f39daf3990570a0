"""What of the replay buffer is on disk, and what a restart finds there.

| what | written | survives ``kill -9`` | survives a power cut |
|---|---|---|---|
| a page: rings, blocks, header | before the ledger names it | yes | with ``durability: power_loss`` |
| first use, every later use | the ledger's transaction | yes | as the ledger |
| priorities | when they arrive, into their ring | yes | those of the last flush; others as older or first ones |

A page's header is written last, with a digest of the page and one of itself. A restart keeps the pages that the ledger
knows and whose digests fit. Any other is torn: a crash cut its write, so it was never acknowledged and its message
comes again; or a power cut took part of it, and its trajectory is dropped as failed if nothing had used it yet.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest, xxh3_128

from tidegate.core.errors import CorruptionError, StaleFolderError
from tidegate.runtime.files import replace_file
from tidegate.trajectory_store.replay.blocks import BlockFiles, BlockPlace, FrameBlocks, parse_blocks
from tidegate.trajectory_store.replay.columns import Columns, Ring
from tidegate.trajectory_store.replay.page_layout import PageLayout

LAYOUT_FILE = "layout.json"
HEADERS_FILE = "headers.ring"
FORMAT = 1
_HEADER = np.dtype(
    [
        ("seq", "<i8"),
        ("identity", "<u8"),
        ("stream", "<u8"),
        ("position", "<i8"),
        ("arrival", "<i8"),
        ("block_file", "<i8"),
        ("block_offset", "<i8"),
        ("block_size", "<i8"),
        ("digest", "V16"),
        ("check", "<u8"),
    ]
)
_CHECKED_BYTES = _HEADER.itemsize - 8


class PageHeader(msgspec.Struct, frozen=True):
    """What a page's header says beside its digests.

    ``seq``: the trajectory's place in the ledger, ``identity`` a hash of its id. ``stream``: a hash of the environments
    that made it (0 for unknown ones), and ``position`` its number among their segments (``core.records``). ``arrival``:
    steps that had been inserted when it came.
    """

    seq: int
    identity: int
    stream: int
    position: int
    arrival: int
    blocks: BlockPlace | None


class StoredLayout(msgspec.Struct, frozen=True):
    """The file that says how to read the others."""

    format: int
    num_slots: int
    layout: PageLayout


class FoundPage(msgspec.Struct, frozen=True, eq=False):
    """An intact page and its slot."""

    slot: int
    header: PageHeader
    images: tuple[FrameBlocks, ...]


def hash_of(name: str) -> int:
    """The hash of an id in headers; 0 for none."""
    return xxh3_64_intdigest(name.encode()) if name else 0


def read_layout(folder: Path) -> StoredLayout | None:
    """How the folder's files are laid out; None before the first segment.

    Raises:
        CorruptionError: the file cannot be read.
        StaleFolderError: another version wrote it.
    """
    try:
        stored = msgspec.json.decode((folder / LAYOUT_FILE).read_bytes(), type=StoredLayout)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptionError(
            f"{folder / LAYOUT_FILE} cannot be read",
            why=str(error),
            fix="remove the folder: its trajectories are dropped as failed, and the run continues",
        ) from error
    if stored.format != FORMAT:
        raise StaleFolderError(
            f"The replay buffer in {folder} has format {stored.format}, this program reads format {FORMAT}",
            fix="finish the run with the version of Tidegate that began it, or start a new run",
        )
    return stored


def write_layout(folder: Path, stored: StoredLayout, *, durable: bool) -> None:
    """Write how the files are laid out, before the first page; durable against a power cut where that is wanted.

    Raises:
        OSError: the disk refused.
    """
    replace_file(folder / LAYOUT_FILE, msgspec.json.encode(stored), durable=durable)


class PageHeaders:
    """The headers of all slots."""

    def __init__(self, folder: Path, *, num_slots: int) -> None:
        """Open them in ``folder``, or create them."""
        self._ring = Ring(folder / HEADERS_FILE, (num_slots,), _HEADER)

    def write(self, slot: int, header: PageHeader, *, columns: Columns, blocks: memoryview) -> None:
        """A page is whole in ``columns`` and its blocks: say so."""
        place = header.blocks or BlockPlace(0, 0, 0)
        row = np.zeros((), _HEADER)
        row["seq"], row["identity"], row["arrival"] = header.seq, header.identity, header.arrival
        row["stream"], row["position"] = header.stream, header.position
        row["block_file"], row["block_offset"], row["block_size"] = place.file, place.offset, place.size
        row["digest"] = _digest(columns, slot, blocks)
        row["check"] = xxh3_64_intdigest(row.tobytes()[:_CHECKED_BYTES])
        self._ring.values[slot] = row

    def clear(self, slot: int) -> None:
        """A slot's page is evicted."""
        self._ring.values[slot] = np.zeros((), _HEADER)

    def flush(self) -> None:
        """Make the headers durable against a power cut."""
        self._ring.flush()

    def seqs(self) -> list[int]:
        """The trajectories that headers name, torn ones too."""
        headers: NDArray[Any] = self._ring.values
        return headers["seq"][headers["seq"] > 0].tolist()

    def recover(
        self, columns: Columns, blocks: BlockFiles, *, num_images: int, known: Mapping[int, int]
    ) -> tuple[list[FoundPage], int]:
        """The intact pages in order of arrival, and how many were torn.

        ``known``: the ledger's trajectories that may be resident, ``identity`` by ``seq``. Every page is read once.
        """
        found: list[FoundPage] = []
        num_torn = 0
        headers: NDArray[Any] = self._ring.values
        for slot in np.flatnonzero(headers["seq"]).tolist():
            page = _intact(headers[slot], slot, columns, blocks, num_images=num_images)
            num_torn += page is None
            # A page that the ledger does not know was never acknowledged; one that it dropped was being evicted.
            if page is None or known.get(page.header.seq) != page.header.identity:
                self.clear(slot)
                continue
            if page.header.blocks is not None:
                blocks.keep(page.header.blocks)
            found.append(page)
        blocks.delete_unused()
        return sorted(found, key=lambda page: page.header.seq), num_torn


def _intact(
    row: Any, slot: int, columns: Columns, blocks: BlockFiles, *, num_images: int
) -> FoundPage | None:
    if int(row["check"]) != xxh3_64_intdigest(row.tobytes()[:_CHECKED_BYTES]):
        return None
    place = BlockPlace(int(row["block_file"]), int(row["block_offset"]), int(row["block_size"]))
    try:
        data = (
            blocks.read(place.file, place.offset, place.offset + place.size)
            if place.size
            else memoryview(b"")
        )
        if _digest(columns, slot, data) != row["digest"].tobytes():
            return None
        images = parse_blocks(data, place, num_images=num_images)
    except CorruptionError:
        return None
    header = PageHeader(
        seq=int(row["seq"]),
        identity=int(row["identity"]),
        stream=int(row["stream"]),
        position=int(row["position"]),
        arrival=int(row["arrival"]),
        blocks=place if place.size else None,
    )
    return FoundPage(slot=slot, header=header, images=images)


def _digest(columns: Columns, slot: int, blocks: memoryview) -> bytes:
    hasher = xxh3_128(columns.digest(slot))
    hasher.update(blocks)
    return hasher.digest()
