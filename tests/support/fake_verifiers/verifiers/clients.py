"""The client that `verifiers` gives its environments."""

from typing import Any


class OpenAIChatCompletionsClient:
    def __init__(self, caller: Any) -> None:
        self.caller = caller
