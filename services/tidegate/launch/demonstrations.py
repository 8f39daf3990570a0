"""A person's demonstrations for a warm-up, written once into the run folder in the form of the task's own.

A line is a conversation (``messages``), or ``prompt`` and ``completion``, each a text or a list of messages. The
model's own turns are those of the role ``assistant``.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.environment.tasks.port import Demonstration
from tidegate.learner.warmup_settings import DEMONSTRATIONS_FILE
from tidegate.runtime.files import replacing
from tidegate.runtime.own_code.references import find_path
from tidegate.task_queue.dataset_files import SourceRow, read_rows

SETTING = "learner.warmup.demonstrations"
# The learner holds their tokens: of a thousand tokens each half a gigabyte.
NUM_MAX = 100_000
FORMS = 'write "prompt" and "completion", or "messages": a list of {"role": ..., "content": ...}'
_ASSISTANT, _USER = "assistant", "user"


class _Message(msgspec.Struct, frozen=True):
    role: str
    content: str


def import_demonstrations(written: str, folder: Path, *, files_dir: str = "") -> None:
    """Write ``demonstrations.jsonl``, whole or not at all; one that is there stays. ``written``: as in the run file.

    Raises:
        ConfigError: there is no such file, a line is no demonstration, or there are too few or too many.
    """
    path, made = find_path(written, folder=files_dir), folder / DEMONSTRATIONS_FILE
    if made.exists():
        return
    if not path.is_file():
        raise ConfigError(
            f"{SETTING}: there is no file {path}",
            why="it is neither beside the run file nor where the run starts",
            fix="correct it, or set it to task for the demonstrations of the run's environment",
        )
    folder.mkdir(parents=True, exist_ok=True)
    encoder, distinct, count = msgspec.json.Encoder(), set[int](), 0
    with replacing(made) as file:
        for demonstration in read_demonstrations(path):
            count += 1
            if count > NUM_MAX:
                raise ConfigError(
                    f"{SETTING}: {path} has more than {NUM_MAX:,} demonstrations",
                    why="the learner holds all of them in memory",
                    fix="take some of them; policy.path also takes the result of a longer training",
                )
            distinct.add(hash(demonstration))
            file.write(encoder.encode(demonstration) + b"\n")
        if len(distinct) < 2:
            raise ConfigError(
                f"{SETTING}: {path} has {count} demonstrations, {len(distinct)} of them different",
                why="one in ten is held out to measure on, and the others are trained on",
                fix="write more of them",
            )


def read_demonstrations(path: Path) -> Iterator[Demonstration]:
    """The demonstrations of a file, one at a time.

    Raises:
        ConfigError: a line is none; the message names it.
    """
    for row in read_rows(path, kind="jsonl", split="", columns=()):
        yield _of_row(row)


def _of_row(row: SourceRow) -> Demonstration:
    columns = row.columns
    prompt, completion = columns.get("prompt"), columns.get("completion")
    if "messages" in columns:
        messages = _messages(row, "messages", columns["messages"])
    elif isinstance(prompt, str) and isinstance(completion, str):
        return _checked(row, Demonstration(prompt, completion, _exchanges(row)))
    elif prompt is None or completion is None:
        known = ", ".join(sorted(columns)[:12]) or "nothing"
        raise ConfigError(f"{row.where} is no demonstration", why=f"it has {known}", fix=FORMS)
    else:
        asked = [_Message(_USER, prompt)] if isinstance(prompt, str) else _messages(row, "prompt", prompt)
        told = (
            [_Message(_ASSISTANT, completion)]
            if isinstance(completion, str)
            else _messages(row, "completion", completion)
        )
        messages = [*asked, *told]
    return _checked(row, _of_messages(row, messages))


def _of_messages(row: SourceRow, messages: Sequence[_Message]) -> Demonstration:
    """What is before the model's first turn is the prompt; then users and the model take turns."""
    first = next((index for index, each in enumerate(messages) if each.role == _ASSISTANT), 0)
    turns = messages[first:]
    wanted = [_ASSISTANT if index % 2 == 0 else _USER for index in range(len(turns))]
    if first == 0 or [each.role for each in turns] != wanted or len(turns) % 2 == 0:
        raise ConfigError(
            f"{row.where} has the roles {', '.join(each.role for each in messages[:12]) or 'of no message'}",
            why="from the first assistant on, assistant and user take turns, and the assistant has the last word",
            fix="correct the order; results of tools cannot be trained on here",
        )
    replies, answers = turns[1::2], turns[2::2]
    exchanges = tuple((reply.content, answer.content) for reply, answer in zip(replies, answers, strict=True))
    return Demonstration(_prompt_text(messages[:first]), turns[0].content, exchanges)


def _prompt_text(messages: Sequence[_Message]) -> str:
    """As ``Tokenizer.encode_prompt`` reads it: a user's one message is its text, unless that looks like several."""
    if len(messages) == 1 and messages[0].role == _USER and not messages[0].content.lstrip().startswith("["):
        return messages[0].content
    return msgspec.json.encode(messages).decode()


def _messages(row: SourceRow, column: str, value: Any) -> list[_Message]:
    try:
        return msgspec.convert(value, list[_Message])
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{row.where}: its {column} cannot be read",
            why=str(error),
            fix='write a list of {"role": ..., "content": ...}, both of them texts',
        ) from error


def _exchanges(row: SourceRow) -> tuple[tuple[str, str], ...]:
    try:
        return msgspec.convert(row.columns.get("exchanges", ()), tuple[tuple[str, str], ...])
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{row.where}: its exchanges cannot be read",
            why=str(error),
            fix="write a list of pairs: the environment's reply, and the policy's next turn",
        ) from error


def _checked(row: SourceRow, demonstration: Demonstration) -> Demonstration:
    texts = [demonstration.prompt, demonstration.completion, *(turn for _, turn in demonstration.exchanges)]
    if not all(texts):
        raise ConfigError(
            f"{row.where} has an empty prompt or an empty answer", fix="fill it, or remove the line"
        )
    return demonstration
