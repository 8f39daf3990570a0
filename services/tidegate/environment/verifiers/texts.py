"""The input of verifiers: templates filled in, and prompts of chat messages as plain text."""

import re

import msgspec

from tidegate.core.json_text import NOT_JSON
from tidegate.environment.tasks.port import Problem

_PLACE = re.compile(r"\{(prompt|answer|completion)\}")


class _PromptMessage(msgspec.Struct, frozen=True):
    role: str
    content: str


def filled(template: str, problem: Problem, completion: str) -> str:
    """The template with problem and completion inserted; braces in them stay as they are."""
    texts = {"prompt": readable(problem.prompt), "answer": problem.answer, "completion": completion}
    return _PLACE.sub(lambda place: texts[place[1]], template)


def readable(prompt: str) -> str:
    """A prompt of chat messages with a line for each; any other prompt unchanged."""
    try:
        messages = msgspec.json.decode(prompt, type=list[_PromptMessage])
    except NOT_JSON:
        return prompt
    return "\n".join(f"{message.role}: {message.content}" for message in messages)
