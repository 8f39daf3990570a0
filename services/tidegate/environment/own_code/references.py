"""References to a user's code, ``my_task.py:score`` or ``my_pkg.rewards:score``, and the function behind one.

Loading runs the user's code, so only the child process does it.
"""

import functools
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.environment.judgements import shown_path
from tidegate.environment.tasks.port import Problem

Scoring = Callable[[Problem, str], Any]
MODULE_PREFIX = "own_code_"


class OwnFunction(msgspec.Struct, frozen=True):
    """A function that scores, the file that its failures are looked for in, and where it is defined."""

    call: Scoring
    file: str
    where: str


def split_reference(reference: str) -> tuple[str, str]:
    """A reference as its file or module, and the dotted name in it.

    Raises:
        ConfigError: it is none.
    """
    source, colon, name = reference.rpartition(":")
    if not colon or not source or not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(
            f"{reference[:200]!r} names no function",
            fix="write file and function as my_task.py:score, or module and function as my_package.rewards:score",
        )
    return source, name


def absolute_file(reference: str) -> str:
    """The path of a reference's file, as frames of its code name it; of a module, a path that no frame has."""
    return os.path.abspath(reference.rpartition(":")[0])


def load(reference: str) -> OwnFunction:
    """The function of a reference, ready to be called with a problem and a completion.

    A function takes ``(prompt, completion, answer)``; an object, or a class without arguments, with a method ``score``
    takes ``(problem, completion)`` there, as the tasks of this package do.

    Raises:
        ConfigError: it names nothing that can score.
        BaseException: what the code raised while it was loaded.
    """
    source, name = split_reference(reference)
    module = _from_file(source) if source.endswith(".py") else importlib.import_module(source)
    found = _attribute(module, name, reference)
    if inspect.isclass(found):
        found = found()
    method: Any = getattr(found, "score", None)
    if callable(method):
        _check_takes(method, ("problem", "completion"), reference)
        return _located(method, functools.partial(_as_task, method))
    if not callable(found):
        raise ConfigError(
            f"{reference} is no function",
            why=f"it is {type(found).__name__}",
            fix="name a function, or a class with a method score",
        )
    _check_takes(found, ("prompt", "completion", "answer"), reference)
    return _located(found, functools.partial(_as_function, found))


def _as_task(method: Callable[..., Any], problem: Problem, completion: str) -> Any:
    return method(problem, completion)


def _as_function(function: Callable[..., Any], problem: Problem, completion: str) -> Any:
    return function(problem.prompt, completion, problem.answer)


def _from_file(path: str) -> ModuleType:
    """The module of a file, whose folder is searched for the modules beside it."""
    absolute = os.path.abspath(path)
    stem = os.path.splitext(os.path.basename(absolute))[0]
    if not os.path.isfile(absolute):
        raise ConfigError(
            f"There is no file {path}",
            why=f"it was looked for at {absolute}",
            fix="name a file that each worker has",
        )
    spec = importlib.util.spec_from_file_location(MODULE_PREFIX + stem, absolute)
    assert spec is not None, "a file that ends in .py has a loader"
    assert spec.loader is not None, "it has one"
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, os.path.dirname(absolute))
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _attribute(module: ModuleType, name: str, reference: str) -> Any:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            there = sorted(
                key for key, value in vars(module).items() if callable(value) and not key.startswith("_")
            )
            raise ConfigError(
                f"{reference} has no {part!r}",
                fix=f"name one of: {', '.join(there)[:300]}" if there else "define it",
            )
        found = getattr(found, part)
    return found


def _check_takes(function: Callable[..., Any], arguments: tuple[str, ...], reference: str) -> None:
    """Whether a function can be called with so many arguments by position.

    Raises:
        ConfigError: it cannot; the message shows both signatures.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # of a builtin: the first call shows it
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise ConfigError(
            f"{reference}{signature} cannot be called as ({', '.join(arguments)})",
            why=str(error),
            fix=f"define it as def {function.__name__}({', '.join(arguments)})",
        ) from error


def _located(function: Callable[..., Any], call: Scoring) -> OwnFunction:
    target: Any = inspect.unwrap(function)
    code: Any = getattr(target, "__code__", None)
    if code is None:
        return OwnFunction(call, "", "")
    where = f"{shown_path(code.co_filename)}:{code.co_firstlineno} in {code.co_name}"
    return OwnFunction(call, code.co_filename, where)
