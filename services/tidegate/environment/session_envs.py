"""One episode in text form: what a session holds, for every kind of environment.

Two kinds: Gymnasium environments, whose observations and actions are JSON, and conversations, whose are plain text (a
text task is one of a single turn). Gymnasium is imported when the first of its environments is opened, so that a worker
that only scores stays small.
"""

import importlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, cast

import msgspec
import numpy as np

from tidegate.core.errors import NotFoundError, RecordError
from tidegate.core.json_text import NOT_JSON
from tidegate.core.records import Array
from tidegate.environment.conversations.port import Conversation, ToolUse
from tidegate.environment.conversations.registry import CONVERSATIONS
from tidegate.environment.conversations.single_turn import SingleTurn
from tidegate.environment.conversations.tools import NO_TOOLS, Tools
from tidegate.environment.state import AnsweredProblem
from tidegate.environment.tasks.port import Problem, Score, TextTask
from tidegate.environment.tasks.registry import TASKS


class SessionVerdict(msgspec.Struct, frozen=True):
    """How a text episode ended: its problem with the whole exchange as the completion, and its task's score."""

    answer: AnsweredProblem
    score: Score


class StepOutcome(msgspec.Struct, frozen=True):
    """What one step returned.

    ``verdict``: with the last step of a text episode. ``delay_s``: simulated latency of its tools.
    """

    observation: str
    reward: float
    terminated: bool
    truncated: bool
    tools: tuple[ToolUse, ...] = ()
    verdict: SessionVerdict | None = None
    delay_s: float = 0.0


class SessionEnv(Protocol):
    """An environment that speaks text. Calls may block: they run in a thread, one at a time."""

    @property
    def deterministic(self) -> bool:
        """Whether the same seed, problem and actions give the same episode."""
        ...

    def reset(self, *, seed: int, problem: Problem | None) -> str:
        """Begin the episode; the first observation.

        Raises:
            RecordError: the problem is none of this environment's.
        """
        ...

    def step(self, action: str) -> StepOutcome:
        """One step.

        Raises:
            RecordError: the text is no action of this environment.
        """
        ...

    def close(self) -> None:
        """Release what the environment holds."""
        ...


def parse_action(text: str) -> Any:
    """JSON text as plain values.

    Raises:
        RecordError: the text is no JSON.
    """
    try:
        return msgspec.json.decode(text)
    except NOT_JSON as error:
        raise RecordError(
            f"The action {text[:80]!r} is no JSON",
            why=str(error),
            fix='send JSON, such as 1 or [0.5] or "085"',
        ) from error


def to_plain(value: Any) -> Any:
    """An observation with arrays and NumPy numbers as lists and numbers."""
    if isinstance(value, np.ndarray):
        return cast("Array", value).tolist()
    if isinstance(value, np.generic):
        return cast("Any", value).item()
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in cast("list[Any]", value)]
    return value


def to_json(observation: Any) -> str:
    """An observation as JSON text."""
    return msgspec.json.encode(to_plain(observation)).decode()


def to_action(space: Any, value: Any) -> Any:
    """A plain JSON value as a member of a Gymnasium space.

    Raises:
        RecordError: the value is no member of ``space``.
    """
    action = _shaped(space, value)
    if not space.contains(action):
        raise RecordError(
            f"The action {str(value)[:80]} is not in {space}", fix="send a member of the action space"
        )
    return action


def _shaped(space: Any, value: Any) -> Any:
    """``value`` with the container and dtype that ``space`` expects; membership is checked by the caller."""
    parts: Any = getattr(space, "spaces", None)
    if isinstance(parts, Mapping) and isinstance(value, dict):
        given = cast("dict[str, Any]", value)
        return {
            name: _shaped(part, given.get(name)) for name, part in cast("Mapping[str, Any]", parts).items()
        }
    if isinstance(value, bool):
        raise RecordError(f"The action {value} is not in {space}", why="JSON's true and false are no numbers")
    if not isinstance(value, list):
        return value
    items = cast("list[Any]", value)
    if isinstance(parts, tuple):
        members = cast("tuple[Any, ...]", parts)
        if len(items) != len(members):
            raise RecordError(f"The action has {len(items)} parts", why=f"{space} has {len(members)}")
        return tuple(_shaped(part, item) for part, item in zip(members, items, strict=True))
    try:
        array: Array = np.asarray(items, dtype=space.dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise RecordError(f"The action {str(items)[:80]} is no array for {space}", why=str(error)) from error
    return array


class GymnasiumEnv:
    """A Gymnasium environment behind JSON."""

    def __init__(self, env_id: str) -> None:
        """Make the environment.

        Raises:
            NotFoundError: Gymnasium knows no such environment, or a package that it needs is not installed.
        """
        gymnasium: Any = importlib.import_module("gymnasium")
        try:
            self._env: Any = gymnasium.make(env_id)
        except (gymnasium.error.Error, ImportError) as error:
            raise NotFoundError(
                f"Environment {env_id!r} cannot be made",
                why=str(error),
                fix="name one of Gymnasium's environments, such as CartPole-v1, or a text task",
            ) from error

    @property
    def deterministic(self) -> bool:
        """Whether the same actions give the same episode: Gymnasium requires it of every environment."""
        return True

    def reset(self, *, seed: int, problem: Problem | None) -> str:
        """Start an episode; the first observation as JSON text. The seed defines the episode: there are no problems."""
        del problem
        observation, _info = self._env.reset(seed=seed)
        return to_json(observation)

    def step(self, action: str) -> StepOutcome:
        """One step.

        Raises:
            RecordError: the text is no action of this environment.
        """
        member = to_action(self._env.action_space, parse_action(action))
        observation, reward, terminated, truncated, _info = self._env.step(member)
        return StepOutcome(to_json(observation), float(reward), bool(terminated), bool(truncated))

    def close(self) -> None:
        """Release what the environment holds."""
        self._env.close()


class Episodes(Protocol):
    """What begins the episodes of a text task."""

    @property
    def deterministic(self) -> bool:
        """Whether the same seed, problem and turns give the same episode."""
        ...

    def problem(self, seed: int) -> Problem:
        """The training problem that belongs to a seed.

        Raises:
            RecordError: this task has no problems without a dataset.
        """
        ...

    def begin(self, problem: Problem, seed: int) -> Conversation:
        """An episode."""
        ...

    def end(self, episode: Conversation) -> None:
        """Release what an episode holds."""
        ...


class PackageEpisodes:
    """Of a task of this package: a conversation, or a text task as a conversation of one turn."""

    def __init__(self, env_id: str, tools: Tools) -> None:
        """``env_id`` names a text task; ``tools`` are those of its conversations."""
        self._tools = tools
        self._task: TextTask = TASKS[env_id]
        self._dialogue = CONVERSATIONS.get(env_id)

    @property
    def deterministic(self) -> bool:
        """Defined by the conversation."""
        return self._dialogue is None or self._dialogue.deterministic

    def problem(self, seed: int) -> Problem:
        """The first of the problems as the seed orders them."""
        return self._task.problems("train", seed=seed)[0]

    def begin(self, problem: Problem, seed: int) -> Conversation:
        """An episode about ``problem``."""
        if self._dialogue is None:
            return SingleTurn(self._task, problem)
        return self._dialogue.begin(problem, seed=seed, tools=self._tools)

    def end(self, episode: Conversation) -> None:
        """Nothing to release."""


class TextEnv:
    """Episodes of a text task."""

    def __init__(self, episodes: Episodes) -> None:
        """``episodes``: begins them."""
        self._episodes = episodes
        self._episode: Conversation | None = None
        self._problem = Problem("", "", "", "")
        self._exchange: list[str] = []

    @property
    def deterministic(self) -> bool:
        """Whether the same actions give the same episode."""
        return self._episodes.deterministic

    def reset(self, *, seed: int, problem: Problem | None) -> str:
        """Begin an episode about ``problem``, or about the training problem that belongs to ``seed``; its opening."""
        self._problem = problem or self._episodes.problem(seed)
        self._episode = self._episodes.begin(self._problem, seed)
        self._exchange = []
        return self._episode.opening

    def step(self, action: str) -> StepOutcome:
        """One turn of the policy and the reply to it."""
        assert self._episode is not None, "a session starts with reset"
        turn = self._episode.reply(action)
        self._exchange.append(action)
        verdict = None
        if turn.score is not None:
            verdict = SessionVerdict(AnsweredProblem(self._problem, "\n".join(self._exchange)), turn.score)
        self._exchange.append(turn.observation)
        return StepOutcome(
            turn.observation,
            0.0 if turn.score is None else turn.score.reward,
            terminated=turn.done and not turn.truncated,
            truncated=turn.done and turn.truncated,
            tools=turn.tools,
            verdict=verdict,
            delay_s=turn.delay_s,
        )

    def close(self) -> None:
        """End the episode."""
        if self._episode is not None:
            self._episodes.end(self._episode)


def make_session_env(
    env_id: str,
    *,
    allowed_modules: Sequence[str],
    tools: Tools = NO_TOOLS,
    own: Mapping[str, Episodes] = MappingProxyType({}),
) -> SessionEnv:
    """A text task by its name, or one of Gymnasium's environments.

    ``allowed_modules`` names the environments outside of Gymnasium's registry that a call may open; ``tools`` is what
    conversations are given; ``own``: the run's own conversation by its name.

    Raises:
        NotFoundError: there is no such environment, or it would import a module that is not allowed.
    """
    if env_id in own:
        return TextEnv(own[env_id])
    if env_id in TASKS:
        return TextEnv(PackageEpisodes(env_id, tools))
    if ":" in env_id and env_id not in allowed_modules:
        raise NotFoundError(
            f"Environment {env_id[:64]!r} may not be opened by a call",
            why="its name would import a module",
            fix="list it under environment.session_envs in the run file",
        )
    return GymnasiumEnv(env_id)
