"""The rows of several environments as the one dataset that the services of a run read.

Each environment's own rows are in a folder of its own below it. In the joint files a row names its environment, and its
bin is ``name/bin``. Training rows follow each other by environment, as the queue draws by weights; held-out rows and
demonstrations take turns, so that the first of them are of all environments alike. An environment of weight 0 has
held-out rows alone.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path

import msgspec

from tidegate.learner.warmup_settings import DEMONSTRATIONS_FILE
from tidegate.runtime.files import replacing
from tidegate.runtime.prompt_sources import bin_in_run
from tidegate.task_queue.dataset import HELD_OUT_FILE, TRAIN_FILE, Row

PARTS = "environments"

_DECODER = msgspec.json.Decoder(Row)
_encode = msgspec.json.Encoder().encode


def folder_of(folder: Path, number: int) -> Path:
    """Where the rows of the environment with this number are; a name may be no name of a folder."""
    return folder / PARTS / str(number)


def join_rows(folder: Path, weights: Mapping[str, float], *, demonstrations_max: int) -> None:
    """Write the joint files that are not there yet.

    ``weights``: of each environment by its name, in the order of their folders. ``demonstrations_max``: of all of them
    together, which have the shares of the weights.
    """
    places = {name: folder_of(folder, number) for number, name in enumerate(weights)}
    total = sum(weights.values())
    shown = [
        islice(_lines(place / DEMONSTRATIONS_FILE), math.ceil(demonstrations_max * weights[name] / total))
        for name, place in places.items()
    ]
    _write(folder / DEMONSTRATIONS_FILE, _in_turn(shown))
    held_out = {name: place / HELD_OUT_FILE for name, place in places.items()}
    if any(path.exists() for path in held_out.values()):
        _write(folder / HELD_OUT_FILE, _in_turn([_rows(path, name) for name, path in held_out.items()]))
    trained = [_rows(place / TRAIN_FILE, name) for name, place in places.items() if weights[name]]
    # Last: its presence means that the others are complete.
    _write(folder / TRAIN_FILE, chain.from_iterable(trained))


def _rows(path: Path, name: str) -> Iterator[bytes]:
    """The rows of one environment, as the run has them."""
    for line in _lines(path):
        row = _DECODER.decode(line)
        yield _encode(msgspec.structs.replace(row, bin=bin_in_run(name, row.bin), env=name)) + b"\n"


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a file; none where there is no file."""
    if path.exists():
        with path.open("rb") as lines:
            yield from (line for line in lines if line.strip())


def _in_turn(sources: Sequence[Iterator[bytes]]) -> Iterator[bytes]:
    """One of each source after the other, without those that have ended."""
    left = list(sources)
    while left:
        found = [next(source, b"") for source in left]
        yield from filter(None, found)
        left = [source for source, line in zip(left, found, strict=True) if line]


def _write(path: Path, lines: Iterable[bytes]) -> None:
    """A file as a whole or not at all; one that exists stays."""
    if not path.exists():
        with replacing(path) as file:
            file.writelines(lines)
