"""Rows of a person's dataset, one at a time, whatever kind of files they are in.

Three kinds: JSON lines; Parquet, read in pieces of a row group; and folders that the library ``datasets`` saved to
disk (``Dataset.save_to_disk``: ``state.json`` names the files, each an Arrow stream; ``DatasetDict.save_to_disk``: one
such folder a split, named in ``dataset_dict.json``). Memory is bounded by one piece, not by the dataset.
"""

from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.runtime.arrow import load_pyarrow

Format = Literal["jsonl", "parquet", "datasets"]

STATE_JSON = "state.json"
DICT_JSON = "dataset_dict.json"
_SUFFIXES: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
# A piece of a Parquet file: small enough that a column of long prompts takes some megabytes.
_BATCH_ROWS = 512
_LINE_BYTES_MAX = 16 << 20


class SourceRow(msgspec.Struct, frozen=True):
    """One row as it lies in its file: where it is, for people, and its columns."""

    where: str
    columns: dict[str, Any]


def read_rows(
    path: Path, *, kind: Format | Literal["auto"], split: str, columns: Sequence[str]
) -> Iterator[SourceRow]:
    """Every row in the order of its files; of Arrow and Parquet the named columns only, as far as they are there.

    Raises:
        ConfigError: there is no such file, it cannot be read in the given format, or a library is missing.
    """
    if not path.exists():
        raise ConfigError(
            f"Dataset {path} is not there",
            fix="correct workload.dataset.path; it is beside the run file, or relative to where the run starts",
        )
    found = _format_of(path) if kind == "auto" else kind
    for file in _saved_files(path, split) if found == "datasets" else _files_of(path, found):
        match found:
            case "jsonl":
                yield from _json_lines(file)
            case "parquet":
                yield from _parquet(file, columns)
            case "datasets":
                yield from _arrow_stream(file, columns)


def _format_of(path: Path) -> Format:
    if path.is_file():
        kind = _SUFFIXES.get(path.suffix)
        if kind is not None:
            return kind
    elif (path / STATE_JSON).is_file() or (path / DICT_JSON).is_file():
        return "datasets"
    else:
        kinds: set[Format] = {
            _SUFFIXES[entry.suffix] for entry in path.iterdir() if entry.suffix in _SUFFIXES
        }
        if len(kinds) == 1:
            return kinds.pop()
    raise ConfigError(
        f"The format of dataset {path} cannot be told from its name",
        why=f"files end in {', '.join(sorted(_SUFFIXES))}; a folder that was saved to disk holds {STATE_JSON}",
        fix="set workload.dataset.format, or name the files so",
    )


def _files_of(path: Path, kind: Format) -> list[Path]:
    """The file itself, or those of a folder in the order of their names."""
    if path.is_file():
        return [path]
    files = sorted(entry for entry in path.iterdir() if _SUFFIXES.get(entry.suffix) == kind)
    if not files:
        raise ConfigError(f"Dataset {path} holds no {kind} files", fix="name the folder that holds them")
    return files


def _json_lines(file: Path) -> Iterator[SourceRow]:
    decoder = msgspec.json.Decoder(dict[str, Any])
    with file.open("rb") as lines:
        number = 0
        while line := lines.readline(_LINE_BYTES_MAX):
            number += 1
            if number == 1:
                line = line.removeprefix(BOM_UTF8)
            if not line.strip():
                continue
            where = f"line {number} of {file}"
            if len(line) == _LINE_BYTES_MAX:
                raise ConfigError(
                    f"{where} has {_LINE_BYTES_MAX:,} bytes or more",
                    fix="write each object on a line of its own, and leave long values out",
                )
            try:
                yield SourceRow(where, decoder.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ConfigError(
                    f"{where} is no JSON object", why=str(error), fix="write one object a line, in UTF-8"
                ) from error


def _parquet(file: Path, columns: Sequence[str]) -> Iterator[SourceRow]:
    parquet = load_pyarrow("pyarrow.parquet")
    lib = load_pyarrow("pyarrow.lib")
    try:
        with parquet.ParquetFile(file, memory_map=True, pre_buffer=False) as opened:
            present = [name for name in columns if name in opened.schema_arrow.names]
            number = 0
            for batch in opened.iter_batches(batch_size=_BATCH_ROWS, columns=present):
                yield from _batch_rows(batch, file, first=number)
                number += batch.num_rows
    except (lib.ArrowException, OSError) as error:
        raise _unreadable(file, "Parquet", error) from error


def _arrow_stream(file: Path, columns: Sequence[str]) -> Iterator[SourceRow]:
    arrow = load_pyarrow("pyarrow")
    try:
        with arrow.memory_map(str(file)) as mapped, arrow.ipc.open_stream(mapped) as stream:
            present = [name for name in columns if name in stream.schema.names]
            number = 0
            for batch in stream:
                for start in range(0, batch.num_rows, _BATCH_ROWS):
                    piece = batch.slice(start, _BATCH_ROWS).select(present)
                    yield from _batch_rows(piece, file, first=number)
                    number += piece.num_rows
    except (arrow.ArrowException, OSError) as error:
        raise _unreadable(file, "an Arrow stream", error) from error


def _batch_rows(batch: Any, file: Path, *, first: int) -> Iterator[SourceRow]:
    rows: list[dict[str, Any]] = batch.to_pylist()
    for number, columns in enumerate(rows, start=first):
        yield SourceRow(f"row {number} of {file}", columns)


def _saved_files(folder: Path, split: str) -> list[Path]:
    """The Arrow files of a folder that was saved to disk, of one split where it has several."""
    if (folder / DICT_JSON).is_file():
        splits: list[str] = _json(folder / DICT_JSON).get("splits", [])
        if split not in splits:
            raise ConfigError(
                f"Dataset {folder} has no split {split!r}",
                why=f"it has {', '.join(splits)}",
                fix="set workload.dataset.split (or held_out_split) to one of them",
            )
        folder /= split
    names = [entry.get("filename") for entry in _json(folder / STATE_JSON).get("_data_files", [])]
    # Names only: a folder from elsewhere must not refer to files outside of it.
    files = [folder / name for name in names if isinstance(name, str) and Path(name).name == name]
    if not files or len(files) < len(names):
        raise ConfigError(
            f"{folder / STATE_JSON} names no files that can be read", fix="save it again with save_to_disk"
        )
    return files


def _json(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read",
            why=str(error),
            fix="name a folder that was written by save_to_disk of the library datasets",
        ) from error


def _unreadable(file: Path, kind: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"{file} cannot be read as {kind}", why=str(error), fix="set workload.dataset.format to what it is"
    )
