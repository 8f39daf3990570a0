"""The interface of a tokenizer: text to token ids and back, and the markup of turns."""

from collections.abc import Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """Encodes text as tokens. The same text always gives the same ids."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens with which the policy ends a turn. They belong to the completion and are trained."""
        ...

    def encode_prompt(self, prompt: str) -> list[int]:
        """The tokens before the model's first one; never empty.

        ``prompt`` is plain text, or a JSON list of chat messages ({"role", "content"}) where the model has a chat
        template; plain text is then one user message.

        Raises:
            RecordError: it cannot be encoded.
        """
        ...

    def encode_reply(self, text: str) -> list[int]:
        """The tokens between two turns of the policy: an environment's reply with its markup.

        It follows a turn that ended with a stop token, and ends where the policy's next turn starts.

        Raises:
            RecordError: it cannot be encoded.
        """
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of a turn, without the stop token that ended it.

        Raises:
            RecordError: an id outside of the vocabulary.
        """
        ...


class TurnTokenizer(Tokenizer, Protocol):
    """A tokenizer that also encodes what the policy itself would write: targets of supervised training."""

    def encode_turn(self, text: str) -> list[int]:
        """The tokens of a turn of the policy, with the one that ends it.

        Raises:
            RecordError: it cannot be encoded.
        """
        ...
