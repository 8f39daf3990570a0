"""What engines and learners ask of a tokenizer: text to token ids and back, and what a turn is made of."""

from collections.abc import Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """Text as tokens. The same text always gives the same ids."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end a turn: the policy chose to stop. They belong to the completion and are trained."""
        ...

    def encode_prompt(self, prompt: str) -> list[int]:
        """What the model reads before its first token; never empty.

        ``prompt`` is plain text, or a JSON list of chat messages ({"role", "content"}) where the model has a chat
        template; a plain text is then one message of the user.

        Raises:
            RecordError: it cannot be encoded.
        """
        ...

    def encode_reply(self, text: str) -> list[int]:
        """What stands between two turns of the policy: an environment's reply with the markup around it.

        It follows a turn that ended with a stop token, and ends where the policy's next turn begins.

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
