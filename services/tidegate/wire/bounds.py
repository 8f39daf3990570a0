"""The bounds of what comes over the wire: ids, names, versions, lineages, shapes, counts, times and magnitudes.

Every servicer and every reader of a stream checks by these functions, before a loop over what they bound, so that no
message costs more than its bytes. A bound is far above what a run of any size needs; a comment says what it protects.
"""

import math
import re
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from tidegate.core.errors import RecordError
from tidegate.core.records import Array

# Ids are keys of files and streams: letters, digits and a few marks, none of which a subject or a path gives a meaning.
ID_CHARS_MAX = 128
# Compiled, for a column of ids: a truth value for each, without a call in Python.
match_id = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@#+-]{0,127}").fullmatch
# A lineage names files of weights and checkpoints.
match_lineage = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}").fullmatch
_LINEAGE_RULE = "lineages have 1 to 64 letters, digits, dashes and underscores"
# Or empty: no trace.
match_trace_parent = re.compile(r"(?:[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})?").fullmatch
# Names of tensors, environments and people; details of drops.
NAME_CHARS_MAX = 256
DETAIL_CHARS_MAX = 4096
# Of a task, for keyed BLAKE3 (``wire.task_proof``).
KEY_BYTES = 32
# Steps are added and subtracted in 64 bits, by the ledger and in messages.
STEP_MAX = 2**53
# One entry a learner restart. A tree travels whole with each announcement.
LINEAGES_MAX = 4096
TENSORS_MAX = 65_536
TENSOR_RANK_MAX = 8
# Elements, and bytes, of one tensor or payload: 4 TiB.
SIZE_MAX = 2**42
INT32_MAX = 2**31 - 1
SEED_MAX = 2**63 - 1
# Samples of one prompt, steps of one segment.
GROUP_SIZE_MAX = 65_536
UNROLL_MAX = 1_000_000
TEMPERATURE_MAX = 1e6
# Trajectories of one update, and ids in one call.
BATCH_MAX = 1_000_000
IDS_MAX = 16_384
# Seconds since 1970, until the year 5138: their nanoseconds are exported.
TIME_S_MAX = 1e11
# What a learner computes with. Rewards of this size make returns of 1e15 over a thousand steps, whose squares a batch
# of a million adds up to 1e36: float32 ends at 3.4e38.
MAGNITUDE_MAX = 1e12
# Above it a dot product may start threads.
DOT_SIZE_MAX = 8192
# By dtype, to compare with: float16 ends at 65504 and so holds nothing that is too large, but infinity.
_MAGNITUDE_LIMITS: dict[str, np.floating[Any]] = {
    "f2": np.float16(np.inf),
    "f4": np.float32(MAGNITUDE_MAX),
    "f8": np.float64(MAGNITUDE_MAX),
}


class LineageFields(Protocol):
    """A lineage as a message; no parent is the empty string."""

    @property
    def name(self) -> str:
        """Its own name."""
        ...

    @property
    def parent(self) -> str:
        """The lineage that it forked from."""
        ...

    @property
    def fork_step(self) -> int:
        """The step of the parent that it forked at."""
        ...


class VersionFields(Protocol):
    """A policy version as a message."""

    @property
    def lineage(self) -> str:
        """The lineage's name."""
        ...

    @property
    def step(self) -> int:
        """The step in it."""
        ...


def shown(text: str) -> str:
    """A text of a stranger as an error shows it: quoted, cut at 64 characters."""
    return repr(text if len(text) <= 64 else f"{text[:64]}…")


def is_id(text: str) -> bool:
    """Whether a text may be the id of a task, trajectory, group or batch."""
    return match_id(text) is not None


def check_id(text: str, what: str) -> None:
    """Refuse what cannot be an id.

    Raises:
        RecordError: it is empty, too long, or has other characters.
    """
    if not is_id(text):
        raise RecordError(
            f"{what} {shown(text)} is no id",
            why=f"ids have 1 to {ID_CHARS_MAX} letters, digits and marks of . _ : @ # + -, and begin with no mark",
        )


def check_token(text: str, what: str) -> None:
    """Refuse what cannot be an id and a token of a subject, which a dot would divide.

    Raises:
        RecordError: as ``check_id``, or it has a dot.
    """
    check_id(text, what)
    if "." in text:
        raise RecordError(f"{what} {shown(text)} has a dot in its id")


def check_name(text: str, what: str, *, chars_max: int = NAME_CHARS_MAX) -> None:
    """Refuse a free text that is too long for its purpose.

    Raises:
        RecordError: it is longer than ``chars_max``.
    """
    if len(text) > chars_max:
        raise RecordError(f"{what} has {len(text)} characters", fix=f"send at most {chars_max}")


def check_count(count: int, what: str, *, max_count: int) -> None:
    """Refuse a list before it is read.

    Raises:
        RecordError: it has more than ``max_count`` entries.
    """
    if count > max_count:
        raise RecordError(f"{count} {what} came at once", fix=f"send at most {max_count}")


def check_number(value: float, what: str, *, least: float, most: float) -> None:
    """Refuse a number out of its range, NaN included.

    Raises:
        RecordError: it is not between ``least`` and ``most``.
    """
    if not least <= value <= most:
        raise RecordError(f"{what} is {value}", why=f"it must be between {least:g} and {most:g}")


def is_lineage(text: str) -> bool:
    """Whether a text may name a lineage."""
    return match_lineage(text) is not None


def check_version(version: VersionFields, what: str) -> None:
    """Refuse a version that no learner can publish.

    Raises:
        RecordError: its lineage is no name, or its step is out of range.
    """
    if not is_lineage(version.lineage):
        raise RecordError(f"{what} has the lineage {shown(version.lineage)}", why=_LINEAGE_RULE)
    check_number(version.step, f"The step of {what}", least=0, most=STEP_MAX)


def check_lineage(lineage: LineageFields) -> None:
    """Refuse a lineage that no learner can open.

    Raises:
        RecordError: a name is none, it is its own parent, or its step is out of range.
    """
    for text in (lineage.name, lineage.parent) if lineage.parent else (lineage.name,):
        if not is_lineage(text):
            raise RecordError(f"A lineage is called {shown(text)}", why=_LINEAGE_RULE)
    if lineage.name == lineage.parent:
        raise RecordError(f"Lineage {lineage.name} names itself as its parent")
    check_number(lineage.fork_step, f"The fork step of lineage {lineage.name}", least=0, most=STEP_MAX)


def check_lineages(lineages: Sequence[LineageFields]) -> None:
    """Refuse a tree that is too large, before it is read, or has an impossible lineage.

    Raises:
        RecordError: as ``check_lineage``, or there are too many.
    """
    check_count(len(lineages), "lineages", max_count=LINEAGES_MAX)
    for lineage in lineages:
        check_lineage(lineage)


def check_shape(shape: Sequence[int], what: str) -> None:
    """Refuse a shape whose product no tensor has, before it is multiplied.

    Raises:
        RecordError: it has too many dimensions, or one out of range.
    """
    if len(shape) > TENSOR_RANK_MAX:
        raise RecordError(f"{what} has {len(shape)} dimensions", fix=f"send at most {TENSOR_RANK_MAX}")
    for length in shape:
        check_number(length, f"A dimension of {what}", least=0, most=SIZE_MAX)


def is_time(value_s: float) -> bool:
    """Whether a time in seconds can be compared and exported."""
    return -TIME_S_MAX <= value_s <= TIME_S_MAX


def are_within(values: Sequence[float], limit: float) -> bool:
    """Whether numbers are finite and below ``limit`` in size; all of them in C, as every frame asks."""
    return not values or (all(map(math.isfinite, values)) and -limit < min(values) and max(values) < limit)


def is_trace_parent(text: str) -> bool:
    """Whether a text is a W3C traceparent, or empty: no trace."""
    return match_trace_parent(text) is not None


def is_summable(value: float) -> bool:
    """Whether a learner can compute with a number in float32: finite, and below ``MAGNITUDE_MAX``."""
    return -MAGNITUDE_MAX < value < MAGNITUDE_MAX


def are_summable(values: Array) -> bool:
    """``is_summable`` of every value of a tensor of floats."""
    # A third of a comparison's cost: no value is larger than the root of their squares' sum, and a NaN stays one.
    # ``vdot`` overflows to infinity without a warning, ``dot`` with one.
    is_short = values.size <= DOT_SIZE_MAX and values.dtype.char in "fd"
    if is_short and np.vdot(values, values) < MAGNITUDE_MAX**2:
        return True
    limit = _MAGNITUDE_LIMITS[values.dtype.str[1:]]
    # A NaN fails the comparison. Searching for a False costs half as much as a reduction, on a small segment.
    return b"\0" not in np.less(np.abs(values), limit).tobytes()
