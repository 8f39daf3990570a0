"""Characters as tokens: one literal alphabet that every text task shares.

Token ids are positions in this file's alphabet after the three special tokens, so a changed order or a removed
character makes older checkpoints unreadable; append instead.
"""

from collections.abc import Iterable, Sequence

from tidegate.core.errors import RecordError

PAD = 0
BOS = 1
EOS = 2
NUM_SPECIALS = 3

ALPHABET = "0123456789+-*/=()[]<>?!.,:; \nabcdefghijklmnopqrstuvwxyz"
VOCABULARY_SIZE = NUM_SPECIALS + len(ALPHABET)

# Replaces a special token in decoded text. It is not in the alphabet, so no verifier accepts such a completion as a
# correct answer.
UNREADABLE = "\N{REPLACEMENT CHARACTER}"

_TOKEN_OF = {character: NUM_SPECIALS + index for index, character in enumerate(ALPHABET)}


class UnknownCharacterError(RecordError):
    """A text contains a ``character``, at ``position``, that is not in the alphabet."""

    def __init__(self, text: str, *, position: int) -> None:
        """``position`` is the first one that cannot be encoded."""
        self.character = text[position]
        self.position = position
        super().__init__(
            f"The character {self.character!r} at position {position} of {text[:80]!r} is not in the alphabet",
            why=f"the alphabet is {ALPHABET!r}",
            fix="write the task's prompts and answers with them, or append the character to char_tokenizer.ALPHABET",
        )


def encode(text: str) -> list[int]:
    """Token ids of a text, without special tokens.

    Raises:
        UnknownCharacterError: a character is not in the alphabet.
    """
    try:
        return [_TOKEN_OF[character] for character in text]
    except KeyError as error:
        raise UnknownCharacterError(text, position=text.index(str(error.args[0]))) from None


def encode_prompt(text: str) -> list[int]:
    """``BOS``, then the prompt's text; never empty, so that the first token always has a predecessor."""
    return [BOS, *encode(text)]


def encode_completion(text: str) -> list[int]:
    """The completion's text, then ``EOS``; ending is an action of the policy and is trained like any other."""
    return [*encode(text), EOS]


def decode(tokens: Iterable[int]) -> str:
    """The text of a completion. A last ``EOS`` is dropped; any other special token becomes ``UNREADABLE``.

    Raises:
        RecordError: an id outside of the vocabulary.
    """
    ids: Sequence[int] = [int(token) for token in tokens]
    if ids and ids[-1] == EOS:
        ids = ids[:-1]
    outside = next((token for token in ids if not 0 <= token < VOCABULARY_SIZE), None)
    if outside is not None:
        raise RecordError(f"Token {outside} is outside of the vocabulary of {VOCABULARY_SIZE} tokens")
    return "".join(UNREADABLE if token < NUM_SPECIALS else ALPHABET[token - NUM_SPECIALS] for token in ids)


class CharTokenizer:
    """The tokenizer of ``char_lm``. It has no roles: a conversation is one text."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """``EOS``, which ends each turn."""
        return frozenset({EOS})

    def encode_prompt(self, prompt: str) -> list[int]:
        """``BOS``, then the text.

        Raises:
            UnknownCharacterError: a character is not in the alphabet.
        """
        return encode_prompt(prompt)

    def encode_reply(self, text: str) -> list[int]:
        """The text alone: the policy's turn before it ends with ``EOS``, and its next turn starts at the text's end.

        Raises:
            UnknownCharacterError: a character is not in the alphabet.
        """
        return encode(text)

    def encode_turn(self, text: str) -> list[int]:
        """The text, then ``EOS``.

        Raises:
            UnknownCharacterError: a character is not in the alphabet.
        """
        return encode_completion(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of a turn, without its ``EOS``; other special tokens become ``UNREADABLE``.

        Raises:
            RecordError: an id outside of the vocabulary.
        """
        return decode(tokens)
