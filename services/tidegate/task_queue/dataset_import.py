"""A person's dataset, written once into the run folder as the rows that every service of a run reads.

A run reads its copy, so its epochs stay the same, whatever becomes of the original. Existing files stay: those of a
resumed run, or those that an operator put there.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.runtime.object_storage.fetching import fetched
from tidegate.runtime.object_storage.urls import is_url
from tidegate.runtime.own_code.references import find_path
from tidegate.runtime.prompt_sources import DatasetConfig
from tidegate.task_queue.dataset import (
    DIGEST_BYTES,
    HELD_OUT_FILE,
    ROW_BYTES_MAX,
    TRAIN_FILE,
    Row,
    short_digest,
)
from tidegate.task_queue.dataset_files import SourceRow, read_rows

_encode = msgspec.json.Encoder().encode
_DEFAULTS = DatasetConfig()


def import_dataset(config: DatasetConfig, folder: Path, *, files_dir: str = "") -> None:
    """Write ``train.jsonl``, and ``heldout.jsonl`` where anything is held out; nothing without a ``path``.

    ``files_dir``: where paths begin, before the working directory.

    Raises:
        ConfigError: a file is missing or malformed, or a row is no problem; it names the file, the row and what to do.
    """
    if not config.path or (folder / TRAIN_FILE).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    if config.held_out_path or config.held_out_split:
        path, split = config.held_out_path or config.path, config.held_out_split or config.split
        with _local(path, folder, files_dir=files_dir) as place:
            _write(folder, config, path=place, split=split, into=HELD_OUT_FILE)
    with _local(config.path, folder, files_dir=files_dir) as place:
        _write(folder, config, path=place, split=config.split, into=TRAIN_FILE)


@contextmanager
def _local(path: str, folder: Path, *, files_dir: str) -> Generator[Path]:
    """Where the files are; of an address their copies, while they are imported."""
    if is_url(path):
        with fetched(path, beside=folder, setting="workload.dataset") as place:
            yield place
    else:
        yield find_path(path, folder=files_dir)


def _write(folder: Path, config: DatasetConfig, *, path: Path, split: str, into: str) -> None:
    """One source into one file; a share that is held out of it goes into the other. Whole or not at all."""
    share = config.held_out_share
    named = _columns(config)
    rows = read_rows(path, kind=config.format, split=split, columns=list(named.values()))
    problems = _problems(rows, named)
    unfinished = {name: folder / f"{name}.new" for name in ((HELD_OUT_FILE, into) if share else (into,))}
    files = {name: place.open("wb") for name, place in unfinished.items()}
    try:
        for problem in problems:
            held_out = bool(share) and _fraction(problem.prompt) < share
            _append(files[HELD_OUT_FILE if held_out else into], problem)
    finally:
        for file in files.values():
            file.close()
    empty = [name for name, place in unfinished.items() if place.stat().st_size == 0]
    if empty:
        why = f"none of its prompts came into {empty[0]}" if share else "it has no rows"
        raise ConfigError(f"Dataset {path} is too small", why=why, fix="add rows, or change held_out_share")
    # The training file last: its presence means that all files are complete.
    for name in unfinished:
        if (folder / name).exists():
            unfinished[name].unlink()
        else:
            unfinished[name].replace(folder / name)


def _append(file: BinaryIO, problem: Row) -> None:
    file.write(_encode(problem) + b"\n")


def _columns(config: DatasetConfig) -> dict[str, str]:
    columns = {
        "prompt": config.prompt_column,
        "answer": config.answer_column,
        "prompt_id": config.prompt_id_column,
        "bin": config.bin_column,
    }
    return {field: column for field, column in columns.items() if column or field == "prompt"}


def _problems(rows: Iterator[SourceRow], named: dict[str, str]) -> Iterator[Row]:
    """Rows as problems; each is checked for what the queue would refuse later."""
    # Grow with the number of rows, not with their texts: about 100 bytes for each.
    numbers: dict[str, int] = {}
    repeats: dict[str, int] = {}
    # A column named in the run file must exist; one named by default may be missing.
    needed = {
        field: column
        for field, column in named.items()
        if field == "prompt" or column != getattr(_DEFAULTS, f"{field}_column")
    }
    for number, row in enumerate(rows, start=1):
        for field, column in needed.items():
            if column not in row.columns:
                raise ConfigError(
                    f"{row.where} has no column {column!r}",
                    why=f"it has {', '.join(sorted(row.columns)) or 'none of those asked for'}",
                    fix=f"set workload.dataset.{field}_column to the column of the {field.replace('_', ' ')}",
                )
        prompt, answer, prompt_id, bin_name = (
            _text(row.columns.get(named.get(field, ""))) for field in ("prompt", "answer", "prompt_id", "bin")
        )
        if not prompt:
            raise ConfigError(f"{row.where} has an empty prompt", fix="remove the row or fill it")
        if prompt_id:
            if prompt_id in numbers:
                raise ConfigError(
                    f"{row.where} has the prompt_id {prompt_id!r}",
                    why=f"row {numbers[prompt_id]} of the dataset has it too",
                    fix='give every prompt an id of its own, or set workload.dataset.prompt_id_column to ""',
                )
            numbers[prompt_id] = number
        else:
            prompt_id = _content_id(prompt, answer, repeats)
        problem = Row(prompt_id, prompt, answer, bin_name or "all")
        size = len(_encode(problem))
        if size > ROW_BYTES_MAX:
            raise ConfigError(
                f"{row.where} has {size:,} bytes",
                why=f"a task travels as one message, so a row may have {ROW_BYTES_MAX:,}",
                fix="shorten or remove it",
            )
        yield problem


def _text(value: Any) -> str:
    """A column's value as text: texts as they are, messages and other values as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    try:
        return _encode(value).decode()
    except TypeError:
        return str(value)


def _content_id(prompt: str, answer: str, repeats: dict[str, int]) -> str:
    """The digest of a row's content; a repeated row is distinguished by its repeat count."""
    digest = blake2b(digest_size=10)
    digest.update(f"{len(prompt)}:{prompt}{answer}".encode())
    name = digest.hexdigest()
    repeats[name] = repeats.get(name, 0) + 1
    return name if repeats[name] == 1 else f"{name}-{repeats[name]}"


def _fraction(prompt: str) -> float:
    """A number in [0, 1) that a prompt has wherever and whenever it is read; repeats fall on the same side."""
    return short_digest(prompt) / 2 ** (8 * DIGEST_BYTES)
