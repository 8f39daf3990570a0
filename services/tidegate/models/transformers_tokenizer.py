"""The tokenizer of a pretrained folder, and its chat template where it has one.

Markup is derived from the template: the tokens between two turns are those that it puts into a whole conversation. So
an episode's tokens, appended piece by piece, equal the conversation encoded at once; but where a template rewrites
earlier turns (some remove their thoughts), they are those that the policy wrote and read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import msgspec
from transformers import AutoTokenizer

from tidegate.core.errors import ConfigError, RecordError
from tidegate.core.json_text import NOT_JSON
from tidegate.models.model_folder import check_folder

# Replaces an id of the head that no text has: vocabularies are padded to round numbers.
UNREADABLE = "\N{REPLACEMENT CHARACTER}"

# A plain value of a run file.
TemplateValue = str | bool | int | float | None

CONFIG_FILES = ("generation_config.json", "config.json")

# Placeholders in a conversation, to find the template's markup around them; no template contains them.
_USER, _POLICY = "wxq", "qzw"


class _SpecialIds(msgspec.Struct, frozen=True):
    """The special tokens in a model's config files."""

    eos_token_id: int | list[int] | None = None
    vocab_size: int = 0


class _ChatMessage(msgspec.Struct, frozen=True):
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class _Between:
    """The template's markup between two turns: ``stop``, which the policy writes itself, and the rest."""

    stop: str
    rest: str


class TransformersTokenizer:
    """Encodes text as the model's tokens. Text never becomes markup: a space splits a special token's name in it."""

    def __init__(
        self,
        folder: Path,
        *,
        system_prompt: str = "",
        template_args: Mapping[str, TemplateValue] | None = None,
    ) -> None:
        """Read the folder's tokenizer.

        ``system_prompt``: the first message of a conversation that begins with another one. ``template_args``: further
        arguments of the chat template, such as ``enable_thinking``.

        Raises:
            ConfigError: transformers cannot load one without code from the folder, its chat template omits the
                assistant's messages or rejects a system prompt, or there is no template for either.
        """
        self._system = [{"role": "system", "content": system_prompt}] if system_prompt else []
        self._template_args = dict(template_args or {})
        check_folder(folder)
        try:
            loader: Any = AutoTokenizer
            self._tokenizer = loader.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise ConfigError(
                f"policy.path {folder} holds no tokenizer that transformers can load",
                why=str(error).strip().split("\n")[0],
                fix="save the model's tokenizer beside its weights",
            ) from error
        self._num_tokens = len(self._tokenizer)
        # Saved so by supervised training: each text gets an end, behind which a policy has nothing to continue.
        end = self._tokenizer.eos_token_id
        self._ends_texts = end is not None and self._tokenizer("x")["input_ids"][-1] == end
        self._specials = sorted(
            token.content for token in self._tokenizer.added_tokens_decoder.values() if token.special
        )
        self._has_turns = bool(self._tokenizer.chat_template)
        if (self._system or self._template_args) and not self._has_turns:
            raise ConfigError(
                f"policy.chat is set, and the model in {folder} has no chat template",
                fix="remove policy.chat, or add a chat_template.jinja to the folder",
            )
        ids = [_ids(folder / name) for name in CONFIG_FILES]
        self._vocabulary_size = max(self._num_tokens, *(known.vocab_size for known in ids))
        try:
            self._stop_ids = frozenset(self._all_stop_ids(ids))
            self._turn_end = self._end_of_turn()
        except RecordError as error:
            raise ConfigError(
                f"The chat template in {folder} refuses policy.chat, or a conversation of a user and the policy",
                why=error.why,
                fix="correct policy.chat, or the folder's chat_template.jinja",
            ) from error

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end a turn: those of the model's config files, and the template's end of a turn."""
        return self._stop_ids

    def encode_prompt(self, prompt: str) -> list[int]:
        """The tokens before the model's first one; never empty.

        With a chat template: ``prompt`` is a JSON list of messages ({"role", "content"}), or one user message as plain
        text. Without one: plain text, after the tokenizer's own prefix.

        Raises:
            RecordError: messages lack a field or the template rejects them, or the prompt is empty.
        """
        if not self._has_turns:
            ids: list[int] = self._tokenizer(prompt)["input_ids"]
            ids = ids[:-1] if self._ends_texts else ids
        else:
            messages = _messages(prompt) or [_ChatMessage(role="user", content=prompt)]
            ids = self._encode(self._render(messages, to_be_answered=True))
        if not ids:
            raise RecordError("A prompt has no tokens", why="it is empty", fix="write at least one character")
        return ids

    def encode_reply(self, text: str) -> list[int]:
        """The tokens between two turns of the policy: the text as a user message, with the template's markup.

        Without a template, the text alone.

        Raises:
            RecordError: the template rejects it.
            ConfigError: the template omits the assistant's messages.
        """
        if not self._has_turns:
            return self._encode(text)
        return self._encode(self._between(text).rest)

    def encode_turn(self, text: str) -> list[int]:
        """The tokens of a turn of the policy: the text, and the template's end of a turn, else the tokenizer's."""
        return [*self._encode(self._without_markup(text)), *self._turn_end]

    @property
    def has_chat_template(self) -> bool:
        """Whether the model has a chat template."""
        return self._has_turns

    def chat_text(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> str:
        """A conversation rendered by the template, up to the start of the model's next turn.

        ``messages`` and ``tools`` as in the OpenAI API, every message with text content.

        Raises:
            RecordError: the template rejects it.
        """
        return self._applied(messages, tools, to_be_answered=True)

    def encode_text(self, text: str) -> list[int]:
        """Tokens of a rendered template: special tokens where it names them, and no prefix."""
        return self._encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of a turn, without the stop token that ended it; other special tokens appear by name.

        Raises:
            RecordError: an id outside of the vocabulary.
        """
        ids = [int(token) for token in tokens]
        if ids and ids[-1] in self._stop_ids:
            ids = ids[:-1]
        outside = next((token for token in ids if not 0 <= token < self._vocabulary_size), None)
        if outside is not None:
            raise RecordError(
                f"Token {outside} is outside of the vocabulary of {self._vocabulary_size} tokens"
            )
        parts: list[str] = []
        for known, run in groupby(ids, key=lambda token: token < self._num_tokens):
            part = list(run)
            parts.append(self._text(part) if known else UNREADABLE * len(part))
        return "".join(parts)

    def _text(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _render(self, messages: Sequence[_ChatMessage], *, to_be_answered: bool) -> str:
        shown = [{"role": message.role, "content": message.content} for message in messages]
        return self._applied(shown, (), to_be_answered=to_be_answered)

    def _applied(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], *, to_be_answered: bool
    ) -> str:
        has_system = bool(messages) and messages[0]["role"] == "system"
        whole = messages if has_system else [*self._system, *messages]
        plain = [{**message, "content": self._without_markup(message["content"])} for message in whole]
        try:
            text: str = self._tokenizer.apply_chat_template(
                plain,
                tools=list(tools) or None,
                tokenize=False,
                add_generation_prompt=to_be_answered,
                **self._template_args,
            )
        except Exception as error:  # templates are programs and raise their library's errors
            raise RecordError(
                "The model's chat template rejects a conversation",
                why=f"{type(error).__name__}: {error}",
                fix="use roles in the order that the model supports, such as system, user, assistant, user",
            ) from error
        return text

    def _without_markup(self, content: str) -> str:
        for special in self._specials:
            if special in content:
                content = content.replace(special, f"{special[:1]} {special[1:]}")
        return content

    def _between(self, reply: str) -> _Between:
        talk = [_ChatMessage("user", _USER), _ChatMessage("assistant", _POLICY), _ChatMessage("user", reply)]
        _, found, tail = self._render(talk, to_be_answered=True).partition(_POLICY)
        if not found:
            raise ConfigError(
                "The model's chat template omits the assistant's messages",
                fix="use a template with assistant turns, in the folder's chat_template.jinja",
            )
        # No reply can contain one of these names, so the first is the template's.
        stops = {tail.index(special): special for special in self._specials if special in tail}
        if not stops:
            return _Between(stop="", rest=tail)
        start, stop = min(stops.items())
        return _Between(stop=stop, rest=tail[start + len(stop) :])

    def _end_of_turn(self) -> list[int]:
        stop = self._between("").stop if self._has_turns else ""
        end = self._tokenizer.convert_tokens_to_ids(stop) if stop else self._tokenizer.eos_token_id
        return [] if end is None else [int(end)]

    def _all_stop_ids(self, ids: Sequence[_SpecialIds]) -> set[int]:
        stops = {self._tokenizer.eos_token_id} - {None}
        for known in ids:
            named = known.eos_token_id
            stops.update([named] if isinstance(named, int) else named or [])
        if self._has_turns and (stop := self._between("").stop):
            stops.add(self._tokenizer.convert_tokens_to_ids(stop))
        return {int(stop) for stop in stops}


def _messages(prompt: str) -> list[_ChatMessage] | None:
    """The messages of a JSON list of objects that have roles; None for any other text.

    Raises:
        RecordError: one of them has no role or no content.
    """
    if not prompt.lstrip().startswith("["):
        return None
    try:
        rows = msgspec.json.decode(prompt)
    except NOT_JSON:
        return None
    if not isinstance(rows, list) or not rows:
        return None
    objects = cast("list[Any]", rows)
    if not all(isinstance(row, Mapping) and "role" in row for row in objects):
        return None
    try:
        return msgspec.convert(objects, list[_ChatMessage])
    except msgspec.ValidationError as error:
        raise RecordError(
            "A prompt's messages cannot be read",
            why=str(error),
            fix='write a JSON list of {"role": ..., "content": ...}, both strings',
        ) from error


def _ids(path: Path) -> _SpecialIds:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_SpecialIds)
    except FileNotFoundError:
        return _SpecialIds()
    except (OSError, *NOT_JSON) as error:
        raise ConfigError(f"{path} cannot be read", why=str(error)) from error
