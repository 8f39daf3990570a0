"""Loads own code: the file or module of a reference is imported, which runs it. Only processes that use it do so."""

import importlib
import importlib.util
import os
import sys
import traceback
from types import FrameType, ModuleType
from typing import Any

from tidegate.core.errors import ConfigError
from tidegate.runtime.library_code import is_library
from tidegate.runtime.own_code.references import OwnReference, nearest_names, search_folders, shown_path

MODULE_PREFIX = "own_code_"


def load_object(reference: OwnReference) -> Any:
    """What a reference names. Modules beside its file, and beside the run file, can be imported by it.

    Raises:
        ConfigError: the name is not in the module.
        BaseException: what the code raised while it was loaded.
    """
    for place in reversed(search_folders(reference.folder)):
        _search(place)
    module = _from_file(reference.source) if reference.is_file else importlib.import_module(reference.source)
    found: Any = module
    for part in reference.attribute.split("."):
        if not hasattr(found, part):
            there = sorted(
                key for key, value in vars(module).items() if callable(value) and not key.startswith("_")
            )
            raise ConfigError(
                f"{reference.written}: {reference.source} has no {part!r}",
                fix=nearest_names(part, there) or "define it",
            )
        found = getattr(found, part)
    return found


def make_importable(folder: str) -> None:
    """Let modules of the run file's folder be imported, after those of all other places; "" is no folder."""
    if folder and folder not in sys.path:
        sys.path.append(folder)
        importlib.invalidate_caches()


def load_own(reference: OwnReference) -> Any:
    """As ``load_object``, for a process that ends its start with a sentence.

    Raises:
        ConfigError: it cannot be loaded; with the file and line of what the code raised.
    """
    try:
        return load_object(reference)
    except ConfigError:
        raise
    except Exception as error:  # own code may raise anything
        raise ConfigError(
            f"{reference.written} cannot be loaded",
            why=described(error, file=reference.source),
            fix="correct it, then start the run again",
        ) from error


def described(error: BaseException, *, file: str) -> str:
    """``ValueError at my_task.py:12 in score: ...``, with the place of ``place_of``."""
    place = place_of(error, file=file)
    message = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())[:300]
    return f"{type(error).__name__}{f' at {place}' if place else ''}: {message or 'no message'}"


def place_of(error: BaseException, *, file: str) -> str:
    """The innermost line of own code in a traceback, else of any; empty without one.

    Own code is what lies in the folder of ``file`` or below, without installed packages; with the name of a module
    instead of a file, all that belongs to no library.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{shown_path(error.filename)}:{error.lineno or 0}"
    frames = list(traceback.walk_tb(error.__traceback__))
    inner = [each for each in reversed(frames) if not each[0].f_code.co_filename.startswith("<frozen")]
    folder = os.path.join(os.path.dirname(file), "")
    named = next((each for each in inner if _is_own(each[0], folder)), inner[0] if inner else None)
    if named is None:
        return ""
    code = named[0].f_code
    return f"{shown_path(code.co_filename)}:{named[1]} in {code.co_name}"


def _is_own(frame: FrameType, folder: str) -> bool:
    path = frame.f_code.co_filename
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return path.startswith(folder) and not is_library(path) and package != "tidegate"


def _search(place: str) -> None:
    if place not in sys.path:
        sys.path.insert(0, place)
        importlib.invalidate_caches()


def _from_file(path: str) -> ModuleType:
    """The module of a file, loaded once in each process, whose folder is searched for the modules beside it."""
    stem = os.path.splitext(os.path.basename(path))[0]
    name = MODULE_PREFIX + stem
    known = sys.modules.get(name)
    if known is not None and known.__file__ == path:
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "a file that ends in .py has a loader"
    assert spec.loader is not None, "it has one"
    module = importlib.util.module_from_spec(spec)
    _search(os.path.dirname(path))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
