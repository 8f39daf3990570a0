"""``tidegate export``."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from tidegate.cli.accounting import ledger_path
from tidegate.cli.console import open_console
from tidegate.cli.export.table import COLUMNS, FORMAT, TENSOR_COLUMNS, Column, arrow_type
from tidegate.cli.run_argument import RunArgument, RunOption, named_run
from tidegate.cli.sent_file import check_target, write_file_to
from tidegate.core.errors import ConfigError
from tidegate.launch.local_files import require_local
from tidegate.launch.run_folder import find_folder, read_record
from tidegate.runtime.arrow import load_pyarrow
from tidegate.trajectory_store.exporting import Ended, ended

# A Parquet row group ends at either: many small pages are read quickly as one, and tokens with their logprobs stay
# below some 20 MB.
GROUP_ROWS = 1024
GROUP_TOKENS = 1 << 20


def export(
    run: RunArgument = None,
    folder: RunOption = None,
    to: Annotated[
        str,
        typer.Option("--to", help="Parquet file to write, also as s3://bucket/name.parquet (gs://, az://)."),
    ] = "trajectories.parquet",
    since_step: Annotated[
        int,
        typer.Option(
            "--since-step", min=0, help="Only trajectories trained at this step or later, or dropped since."
        ),
    ] = 0,
    tensors: Annotated[
        bool, typer.Option("--tensors", help="Include tokens and logprobs, where the store still has them.")
    ] = False,
) -> None:
    """Export the trained and dropped trajectories of a running or stopped run, a row each."""
    check_target(to, setting="--to")
    where = find_folder(named_run(run, folder))
    record = require_local(read_record(where))
    pages = ended(ledger_path(where).parent, since_step=since_step, with_tensors=tensors)
    write = partial(write_table, pages, run_id=record.run_id, with_tensors=tensors)
    counts = write_file_to(to, write, setting="--to")
    shares = ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))
    open_console().print(f"{to}: {shares or 'no trajectory is terminal yet'}")


def write_table(
    pages: Iterator[list[Ended]], path: Path, *, run_id: str, with_tensors: bool
) -> dict[str, int]:
    """Write all pages, a row group at a time; returns rows by outcome. The file appears once it is whole.

    Raises:
        ConfigError: pyarrow is not installed, or the file cannot be written.
    """
    arrow, parquet = load_pyarrow("pyarrow"), load_pyarrow("pyarrow.parquet")
    columns = (*COLUMNS, *TENSOR_COLUMNS) if with_tensors else COLUMNS
    schema = _schema(arrow, columns, run_id)
    counts: dict[str, int] = {}
    unfinished = path.with_name(f"{path.name}.new")
    try:
        with parquet.ParquetWriter(unfinished, schema, compression="zstd") as writer:
            for rows in _groups(pages):
                for row in rows:
                    counts[row.state] = counts.get(row.state, 0) + 1
                arrays = [
                    arrow.array([column.value(row) for row in rows], type=field.type)
                    for column, field in zip(columns, schema, strict=True)
                ]
                writer.write_table(arrow.Table.from_arrays(arrays, schema=schema))
        unfinished.replace(path)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written",
            why=str(error),
            fix="name a file in a writable folder with free space, with --to",
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)
    return counts


def _schema(arrow: Any, columns: tuple[Column, ...], run_id: str) -> Any:
    fields = [
        arrow.field(column.name, arrow_type(arrow, column.type), metadata={"meaning": column.meaning})
        for column in columns
    ]
    return arrow.schema(fields, metadata={"tidegate.format": FORMAT, "tidegate.run_id": run_id})


def _groups(pages: Iterator[list[Ended]]) -> Iterator[list[Ended]]:
    """Pages joined to row groups, so that a file of many small ones is read quickly."""
    rows: list[Ended] = []
    for page in pages:
        rows += page
        if len(rows) >= GROUP_ROWS or sum(row.length_tokens for row in rows) >= GROUP_TOKENS:
            yield rows
            rows = []
    if rows:
        yield rows
