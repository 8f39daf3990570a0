"""What own code consists of: the file of a reference and the files beside it that it imports, each by its digest.

Imports are read from the files, not followed by running them, so those that code makes by a computed name are not seen,
nor is what it reads besides: data belongs into ``workload.dataset``. Installed packages are not part of it.
"""

import ast
import hashlib
import os
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from tidegate.runtime.own_code.references import OwnReference, parsed, search_folders

FILES_MAX = 256


def digests_of(reference: OwnReference) -> dict[str, str]:
    """The SHA-256 of each file by its path, absolute. Empty for an installed package.

    Raises:
        ConfigError: a file cannot be read, or is no Python.
    """
    folders = [
        *([os.path.dirname(reference.source)] if reference.is_file else []),
        *search_folders(reference.folder),
    ]
    left, found = (
        [reference.source] if reference.is_file else _files_of(reference.source, folders),
        dict[str, str](),
    )
    while left and len(found) < FILES_MAX:
        path = left.pop()
        if path not in found:
            found[path] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
            left += [each for name in _imported(Path(path)) for each in _files_of(name, folders)]
    return dict(sorted(found.items()))


def _imported(path: Path) -> Iterator[str]:
    """Names of modules that a file may import; of ``from a import b`` both ``a`` and ``a.b``."""
    for node in ast.walk(parsed(path)):
        match node:
            case ast.Import(names=names):
                yield from (each.name for each in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield module
                yield from (f"{module}.{each.name}" for each in names)
            case ast.ImportFrom(module=None, names=names):
                yield from (each.name for each in names)
            case _:
                pass


def _files_of(module: str, folders: Sequence[str]) -> list[str]:
    """The files of a module and of the packages around it, which are run before it; only those in the folders."""
    parts = module.split(".")
    names = (".".join(parts[: index + 1]) for index in range(len(parts)))
    return [path for name in names if (path := _beside(name, folders))]


def _beside(module: str, folders: Sequence[str]) -> str | None:
    """The file of a module that lies in one of the folders; None of any other."""
    path: Sequence[str] | None = folders
    spec = None
    for part in module.split("."):
        spec = PathFinder.find_spec(part, path) if path else None
        path = None if spec is None else spec.submodule_search_locations
    origin = None if spec is None else spec.origin
    return os.path.abspath(origin) if origin and origin.endswith(".py") else None
