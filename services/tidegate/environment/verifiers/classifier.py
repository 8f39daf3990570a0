"""A reward model in a child process: the worker's side of ``classifier_child``.

One text is scored at a time; a child that died, overran its deadline or lost its thread is restarted with the next.
"""

import asyncio
import math
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

import msgspec

from tidegate.core.errors import ConfigError, DeadlineError, RecordError, UnavailableError
from tidegate.environment.tasks.port import Problem, Score
from tidegate.environment.verifiers.settings import ClassifierSettings
from tidegate.environment.verifiers.texts import filled
from tidegate.runtime.python_program import python_program

CHILD = "tidegate.environment.verifiers.classifier_child"
ANSWER_BYTES_MAX = 1 << 20
# Environment variables that the child receives: no keys or passwords.
_PASSED_ON = ("PATH", "HOME", "LANG", "PYTHONPATH", "LD_LIBRARY_PATH")


class Classifier:
    """Fulfils ``port.Verifier``."""

    def __init__(self, settings: ClassifierSettings) -> None:
        self._settings = settings
        self._turn = asyncio.Lock()
        self._child: Process | None = None

    async def start(self) -> None:
        """Load the model, so that no completion waits for it.

        Raises:
            ConfigError: the folder cannot be loaded, or has no such label.
            DeadlineError: it was not loaded within ``start_deadline_s``.
        """
        async with self._turn:
            await self._alive()

    async def score(self, problem: Problem, completion: str) -> Score:
        """The label's probability or logit; the component ``logit`` is the latter.

        Raises:
            DeadlineError: no answer within ``deadline_s``; the child is restarted.
            UnavailableError: the child died.
            RecordError: the model cannot score this text.
        """
        text = filled(self._settings.text, problem, completion)
        async with self._turn:
            answer = await self._answer(await self._alive(), {"text": text})
        if "logits" not in answer:
            raise RecordError("The classifier could not score a text", why=str(answer.get("error", "")))
        logits: dict[str, float] = answer["logits"]
        label = self._settings.label or next(iter(logits))
        reward = score_of(logits, label, self._settings.output)
        return Score(reward=reward, components={"logit": logits[label]}, log=f"{label} {reward:.3f}")

    async def close(self) -> None:
        """End the child."""
        async with self._turn:
            await self._end()

    async def _alive(self) -> Process:
        if self._child is not None and self._child.returncode is None:
            return self._child
        settings = self._settings
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        self._child = await asyncio.create_subprocess_exec(
            *python_program(CHILD, settings.path),
            stdin=PIPE,
            stdout=PIPE,
            limit=ANSWER_BYTES_MAX,
            env={
                **environment,
                "HF_HUB_OFFLINE": "1",
                "OMP_NUM_THREADS": str(settings.num_threads),
                "TOKENIZERS_PARALLELISM": "false",
            },
            start_new_session=True,  # the worker handles Ctrl-C
        )
        try:
            hello = await _line(self._child, deadline_s=settings.start_deadline_s)
            self._check(hello)
        except BaseException:
            await self._end()
            raise
        return self._child

    def _check(self, hello: dict[str, Any]) -> None:
        settings = self._settings
        if "failed" in hello:
            raise ConfigError(
                f"The classifier in {settings.path} cannot be loaded",
                why=str(hello["failed"]),
                fix="name a folder of a sequence classifier (config, tokenizer, safetensors); install tidegate[llm]",
            )
        labels: list[str] = hello["labels"]
        if settings.label not in labels and (settings.label or len(labels) != 1):
            raise ConfigError(
                f"The classifier in {settings.path} has no label {settings.label!r}",
                fix=f"use one of {labels}",
            )

    async def _answer(self, child: Process, message: dict[str, str]) -> dict[str, Any]:
        assert child.stdin is not None, "the child was started with a pipe"
        try:
            child.stdin.write(msgspec.json.encode(message) + b"\n")
            return await _line(child, deadline_s=self._settings.deadline_s)
        except BaseException:
            # The next caller would read the answer to this.
            await self._end()
            raise

    async def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()


async def _line(child: Process, *, deadline_s: float) -> dict[str, Any]:
    assert child.stdout is not None, "the child was started with a pipe"
    try:
        async with asyncio.timeout(deadline_s):
            line = await child.stdout.readline()
        return msgspec.json.decode(line, type=dict[str, Any])
    except TimeoutError as error:
        raise DeadlineError(f"The classifier did not answer within {deadline_s:g} s") from error
    except (msgspec.DecodeError, ValueError) as error:
        raise UnavailableError("The classifier's process ended", fix="ask again: it is restarted") from error


def score_of(logits: Mapping[str, float], label: str, output: Literal["probability", "logit"]) -> float:
    """A label's logit, or its probability: among all labels by softmax, of a single one by the logistic function."""
    if output == "logit":
        return logits[label]
    others = [logit for name, logit in logits.items() if name != label] or [0.0]
    return 1.0 / (1.0 + sum(math.exp(min(logit - logits[label], 700.0)) for logit in others))
