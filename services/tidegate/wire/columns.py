"""The records of one message as columns: shared values are written, read and checked once.

A column contains one value for each record, or a single one that all share. It is encoded as MessagePack, typed and
bounded by ``RecordColumns``: on a group of sixteen the same columns in protobuf cost ten times as much CPU, all of it
in the conversion between messages and values.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import cycle
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec.structs import astuple

from tidegate.core.errors import RecordError
from tidegate.core.ids import GroupId, LineageName, PolicyVersion, PromptId, RunId, TaskId, TrajectoryId
from tidegate.core.records import (
    Array,
    EpisodeEnd,
    Sampler,
    StageTiming,
    ToolCall,
    Trajectory,
    VersionSpan,
)

Value = TypeVar("Value")

# The range of a ledger's column and a protobuf field; anything else is refused on reading.
Int32: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

# The fields of the records' parts, in their order.
VersionRow: TypeAlias = tuple[LineageName, Int64]
SpanRow: TypeAlias = tuple[LineageName, Int64, Int32, Int32]
EpisodeRow: TypeAlias = tuple[float, Int32, Int32]
ToolCallRow: TypeAlias = tuple[str, str, str, float, float]
SamplerRow: TypeAlias = tuple[float, float, Int32, Int32]
StageRow: TypeAlias = tuple[str, str, float, float]


class RecordColumns(msgspec.Struct, frozen=True, array_like=True, eq=False):
    """The fields of ``Trajectory`` but its tensors, each one value for each record or a single one for all.

    ``itertools.cycle`` reads either; ``trajectory_id`` contains one for each record and so determines their number.
    Fields are encoded by position: a new one goes to the end and has a default.
    """

    trajectory_id: list[TrajectoryId]
    run_id: list[RunId]
    task_id: list[TaskId]
    group_id: list[GroupId]
    group_size: list[Int32]
    spans: list[tuple[SpanRow, ...]]
    num_steps: list[Int64]
    prompt_id: list[PromptId]
    prompt: list[str]
    answer: list[str]
    completion: list[str]
    attempt: list[Int32]
    curriculum_bin: list[str]
    reference_version: list[VersionRow | None]
    reward: list[float | None]
    reward_components: list[dict[str, float]]
    verifier_log: list[str]
    episodes: list[tuple[EpisodeRow, ...]]
    tool_calls: list[tuple[ToolCallRow, ...]]
    sampler: list[SamplerRow]
    actor_id: list[str]
    env_id: list[str]
    length_tokens: list[Int32]
    finish_reason: list[str]
    started_at_s: list[float]
    finished_at_s: list[float]
    stages: list[tuple[StageRow, ...]]
    trace_parent: list[str]
    stream_id: list[str] = msgspec.field(default_factory=lambda: [""])
    stream_position: list[Int64] = msgspec.field(default_factory=lambda: [0])

    def __len__(self) -> int:
        return len(self.trajectory_id)

    def check(self) -> None:
        """Check that every column contains one value for each record, or one for all.

        Raises:
            RecordError: a column does not, or there is no record.
        """
        num_records = len(self)
        if not num_records:
            raise RecordError("A trajectory frame holds no trajectory")
        if not {1, num_records}.issuperset(map(len, astuple(self))):
            lengths = {name: len(getattr(self, name)) for name in self.__struct_fields__}
            wrong = {name: length for name, length in lengths.items() if length not in (1, num_records)}
            raise RecordError(
                f"A trajectory frame of {num_records} records has other numbers of values: {wrong}",
                why="a column holds one value for each record, or one for all",
            )

    def only(self, indexes: Sequence[int]) -> "RecordColumns":
        """Some of the records, by position."""
        num_records = len(self)
        return RecordColumns(
            *(
                [column[index] for index in indexes] if len(column) == num_records else column
                for column in astuple(self)
            )
        )

    def records(self, tensors: Sequence[dict[str, Array]]) -> list[Trajectory]:
        """The records one by one, with the tensors of each."""
        columns: list[Iterable[Any]] = [
            cycle(map(_READ[name], column) if name in _READ else column)
            for name, column in zip(self.__struct_fields__, astuple(self), strict=True)
        ]
        columns.insert(_TENSORS_POSITION, tensors)
        return list(map(Trajectory, *columns))


def columns_of(trajectories: Sequence[Trajectory]) -> RecordColumns:
    """The columns of records.

    Raises:
        RecordError: there are none.
    """
    if not trajectories:
        raise RecordError("A trajectory frame holds no trajectory")
    columns: list[list[Any]]
    if len(trajectories) == 1:
        columns = [[value] for value in astuple(trajectories[0])]
        del columns[_TENSORS_POSITION]
    else:
        columns = list(map(list, zip(*map(astuple, trajectories), strict=True)))
        del columns[_TENSORS_POSITION]
        for column in columns[1:]:
            if column.count(column[0]) == len(column):
                del column[1:]
    for position, write in _WRITE_AT:
        columns[position] = list(map(write, columns[position]))
    return RecordColumns(*columns)


@lru_cache(maxsize=1024)
def spans_of(rows: tuple[SpanRow, ...]) -> tuple[VersionSpan, ...]:
    """Version spans of records; equal ones are the same object, because most records have one version."""
    # A tuple from a list: a generator costs more than the usual single span.
    return tuple(
        [VersionSpan(PolicyVersion(lineage, step), start, stop) for lineage, step, start, stop in rows]
    )


def _span_rows(spans: tuple[VersionSpan, ...]) -> tuple[SpanRow, ...]:
    return tuple([(span.version.lineage, span.version.step, span.start, span.stop) for span in spans])


def _struct_rows(parts: Sequence[msgspec.Struct]) -> tuple[Any, ...]:
    return tuple([astuple(part) for part in parts])


# Fields whose values are encoded as rows, with both conversions; the others are encoded as they are.
_WRITE: dict[str, Callable[[Any], Any]] = {
    "spans": _span_rows,
    "reference_version": lambda version: None if version is None else astuple(version),
    "episodes": _struct_rows,
    "tool_calls": _struct_rows,
    "sampler": astuple,
    "stages": _struct_rows,
}
_READ: dict[str, Callable[[Any], Any]] = {
    "spans": spans_of,
    "reference_version": lambda row: None if row is None else PolicyVersion(*row),
    "episodes": lambda rows: tuple([EpisodeEnd(*row) for row in rows]),
    "tool_calls": lambda rows: tuple([ToolCall(*row) for row in rows]),
    "sampler": lambda row: Sampler(*row),
    "stages": lambda rows: tuple([StageTiming(*row) for row in rows]),
}
_FIELDS = RecordColumns.__struct_fields__
_WRITE_AT = [(position, _WRITE[name]) for position, name in enumerate(_FIELDS) if name in _WRITE]
_TENSORS_POSITION = Trajectory.__struct_fields__.index("tensors")
# Ids are never shared: their number is the number of records.
assert _FIELDS[0] == "trajectory_id"
assert tuple(name for name in Trajectory.__struct_fields__ if name != "tensors") == _FIELDS
