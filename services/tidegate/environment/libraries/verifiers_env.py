"""An environment of `verifiers`, unmodified: its dataset, and its episodes against any OpenAI-compatible address.

Only here the library is called. Used in processes that hold nothing of the platform: the child that writes the prompts
of a run, and the worker that plays its episodes.
"""

import asyncio
import importlib
import math
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from typing import Any, TypeVar, cast

import msgspec

from tidegate.core.errors import ConfigError, RecordError
from tidegate.environment.libraries.verifiers_settings import EpisodeVerdict, Seat, VerifiersSettings
from tidegate.runtime.own_code.loading import described

T = TypeVar("T")

# A gateway's bounds of a posted reward.
COMPONENTS_MAX = 64
LOG_CHARS_MAX = 2000
# Of an environment, as far as it is called here.
INTERFACE = ("build_dataset", "build_eval_dataset", "run_rollout", "rollout", "rubric", "sampling_args")
NEEDED = "pip install 'verifiers>=0.1.14,<0.3'"


class VerifiersEnv:
    """One loaded environment. Its datasets are kept in memory, as the library does."""

    def __init__(self, settings: VerifiersSettings) -> None:
        """Load it, which runs its package's code.

        Raises:
            ConfigError: the installed release has another interface, or the environment cannot be loaded or played so.
        """
        library: Any = importlib.import_module("verifiers")
        load: Any = getattr(library, "load_environment", None)
        if load is None:
            raise ConfigError(
                f"verifiers {version('verifiers')} has no load_environment",
                why="its releases from 0.3 on have other environments, in verifiers.v1",
                fix=NEEDED,
            )
        try:
            self._env: Any = load(settings.id, **settings.arguments)
        except Exception as error:  # the environment's package may raise anything, which the library wraps
            first = _first(error)
            raise ConfigError(
                f"verifiers cannot load {settings.id}",
                why=described(first, file=""),
                fix="install what it needs into this Python, or correct workload.env_kwargs",
            ) from error
        if missing := [name for name in INTERFACE if not hasattr(self._env, name)]:
            kind = type(self._env).__name__
            raise ConfigError(
                f"{settings.id} is no environment of verifiers",
                why=f"its load_environment returned a {kind}, which has no {' and no '.join(missing)}",
                fix="name one that is, or call it from an environment of your own: docs/own_environment.md",
            )
        self.scores_groups = _scores_groups(self._env)
        if self.scores_groups and hasattr(self._env, "harness"):
            raise ConfigError(
                f"{settings.id} scores groups of episodes in its harness",
                why="it begins and ends a group by itself, with one client for all of its episodes",
                fix="name an environment whose rubric scores the group",
            )
        self._rows: dict[str, Any] = {}

    def rows(self, split: str) -> list[dict[str, Any]]:
        """The rows of ``train`` or ``eval`` in their order; none where the environment has no such dataset."""
        if split not in self._rows:
            env = self._env
            dataset: Any = env.build_dataset() if split == "train" else env.build_eval_dataset()
            self._rows[split] = [] if dataset is None else list(dataset)
        return cast("list[dict[str, Any]]", self._rows[split])

    async def play(self, row: Mapping[str, Any], seat: Seat, *, model: str) -> EpisodeVerdict:
        """An episode of a row, with the library's own client, and the verdict of its rubric.

        Raises:
            RecordError: the environment reports an error, or its reward is no number.
            BaseException: what the environment raised.
        """
        if self.scores_groups:
            [verdict] = await self.play_group(row, [seat], model=model, play_s=math.inf)
            if isinstance(verdict, BaseException):
                raise verdict
            return verdict
        async with _client_of(seat) as client:
            output: Any = await self._env.run_rollout(dict(row), client, model, self._sampling())
        return played_of(cast("Mapping[str, Any]", output))

    async def play_group(
        self, row: Mapping[str, Any], seats: Sequence[Seat], *, model: str, play_s: float
    ) -> list[EpisodeVerdict | BaseException]:
        """An episode of a row at each seat, and the verdicts of the rubric on all of them together, in their order.

        The rubric gets those that ended. One that raised, or that has not ended after ``play_s`` seconds, is not among
        them, and has its error as verdict, as has one of which the environment reports an error.

        Raises:
            BaseException: what the rubric raised, or the first error where no episode ended.
        """
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(_client_of(seat)) for seat in seats]
            ended = await _all_within(
                [self._env.rollout(dict(row), client, model, self._sampling()) for client in clients],
                timeout_s=play_s,
            )
            states = [each for each in ended if not isinstance(each, BaseException)]
            if not states:
                raise next(each for each in ended if isinstance(each, BaseException))
            await self._env.rubric.score_group(states)
            for state in states:
                await self._env.rubric.cleanup(state)
        return [each if isinstance(each, BaseException) else _verdict_of(each) for each in ended]

    async def play_each(
        self, row: Mapping[str, Any], seats: Sequence[Seat], *, model: str, play_s: float
    ) -> list[EpisodeVerdict | BaseException]:
        """The same where the rubric judges each episode by itself."""
        works = [self.play(row, seat, model=model) for seat in seats]
        return await _all_within(works, timeout_s=play_s)

    def _sampling(self) -> dict[str, Any]:
        return dict(self._env.sampling_args)


@asynccontextmanager
async def _client_of(seat: Seat) -> AsyncGenerator[Any]:
    """The library's own client of an address."""
    openai: Any = importlib.import_module("openai")
    clients: Any = importlib.import_module("verifiers.clients")
    async with openai.AsyncOpenAI(base_url=seat.base_url, api_key=seat.api_key) as caller:
        yield clients.OpenAIChatCompletionsClient(caller)


async def _all_within(
    works: Sequence[Coroutine[Any, Any, T]], *, timeout_s: float
) -> list[T | BaseException]:
    """Results and errors in order; a work that has not ended in time is cancelled, and its error is a TimeoutError."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.wait(tasks, timeout=None if math.isinf(timeout_s) else timeout_s)
        late = [not task.done() for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    return [
        TimeoutError(f"it has not ended after {timeout_s:.3g} s") if is_late else result
        for is_late, result in zip(late, results, strict=True)
    ]


def _verdict_of(state: Mapping[str, Any]) -> EpisodeVerdict | RecordError:
    """The verdict of an episode that a rubric scored, or what is wrong with it."""
    try:
        return played_of(state)
    except RecordError as error:
        return error


def _scores_groups(env: Any) -> bool:
    """Whether a rubric compares episodes: the environment's own, or one of those that it is made of."""
    parts: Any = getattr(env, "envs", None)
    return bool(getattr(env, "requires_group_rollouts", False)) or (
        isinstance(parts, (list, tuple)) and any(map(_scores_groups, cast("Sequence[Any]", parts)))
    )


def played_of(output: Mapping[str, Any]) -> EpisodeVerdict:
    """The verdict in a rollout's output; its metrics are the components.

    Raises:
        RecordError: it holds an error, or its reward is no number.
    """
    if error := output.get("error"):
        raise RecordError("The environment reports an error", why=str(error)[:LOG_CHARS_MAX])
    reward = _finite(output.get("reward"))
    if reward is None:
        raise RecordError(
            "The environment's reward is no number", why=f"it is {output.get('reward')!r}"[:200]
        )
    metrics = cast("Mapping[str, Any]", output.get("metrics") or {})
    numbers = {str(name): number for name, each in metrics.items() if (number := _finite(each)) is not None}
    kept = dict(list(numbers.items())[:COMPONENTS_MAX])
    return EpisodeVerdict(reward, kept, str(output.get("stop_condition") or "")[:LOG_CHARS_MAX])


def _first(error: BaseException) -> BaseException:
    """What an error was raised from, at the beginning."""
    for _ in range(16):
        if error.__cause__ is None:
            break
        error = error.__cause__
    return error


def text_of(prompt: Any) -> str:
    """A row's prompt as a run keeps it: the JSON of its messages, or the text alone."""
    if isinstance(prompt, str):
        return prompt
    messages = [_message(each) for each in cast("Sequence[Any]", prompt)]
    return msgspec.json.encode(messages).decode()


def _message(message: Any) -> dict[str, Any]:
    fields = cast("Mapping[str, Any]", message if isinstance(message, Mapping) else message.model_dump())
    return {name: value for name, value in fields.items() if value is not None}


def _finite(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
