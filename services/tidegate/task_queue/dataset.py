"""The dataset: problems as JSON lines, read once and held in memory.

A row is ``{"prompt_id": ..., "prompt": ..., "answer": ..., "bin": ...}``; ``bin`` may be left out. Prompts of some
hundred bytes take about half a kilobyte each, so 100,000 of them fit the service's memory goal of 80 MB.
"""

from pathlib import Path

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.core.ids import PromptId
from tidegate.task_queue.state import Prompt
from tidegate.wire.subjects import KIB


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    prompt_id: str
    prompt: str
    answer: str = ""
    bin: str = "all"


# A task message holds 256 KiB; half of it leaves room for everything else a task says.
ROW_BYTES_MAX = 128 * KIB

_DECODER = msgspec.json.Decoder(_Row)


def read_dataset(path: Path) -> list[Prompt]:
    """All problems of a JSONL file, in file order; blank lines are skipped.

    Raises:
        ConfigError: the file is missing, empty or not UTF-8; a line is malformed or too long for a task; or a
            prompt_id comes twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"Dataset {path.name} cannot be read",
            why=str(error),
            fix="`tidegate up` writes it into <run folder>/data before the services start",
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"Dataset {path.name} is not UTF-8", why=str(error)) from error
    prompts: list[Prompt] = []
    first_line: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        if len(line.encode()) > ROW_BYTES_MAX:
            raise ConfigError(
                f"Line {number} of dataset {path.name} has {len(line.encode())} bytes",
                why=f"a task travels as one message, so a row may have {ROW_BYTES_MAX}",
                fix="shorten the prompt",
            )
        try:
            row = _DECODER.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"Line {number} of dataset {path.name} is malformed",
                why=str(error),
                fix='a row is {"prompt_id": "...", "prompt": "...", "answer": "...", "bin": "..."}',
            ) from error
        if not row.prompt_id or row.prompt_id in first_line:
            where = f"line {first_line[row.prompt_id]} has it too" if row.prompt_id else "it is empty"
            raise ConfigError(
                f"Line {number} of dataset {path.name} has the prompt_id {row.prompt_id!r}",
                why=where,
                fix="give every prompt an id of its own: the audit and the curriculum tell prompts apart by it",
            )
        first_line[row.prompt_id] = number
        prompts.append(Prompt(PromptId(row.prompt_id), row.prompt, row.answer, row.bin))
    if not prompts:
        raise ConfigError(
            f"Dataset {path.name} is empty", fix="put at least one prompt into it, one JSON object a line"
        )
    return prompts
