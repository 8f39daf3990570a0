"""What a run wrote as Arrow tables: one column a quantity, for pandas, Polars or Arrow itself."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec
import msgspec.inspect

from tidegate.cli.export.table import COLUMNS, TENSOR_COLUMNS, arrow_type
from tidegate.runtime.arrow import load_pyarrow
from tidegate.trajectory_store.exporting import Ended
from tidegate.trajectory_store.reading import LedgerRow


def table_of_updates(updates: Sequence[dict[str, Any]]) -> Any:
    """A row an update; a column for each quantity of the step log, null where an update has no value."""
    arrow = load_pyarrow("pyarrow")
    rows = [_flat(update) for update in updates]
    names = dict.fromkeys(chain.from_iterable(rows))
    columns = {name: arrow.array([row.get(name) for row in rows]) for name in names}
    # A quantity that no update of this run has is a number in another run, with which a table may be joined.
    return arrow.table(
        {
            name: each.cast("float64") if each.null_count == len(each) else each
            for name, each in columns.items()
        }
    )


def _flat(update: dict[str, Any]) -> dict[str, Any]:
    """One level: the metrics of the trainer beside the others; other sections, such as counts by lag, are JSON."""
    flat = {**update.get("metrics", {}), **update}
    flat.pop("metrics", None)
    return {
        name: msgspec.json.encode(value).decode() if isinstance(value, dict) else value
        for name, value in flat.items()
    }


def table_of_ended(pages: Iterator[list[Ended]], *, with_tensors: bool) -> Any:
    """A row for each trajectory that was trained or dropped, with the columns of ``tidegate export``."""
    arrow = load_pyarrow("pyarrow")
    columns = (*COLUMNS, *TENSOR_COLUMNS) if with_tensors else COLUMNS
    schema = arrow.schema([arrow.field(column.name, arrow_type(arrow, column.type)) for column in columns])
    batches = [
        arrow.RecordBatch.from_arrays(
            [
                arrow.array([column.value(row) for row in page], type=field.type)
                for column, field in zip(columns, schema, strict=True)
            ],
            schema=schema,
        )
        for page in pages
    ]
    return arrow.Table.from_batches(batches, schema=schema)


def table_of_ledger(rows: Iterable[LedgerRow]) -> Any:
    """A row for each trajectory of the ledger in whatever state; versions as ``lineage@step``."""
    arrow = load_pyarrow("pyarrow")
    columns: dict[str, list[Any]] = {name: [] for name in LedgerRow.__struct_fields__}
    for row in rows:
        for name, values in columns.items():
            value = getattr(row, name)
            values.append(str(value) if name in _VERSIONS and value is not None else value)
    return arrow.table(columns, schema=_ledger_schema(arrow))


def _ledger_schema(arrow: Any) -> Any:
    """The same for every run, also where a column has no value yet."""
    fields: list[Any] = []
    row = msgspec.inspect.type_info(LedgerRow)
    assert isinstance(row, msgspec.inspect.StructType), "a ledger's row is a record"
    for field in row.fields:
        kinds = field.type.types if isinstance(field.type, msgspec.inspect.UnionType) else (field.type,)
        kind = next(each for each in kinds if not isinstance(each, msgspec.inspect.NoneType))
        fields.append(arrow.field(field.name, arrow_type(arrow, _ARROW_TYPES.get(type(kind), "text"))))
    return arrow.schema(fields)


_ARROW_TYPES: dict[type, str] = {msgspec.inspect.IntType: "int64", msgspec.inspect.FloatType: "float64"}
_VERSIONS = frozenset({"oldest_version", "newest_version", "trained_at"})
