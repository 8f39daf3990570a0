"""The dataset of a run: problems as JSON lines, checked once and read by place.

A row is ``{"prompt_id": ..., "prompt": ..., "answer": ..., "bin": ...}``; the last two may be left out. Where a run has
several environments, ``env`` names the one of the row, and its bins are of no other. In memory is where each row begins
and its bin, not its text: 100,000 prompts take 3 MB with their curriculum, however long they are,
so that a million of them fit the service's memory goal of 80 MB.
"""

import os
import sys
from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, overload

import msgspec
import numpy as np

from tidegate.core.errors import ConfigError, CorruptionError
from tidegate.core.ids import PromptId
from tidegate.task_queue.state import Prompt
from tidegate.wire.subjects import KIB

TRAIN_FILE = "train.jsonl"
HELD_OUT_FILE = "heldout.jsonl"


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the file."""

    prompt_id: str
    prompt: str
    answer: str = ""
    bin: str = "all"
    env: str | msgspec.UnsetType = msgspec.UNSET


# A task message holds 256 KiB; half of it remains for the other fields of a task.
ROW_BYTES_MAX = 128 * KIB

DIGEST_BYTES = 8

_DECODER = msgspec.json.Decoder(Row)


class Dataset(Sequence[Prompt]):
    """The problems of one file, in file order. The file is held open and belongs to the run: it never changes."""

    def __init__(
        self, file: BinaryIO, name: str, starts: "array[int]", bins: list[str], env_of: dict[str, str]
    ) -> None:
        """``starts``: where each row begins, and the end of the file; use ``open_dataset``.

        ``env_of``: the environment of each bin; empty for a bin whose rows name none.
        """
        self._file = file
        self._name = name
        self._starts = starts
        self.bins = bins
        self.env_of = env_of

    def __len__(self) -> int:
        """How many problems there are."""
        return len(self.bins)

    @overload
    def __getitem__(self, index: int) -> Prompt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Prompt]: ...
    def __getitem__(self, index: int | slice) -> Prompt | list[Prompt]:
        """One problem, or several.

        Raises:
            CorruptionError: the file is not what it was at the start.
        """
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        position = range(len(self))[index]
        start, stop = self._starts[position], self._starts[position + 1]
        try:
            row = _DECODER.decode(os.pread(self._file.fileno(), stop - start, start))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CorruptionError(
                f"Dataset {self._name} changed while the run was using it",
                why=str(error),
                fix="put back the file that the run began with and start the task queue again",
            ) from error
        return Prompt(PromptId(row.prompt_id), row.prompt, row.answer, row.bin, _env(row))

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def open_dataset(path: Path) -> Dataset:
    """All problems of a JSONL file, checked; blank lines are skipped.

    Raises:
        ConfigError: the file is missing, empty or not UTF-8; a line is malformed or too long for a task; a
            prompt_id comes twice; or a bin is of two environments.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise ConfigError(
            f"Dataset {path.name} cannot be read",
            why=str(error),
            fix="`tidegate up` writes it into <run folder>/data before the services start",
        ) from error
    try:
        starts, ids, bins, env_of = array("Q"), array("Q"), list[str](), dict[str, str]()
        for number, start, row in _rows(file, path.name):
            starts.append(start)
            ids.append(short_digest(_identity(row)))
            # One text for all rows of a bin.
            bins.append(sys.intern(row.bin))
            _check_bin(row, env_of.setdefault(row.bin, _env(row)), number, path.name)
        # Up to the next row: blank lines in between are nothing to a decoder of JSON.
        starts.append(file.tell())
        _refuse(file, path.name, ids)
    except BaseException:
        file.close()
        raise
    return Dataset(file, path.name, starts, bins, env_of)


def _refuse(file: BinaryIO, name: str, ids: "array[int]") -> None:
    """Refuse a file without rows, or with two of one id."""
    if not ids:
        raise ConfigError(
            f"Dataset {name} is empty", fix="put at least one prompt into it, one JSON object a line"
        )
    in_order = np.frombuffer(ids, dtype=np.uint64)
    in_order.sort()
    # Different ids share a digest with a chance of one in millions; a second read decides.
    if np.any(in_order[1:] == in_order[:-1]):
        _refuse_repeated(file, name)


def _rows(file: BinaryIO, name: str) -> Iterator[tuple[int, int, Row]]:
    """Number, place and content of every row, from the beginning."""
    file.seek(0)
    start = 0
    number = 0
    # A line is read in bounded pieces, so that a file without line ends is refused instead of held.
    while line := file.readline(ROW_BYTES_MAX + 2):
        number += 1
        if len(line.rstrip(b"\r\n")) > ROW_BYTES_MAX:
            raise ConfigError(
                f"Line {number} of dataset {name} has more than {ROW_BYTES_MAX} bytes",
                why=f"a task travels as one message, so a row may have {ROW_BYTES_MAX}",
                fix="shorten the prompt",
            )
        if line.strip():
            yield number, start, _row(line, number, name)
        start += len(line)


def _row(line: bytes, number: int, name: str) -> Row:
    try:
        row = _DECODER.decode(line)
    except UnicodeDecodeError as error:
        raise ConfigError(f"Line {number} of dataset {name} is not UTF-8", why=str(error)) from error
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"Line {number} of dataset {name} is malformed",
            why=str(error),
            fix='a row is {"prompt_id": "...", "prompt": "...", "answer": "...", "bin": "..."}',
        ) from error
    if not row.prompt_id:
        raise _bad_id(number, name, row.prompt_id, "it is empty")
    return row


def _env(row: Row) -> str:
    return row.env if isinstance(row.env, str) else ""


def _check_bin(row: Row, env: str, number: int, name: str) -> None:
    """``env``: of the bin so far."""
    if env != _env(row):
        raise ConfigError(
            f"Line {number} of dataset {name} has the bin {row.bin!r} in {_env(row)!r}",
            why=f"lines before it have the bin in {env!r}, and a bin is of one environment",
            fix="give the bins of each environment names of their own",
        )


def _identity(row: Row) -> str:
    """What no other row has: an environment knows nothing of the ids of others."""
    return f"{_env(row)}\0{row.prompt_id}" if _env(row) else row.prompt_id


def short_digest(text: str) -> int:
    """A number of 64 bits that a text has wherever and whenever it is read."""
    return int.from_bytes(blake2b(text.encode(), digest_size=DIGEST_BYTES).digest(), "little")


def _refuse_repeated(file: BinaryIO, name: str) -> None:
    """Find the id that comes twice, if one does."""
    first: dict[str, int] = {}
    for number, _, row in _rows(file, name):
        if (earlier := first.setdefault(_identity(row), number)) != number:
            raise _bad_id(number, name, row.prompt_id, f"line {earlier} has it too")


def _bad_id(number: int, name: str, prompt_id: str, why: str) -> ConfigError:
    return ConfigError(
        f"Line {number} of dataset {name} has the prompt_id {prompt_id!r}",
        why=why,
        fix="give every prompt an id of its own: the audit and the curriculum distinguish prompts by it",
    )
