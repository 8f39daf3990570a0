"""A scripted engine, and a tokenizer with a chat template, for the tests of the gateway."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tidegate.actor.engines.token_port import Continuation, FinishReason, TokenRequest
from tidegate.core.errors import TidegateError
from tidegate.core.ids import LineageName, PolicyVersion, PromptId, RunId, TaskId
from tidegate.core.records import PolicySnapshot, Sampler, Task

START, END = "<|im_start|>", "<|im_end|>"
START_ID, END_ID = 1, 2
FIRST_CHARACTER = 10
LINEAGE = LineageName("0-a")
SAMPLER = Sampler(temperature=1.0, max_new_tokens=512)


def version(step: int) -> PolicyVersion:
    return PolicyVersion(LINEAGE, step)


def group_task(
    task_id: str = "task-1", *, num_samples: int = 1, sampler: Sampler = SAMPLER, **fields: Any
) -> Task:
    task = Task(
        task_id=TaskId(task_id),
        run_id=RunId("test-run"),
        kind="group",
        required_version=version(0),
        num_samples=num_samples,
        prompt_id=PromptId("12*4"),
        prompt="What is 12*(3+1)?",
        answer="48",
        env_id="arithmetic",
        sampler=sampler,
        admitted_at_s=1.0,
    )
    return msgspec.structs.replace(task, **fields)


class ChatMlTokenizer:
    """Every character is a token; turns are in ChatML's markup. ``shows_tools`` as some models' templates do."""

    def __init__(self, *, shows_tools: bool = True) -> None:
        self.shows_tools = shows_tools

    @property
    def stop_ids(self) -> frozenset[int]:
        return frozenset({END_ID})

    @property
    def has_chat_template(self) -> bool:
        return True

    def chat_text(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> str:
        shown = list(messages)
        if tools and self.shows_tools:
            names = ",".join(tool["function"]["name"] for tool in tools)
            shown.insert(0, {"role": "system", "content": f"tools: {names}"})
        return "".join(f"{START}{self._turn(message)}{END}\n" for message in shown) + f"{START}assistant\n"

    def _turn(self, message: dict[str, Any]) -> str:
        calls = [msgspec.json.encode(call["function"]).decode() for call in message.get("tool_calls", ())]
        return f"{message['role']}\n{message['content']}{''.join(calls)}"

    def encode_text(self, text: str) -> list[int]:
        tokens: list[int] = []
        while text:
            special = next((mark for mark in (START, END) if text.startswith(mark)), "")
            if special:
                tokens.append(START_ID if special == START else END_ID)
            else:
                tokens.append(FIRST_CHARACTER + ord(text[0]))
            text = text[len(special) or 1 :]
        return tokens

    def encode_prompt(self, prompt: str) -> list[int]:
        return self.encode_text(self.chat_text([{"role": "user", "content": prompt}], []))

    def encode_reply(self, text: str) -> list[int]:
        return self.encode_text(f"\n{START}user\n{text}{END}\n{START}assistant\n")

    def decode(self, tokens: Sequence[int]) -> str:
        ids = list(tokens)
        if ids and ids[-1] == END_ID:
            ids = ids[:-1]
        special = {START_ID: START, END_ID: END}
        return "".join(special.get(token) or chr(token - FIRST_CHARACTER) for token in ids)


class ScriptedEngine:
    """Writes what ``script`` says to a context's text, one token an await, under ``version``, which may change.

    A script's ``…`` at its end marks a reply that meets its cap. ``seen`` keeps every request with what was
    written, in the order they ended.
    """

    def __init__(
        self,
        script: Callable[[str], str],
        *,
        tokenizer: ChatMlTokenizer | None = None,
        context_length: int = 100_000,
    ) -> None:
        self.script = script
        self.tokenizer = tokenizer or ChatMlTokenizer()
        self.context_length = context_length
        self.version = version(0)
        self.seen: list[tuple[TokenRequest, Continuation]] = []
        self.under_way = 0
        self.hold: asyncio.Event | None = None
        self.error: TidegateError | None = None
        self.wrote: Callable[[Continuation], None] = lambda _written: None

    def check_policy(self, snapshot: PolicySnapshot) -> None:
        """Any fits."""

    def check_task(self, task: Task) -> None:
        if self.error is not None:
            raise self.error

    async def run(self) -> None:
        """Nothing computes."""

    async def close(self) -> None:
        """Nothing to release."""

    async def generate(self, request: TokenRequest, written: Continuation) -> FinishReason:
        self.under_way += 1
        try:
            if self.error is not None:
                raise self.error
            said = self.script(self.tokenizer.decode(request.context))
            tokens = self.tokenizer.encode_text(said.removesuffix("…"))
            if not said.endswith("…"):
                tokens.append(END_ID)
            for index, token in enumerate(tokens[: request.sampler.max_new_tokens]):
                await asyncio.sleep(0)
                if self.hold is not None and index > 0:
                    await self.hold.wait()
                written.append([token], [-0.25 * (1 + token % 7)], self.version)
                self.wrote(written)
            self.seen.append((request, written))
            return "stop" if written.tokens[-1] in request.stop_ids else "length"
        finally:
            self.under_way -= 1
