"""An environment of `verifiers`, unmodified: its dataset, and its episodes against any OpenAI-compatible address.

Only here the library is called. Used in processes that hold nothing of the platform: the child that writes the prompts
of a run, and the worker that plays its episodes.
"""

import importlib
import math
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, cast

import msgspec

from tidegate.core.errors import ConfigError, RecordError
from tidegate.environment.libraries.verifiers_settings import EpisodeVerdict, VerifiersSettings
from tidegate.runtime.own_code.loading import described

# A gateway's bounds of a posted reward.
COMPONENTS_MAX = 64
LOG_CHARS_MAX = 2000
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
        self._id = settings.id
        if getattr(self._env, "requires_group_rollouts", False):
            raise ConfigError(
                f"The rubric of {settings.id} scores groups of episodes",
                why="each episode of a run is scored when it ends",
                fix="name an environment that scores single episodes",
            )
        self._rows: dict[str, Any] = {}

    def rows(self, split: str) -> list[dict[str, Any]]:
        """The rows of ``train`` or ``eval`` in their order; none where the environment has no such dataset."""
        if split not in self._rows:
            env = self._env
            dataset: Any = env.build_dataset() if split == "train" else env.build_eval_dataset()
            self._rows[split] = [] if dataset is None else list(dataset)
        return cast("list[dict[str, Any]]", self._rows[split])

    async def play(
        self, row: Mapping[str, Any], *, base_url: str, api_key: str, model: str
    ) -> EpisodeVerdict:
        """An episode of a row, with the library's own client, and the verdict of its rubric.

        Raises:
            RecordError: the environment reports an error, or its reward is no number.
            BaseException: what the environment raised.
        """
        openai: Any = importlib.import_module("openai")
        clients: Any = importlib.import_module("verifiers.clients")
        async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as caller:
            output: Any = await self._env.run_rollout(
                dict(row), clients.OpenAIChatCompletionsClient(caller), model, dict(self._env.sampling_args)
            )
        return played_of(cast("Mapping[str, Any]", output))


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
