"""An OpenEnv server as a task: its seeds are the problems, its sessions the episodes, its rewards the verdict."""

import itertools
import os
from typing import Any, cast

import msgspec

from tidegate.core.errors import ConfigError, RecordError, TidegateError, UnavailableError
from tidegate.environment.conversations.port import ConversationTurn
from tidegate.environment.libraries.action_texts import ActionReader, NoActionError
from tidegate.environment.libraries.openenv_session import OpenEnvFaultError, OpenEnvServer, OpenEnvSession
from tidegate.environment.libraries.openenv_settings import OpenEnvSettings
from tidegate.environment.tasks.port import Problem, Score

_PROBLEM = "seed-"
# Not of the observation itself, in servers that repeat them there.
_NOT_OBSERVED = frozenset({"metadata", "done", "reward"})


class OpenEnvTask:
    """As own code: ``problems`` and ``begin``."""

    # Its servers may draw without the seed, and tools of theirs may answer otherwise.
    deterministic = False

    def __init__(self, **settings: Any) -> None:
        """``settings``: the fields of ``OpenEnvSettings``. Connects to nothing."""
        self._settings = msgspec.convert(settings, OpenEnvSettings)
        token = os.environ.get(self._settings.token_env, "") if self._settings.token_env else ""
        self._servers = [
            OpenEnvServer(
                url,
                deadline_s=self._settings.deadline_s,
                bytes_max=self._settings.message_bytes_max,
                token=token,
            )
            for url in (self._settings.url, *self._settings.servers)
        ]
        self._turn = itertools.count()
        self._reader: ActionReader | None = None

    def problems(self) -> list[dict[str, str]]:
        """The seeds, once all servers were reached: a start without one says so.

        Raises:
            ConfigError: one of them does not answer, or does not fit the settings.
        """
        try:
            for server in self._servers:
                self._reader = self._reader_of(server)
        except TidegateError as error:
            raise ConfigError(error.what, why=error.why, fix=error.fix) from error
        first = self._settings.first_seed
        return [
            {"prompt_id": f"{_PROBLEM}{seed}", "prompt": f"seed {seed}"}
            for seed in range(first, first + self._settings.seeds)
        ]

    def begin(self, problem: Problem, seed: int) -> "OpenEnvEpisode":
        """An episode with the seed of its problem; ``seed`` itself differs between starts of a run, not samples.

        Raises:
            RecordError: the problem is none of a server.
            TidegateError: as ``OpenEnvSession.ask``, of the last server that was tried.
        """
        digits = problem.prompt_id.removeprefix(_PROBLEM)
        chosen = int(digits) if digits.isdecimal() else seed
        first = next(self._turn)
        failure = UnavailableError("No OpenEnv server was tried")
        for number in range(len(self._servers)):
            try:
                return self._begin_at(self._servers[(first + number) % len(self._servers)], seed=chosen)
            except UnavailableError as error:
                failure = error
        raise failure

    def _begin_at(self, server: OpenEnvServer, *, seed: int) -> "OpenEnvEpisode":
        if self._reader is None:
            self._reader = self._reader_of(server)
        session = server.open()
        try:
            answer = session.ask("reset", {"seed": seed, **self._settings.reset})
        except BaseException:
            session.close()
            raise
        return OpenEnvEpisode(session, self._reader, self._settings, answer)

    def _reader_of(self, server: OpenEnvServer) -> ActionReader:
        settings = self._settings
        return ActionReader(
            server.schema(), field=settings.action, fixed=settings.fixed, pattern=settings.pattern
        )


class OpenEnvEpisode:
    """A session that was reset. An end by the server, or of the turns, is the verdict."""

    def __init__(
        self,
        session: OpenEnvSession,
        actions: ActionReader,
        settings: OpenEnvSettings,
        answer: dict[str, Any],
    ) -> None:
        """``answer``: to ``reset``."""
        self._session = session
        self._actions = actions
        self._settings = settings
        self._rewards: list[float] = []
        self._num_turns = 0
        self.opening = "\n".join(filter(None, (settings.instructions, self._observed(answer))))

    def reply(self, text: str) -> ConversationTurn:
        """Take a turn. A text that is no action is answered by what an action is, and takes a turn.

        Raises:
            TidegateError: as ``OpenEnvSession.ask``.
        """
        self._num_turns += 1
        done = False
        try:
            answer = self._session.ask("step", self._actions.read(text))
        except NoActionError as error:
            observation = f"invalid action: {error}"
        except OpenEnvFaultError as error:
            if error.code != "VALIDATION_ERROR" and self._settings.on_error == "fail":
                raise
            observation = f"invalid action: {error.message}"
        else:
            done = answer.get("done") is True
            self._rewards.append(_number(answer.get("reward")))
            observation = self._observed(answer)
        is_last = self._num_turns >= self._settings.turns_max
        score = self._score() if done or is_last else None
        return ConversationTurn(observation, score=score, truncated=score is not None and not done)

    def close(self) -> None:
        """Free the server's slot."""
        self._session.close()

    def _score(self) -> Score:
        rewards = self._rewards or [0.0]
        value = sum(rewards) if self._settings.reward == "sum" else rewards[-1]
        components = {"sum": sum(rewards), "last": rewards[-1], "steps": float(len(self._rewards))}
        return Score(value, components, "")

    def _observed(self, answer: dict[str, Any]) -> str:
        """What the policy reads of an answer.

        Raises:
            RecordError: a field that the run file names is not there.
        """
        found = answer.get("observation")
        fields = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
        wanted = self._settings.observation
        if missing := next((name for name in wanted if name not in fields), None):
            raise RecordError(
                f"The observation of {self._settings.url} has no field {missing!r}",
                why=f"it has {', '.join(fields) or 'none'}"[:300],
                fix="correct workload.env_kwargs.observation",
            )
        if wanted:
            return "\n".join(_text(fields[name]) for name in wanted if fields[name] is not None)
        shown = {
            name: value for name, value in fields.items() if name not in _NOT_OBSERVED and value is not None
        }
        return _text(next(iter(shown.values())) if len(shown) == 1 else shown) if shown else ""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _number(value: Any) -> float:
    return float(value) if isinstance(value, bool | int | float) else 0.0
