"""A user's task as the platform calls it: a reward function, or a class with problems, a score, or a conversation.

Used in child processes alone. What a user writes may leave out whatever has an obvious default.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.environment.conversations.episodes import score_of_one_turn
from tidegate.environment.conversations.tools import NO_TOOLS
from tidegate.environment.own_code.own_conversation import OwnConversation
from tidegate.environment.tasks.port import Demonstration, Problem, Split
from tidegate.environment.tasks.splits import repeated, right_answers, split_of
from tidegate.runtime.own_code.loading import load_object
from tidegate.runtime.own_code.references import OwnReference, shown_path

Scoring = Callable[[Problem, str], Any]
_FORMS = "def score(prompt, completion, answer), or a class with a method score(problem, completion)"


class OwnTask:
    """The loaded code of a reference; ``file`` and ``where`` say where its failures are looked for."""

    def __init__(self, found: Any, reference: OwnReference) -> None:
        """``found``: a function, a class that is called with the reference's arguments, or an object.

        Raises:
            ConfigError: nothing of it can score a completion.
        """
        if reference.arguments and not inspect.isclass(found):
            raise ConfigError(
                f"{reference.written} takes no arguments",
                why="workload.env_kwargs are those of a class",
                fix="remove workload.env_kwargs, or name a class",
            )
        self._object: Any = found(**reference.arguments) if inspect.isclass(found) else found
        self._written = reference.written
        self._begin: Any = getattr(self._object, "begin", None)
        method: Any = getattr(self._object, "score", None)
        if callable(method):
            self.call = _scoring(method, reference.written)
        elif callable(self._begin):
            method = self._begin
            self.call: Scoring = lambda problem, completion: score_of_one_turn(
                self.begin(problem, seed=0), completion
            )
        elif callable(self._object):
            method = self._object
            self.call = _scoring(method, reference.written)
        else:
            raise ConfigError(
                f"{reference.written} is no function",
                why=f"it is {type(self._object).__name__} and has no method score or begin",
                fix=f"name {_FORMS}",
            )
        self.file, self.where = _located(method)

    @property
    def is_conversation(self) -> bool:
        """Whether it has episodes of several turns."""
        return callable(self._begin)

    @property
    def is_deterministic(self) -> bool:
        """Whether a replay of an episode always gives the same one; true unless the class says otherwise."""
        return bool(getattr(self._object, "deterministic", True))

    def begin(self, problem: Problem, *, seed: int) -> OwnConversation:
        """An episode about a problem.

        Raises:
            ConfigError: it has none, as it is no conversation.
            BaseException: what the code raised.
        """
        if not self.is_conversation:
            raise ConfigError(
                f"{self._written} has no episodes of several turns",
                why="it has no method begin",
                fix="define begin(problem, seed), or set workload.turns_max to 1",
            )
        keywords = {"tools": NO_TOOLS} if "tools" in inspect.signature(self._begin).parameters else {}
        return OwnConversation(self._begin(problem, seed=seed, **keywords), written=self._written)

    def problems(self, split: Split, *, seed: int) -> Sequence[Problem]:
        """Its problems of a split; where ``problems`` takes no arguments a fifth is held out by digest.

        Raises:
            ConfigError: it has none, or one of them is no problem.
        """
        method: Any = getattr(self._object, "problems", None)
        if not callable(method):
            raise ConfigError(
                f"{self._written} has no prompts",
                why="it is a function, or a class without a method problems",
                fix="set workload.dataset to a file of JSON lines with prompt and answer, or define problems()",
            )
        takes_split = bool(inspect.signature(method).parameters)
        rows: Any = method(split, seed=seed) if takes_split else method()
        if not isinstance(rows, Iterable):
            raise ConfigError(
                f"{self._written}: problems() returned {type(rows).__name__}", fix="return a list"
            )
        problems = [
            self._problem(row, number) for number, row in enumerate(cast("Iterable[Any]", rows), start=1)
        ]
        return problems if takes_split else split_of(problems, split, seed=seed)

    def demonstrations(self, *, seed: int, count: int) -> Sequence[Demonstration]:
        """As ``demonstrations_of``, about its training problems."""
        return self.demonstrations_of(self.problems("train", seed=seed), seed=seed, count=count)

    def demonstrations_of(
        self, problems: Sequence[Problem], *, seed: int, count: int
    ) -> Sequence[Demonstration]:
        """By its method ``demonstrations``, else by ``solution(problem)``, else the answers of problems.

        Raises:
            ConfigError: a solution is neither a text nor a list of turns, or does not end its episode.
        """
        own: Any = getattr(self._object, "demonstrations", None)
        if callable(own):
            return cast("Sequence[Demonstration]", own(seed=seed, count=count))
        solution: Any = getattr(self._object, "solution", None)
        if not callable(solution):
            answered = [each for each in problems if each.answer]
            return right_answers(answered, count=count if answered else 0)
        shown = [self._shown(each, solution(each)) for each in problems[:count]]
        return repeated(shown, count=count if shown else 0)

    def _shown(self, problem: Problem, solution: Any) -> Demonstration:
        turns = _texts_of(solution)
        if not turns:
            raise ConfigError(
                f"{self._written}: solution() returned {str(solution)[:80]!r}",
                fix="return a text, or for several turns the list of their texts",
            )
        if not self.is_conversation:
            return Demonstration(problem.prompt, turns[0])
        episode = self.begin(problem, seed=0)
        replies = [episode.reply(text) for text in turns]
        if not replies[-1].done or any(each.done for each in replies[:-1]):
            raise ConfigError(
                f"{self._written}: the solution of {problem.prompt[:40]!r} does not end its episode",
                why=f"of its {len(turns)} turns the last one, and no other, must be answered by a reward",
                fix="correct solution(problem), or reply(text)",
            )
        return Demonstration(
            episode.opening,
            turns[0],
            tuple(zip([each.observation for each in replies], turns[1:], strict=False)),
        )

    def _problem(self, row: Any, number: int) -> Problem:
        """A row as a problem: a ``Problem``, a mapping with its fields, or a pair of prompt and answer."""
        fields = _fields_of(row)
        if not isinstance(fields.get("prompt"), str):
            raise ConfigError(
                f"{self._written}: problem {number} is {str(row)[:80]!r}",
                fix='return pairs (prompt, answer), or mappings {"prompt": ..., "answer": ...}, of texts',
            )
        given = {"prompt_id": fields["prompt"], "answer": "", "bin": "all", **fields}
        try:
            return msgspec.convert(given, Problem)
        except msgspec.ValidationError as error:
            raise ConfigError(
                f"{self._written}: problem {number} is {str(row)[:80]!r}",
                why=str(error),
                fix="prompt, answer, prompt_id and bin are texts",
            ) from error


def _texts_of(solution: object) -> list[str]:
    """The turns of a solution; none where it is no text and no list of texts."""
    if isinstance(solution, str):
        return [solution]
    turns = list(cast("Sequence[object]", solution)) if isinstance(solution, list | tuple) else []
    texts = [each for each in turns if isinstance(each, str)]
    return texts if len(texts) == len(turns) else []


def _fields_of(row: object) -> dict[str, Any]:
    """The fields that a row gives; none of a value of another type."""
    if isinstance(row, Problem):
        return msgspec.structs.asdict(row)
    if isinstance(row, Mapping):
        return {str(name): value for name, value in cast("Mapping[object, Any]", row).items()}
    pair = cast("Sequence[Any]", row) if isinstance(row, tuple | list) else ()
    return {"prompt": pair[0], "answer": pair[1]} if len(pair) == 2 else {}


def load_task(reference: OwnReference) -> OwnTask:
    """The task of a reference.

    Raises:
        ConfigError: it names nothing that can score.
        BaseException: what the code raised while it was loaded.
    """
    return OwnTask(load_object(reference), reference)


def _scoring(method: Callable[..., Any], written: str) -> Scoring:
    """A method of (problem, completion), or a function of (prompt, completion, answer), as the first.

    Raises:
        ConfigError: it takes neither; the message shows its signature.
    """
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        return functools.partial(_as_function, method)  # of a builtin: the first call shows it
    is_bound = inspect.ismethod(method) or not inspect.isroutine(method)
    forms = (("problem", "completion"), ("prompt", "completion", "answer"))
    for arguments in forms if is_bound else forms[1:]:
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return functools.partial(_as_task if len(arguments) == 2 else _as_function, method)
    name = getattr(method, "__name__", "score")
    raise ConfigError(
        f"{written}{signature} cannot be called as ({', '.join(forms[0] if is_bound else forms[1])})",
        fix=f"define it as def {name}({', '.join(forms[1])})"
        + (" or in a class as def score(self, problem, completion)" if is_bound else ""),
    )


def _as_task(method: Callable[..., Any], problem: Problem, completion: str) -> Any:
    return method(problem, completion)


def _as_function(function: Callable[..., Any], problem: Problem, completion: str) -> Any:
    return function(problem.prompt, completion, problem.answer)


def _located(function: Any) -> tuple[str, str]:
    """The file of a function, and the place of its definition."""
    code: Any = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return "", ""
    return code.co_filename, f"{shown_path(code.co_filename)}:{code.co_firstlineno} in {code.co_name}"
