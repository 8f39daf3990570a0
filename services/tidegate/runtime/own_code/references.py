"""Names of own code in a run file: what each form means, and where it is found. Nothing is imported or run here.

Three forms, the same for tasks, rewards, verifiers, conversations, objectives, curricula,
callbacks and policies:

- ``my_task.py:Reverse``: a file, from the folder of the run file, else from the one in which the run was started;
- ``my_package.tasks:Reverse``: a module beside the run file, or of an installed package;
- ``reverse``: a name that an installed package registered as an entry point of the group ``tidegate.tasks`` (or
  ``tidegate.objectives``, ...).
"""

import ast
import difflib
import os
from collections.abc import Iterable, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Literal

import msgspec

from tidegate.core.errors import ConfigError

# What own code may be: the group of entry points is ``tidegate.`` and this.
Kind = Literal["tasks", "verifiers", "objectives", "curricula", "callbacks", "policies", "engines"]
_NAMES_SHOWN = 12


class OwnReference(msgspec.Struct, frozen=True):
    """One piece of own code: as the run file names it, and where it is.

    ``source``: the path of a file, or the name of a module; ``attribute``: the dotted name in it. ``folder``: of the
    run file; modules are looked for there too. ``arguments``: by name, of a class that it names.
    """

    written: str
    source: str
    attribute: str
    folder: str = ""
    arguments: dict[str, Any] = {}

    @property
    def is_file(self) -> bool:
        """Whether ``source`` is a path."""
        return self.source.endswith(".py")


def split_reference(reference: str) -> tuple[str, str]:
    """A reference as its file or module, and the dotted name in it.

    Raises:
        ConfigError: it is none.
    """
    source, colon, name = reference.rpartition(":")
    if not colon or not source or not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(
            f"{reference[:200]!r} names no code",
            fix="write file and name as my_task.py:Reverse, or module and name as my_package.tasks:Reverse",
        )
    return source, name


def is_reference(name: str) -> bool:
    """Whether a name has the form of a file or a module with a name in it."""
    return ":" in name


def resolve(name: str, *, kind: Kind, folder: str, known: Iterable[str] = ()) -> OwnReference:
    """Where the code of a name is. ``folder``: of the run file; ``known``: names of this package, for the error.

    Files are parsed to see that the name is defined; modules are looked for and not imported.

    Raises:
        ConfigError: there is no such file, module, entry point or definition; it says what was looked for, and where.
    """
    if not is_reference(name):
        return _registered(name, kind=kind, known=known)
    source, attribute = split_reference(name)
    if source.endswith(".py"):
        path = find_file(source, folder=folder)
        _check_defines(path, attribute, written=name)
        return OwnReference(name, str(path), attribute, folder)
    _check_module(source, folder=folder, written=name)
    return OwnReference(name, source, attribute, folder)


def find_file(path: str, *, folder: str) -> Path:
    """The file of a relative path: beside the run file, else below the working directory.

    Raises:
        ConfigError: it is at neither place.
    """
    places = [Path(os.path.abspath(os.path.join(base, path))) for base in search_folders(folder)]
    for place in places:
        if place.is_file():
            return place
    parent = places[0].parent
    beside = sorted(each.name for each in parent.glob("*.py")) if parent.is_dir() else []
    close = difflib.get_close_matches(places[0].name, beside, n=3, cutoff=0.5) or beside[:_NAMES_SHOWN]
    raise ConfigError(
        f"There is no file {path}",
        why=f"it was looked for at {' and at '.join(map(str, places))}",
        fix=f"name one that is there: {', '.join(close)}" if close else "put it beside the run file",
    )


def find_path(path: str, *, folder: str) -> Path:
    """A file or folder beside the run file, else where a path leads from the working directory; ``~`` is home."""
    path = os.path.expanduser(path)
    beside = Path(folder) / path
    return beside if folder and beside.exists() else Path(path)


def search_folders(folder: str) -> list[str]:
    """Where own code is looked for, in this order: the folder of the run file, and the working directory."""
    return list(dict.fromkeys((os.path.abspath(folder or os.curdir), os.getcwd())))


_shown_from = ""


def keep_shown_folder() -> None:
    """Let ``shown_path`` go on from this working directory, also where own code changes it."""
    global _shown_from
    _shown_from = os.getcwd()


def shown_path(file: str) -> str:
    """A path as a person reads it: relative below the working directory, else as it is."""
    try:
        relative = os.path.relpath(file, _shown_from or None)
    except (OSError, ValueError):  # the working directory was deleted
        return file
    return file if relative.startswith(os.pardir) else relative


def defined_names(path: Path) -> list[str]:
    """Names that the top level of a file defines or imports, in its order.

    Raises:
        ConfigError: it cannot be read, or is no Python; the message names the line.
    """
    return list(dict.fromkeys(name for node in parsed(path).body for name in _bound_by(node)))


def parsed(path: Path) -> ast.Module:
    """The syntax of a file.

    Raises:
        ConfigError: it cannot be read, or is no Python; the message names the line.
    """
    try:
        return ast.parse(path.read_bytes(), filename=str(path))
    except SyntaxError as error:
        raise ConfigError(
            f"{shown_path(str(path))} is no Python",
            why=f"SyntaxError at {shown_path(str(path))}:{error.lineno or 0}: {error.msg}",
            fix="correct the line",
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read", why=str(error)) from error


def _bound_by(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.Import(names=names):
            return [each.asname or each.name.partition(".")[0] for each in names]
        case ast.ImportFrom(names=names):
            return [each.asname or each.name for each in names]
        case ast.If() | ast.Try() | ast.With():
            return [
                name
                for each in ast.iter_child_nodes(node)
                if isinstance(each, ast.stmt)
                for name in _bound_by(each)
            ]
        case _:
            return []


def _check_defines(path: Path, attribute: str, *, written: str) -> None:
    names = defined_names(path)
    first = attribute.partition(".")[0]
    if first in names or "*" in names:
        return
    raise ConfigError(
        f"{written}: {path} defines no {first!r}",
        fix=nearest_names(first, [name for name in names if not name.startswith("_")]) or "define it there",
    )


def _check_module(module: str, *, folder: str, written: str) -> None:
    top = module.partition(".")[0]
    if PathFinder.find_spec(top, search_folders(folder)) is None and PathFinder.find_spec(top) is None:
        raise ConfigError(
            f"{written} names the module {top}, which there is not",
            why=f"it is neither in {' nor in '.join(search_folders(folder))} nor an installed package",
            fix="correct the name, install its package, or name a file: my_task.py:Reverse",
        )


def _registered(name: str, *, kind: Kind, known: Iterable[str]) -> OwnReference:
    from importlib.metadata import entry_points  # 20 ms that runs without registered code save

    group = f"tidegate.{kind}"
    points = entry_points(group=group)
    found = sorted({each.value for each in points if each.name == name})
    if len(found) > 1:
        raise ConfigError(
            f"{name!r} among the {kind} is the name of several",
            why=f"installed packages register it as {' and as '.join(found)}",
            fix=f"write the one that is meant instead of the name: {found[0]}",
        )
    if found:
        source, attribute = split_reference(found[0])
        return OwnReference(name, source, attribute)
    names = sorted({*known, *(each.name for each in points)})
    raise ConfigError(
        f"There is no {name[:64]!r} among the {kind}",
        why=f"no installed package registers it as an entry point of the group {group}",
        fix=f"{nearest_names(name, names) or 'register it'}, or name a file: my_code.py:{_example(name)}",
    )


def _example(name: str) -> str:
    return name if name.isidentifier() else "name"


def nearest_names(name: str, names: Sequence[str]) -> str:
    """``name one of: ...``: the closest names, else the first ones; empty where there are none."""
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.6) or list(names)[:_NAMES_SHOWN]
    return f"name one of: {', '.join(close)}" if close else ""
