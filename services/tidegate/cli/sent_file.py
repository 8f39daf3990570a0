"""A file that a command writes where its option names it: on this machine, or in object storage.

For object storage it is written to a temporary folder first, and sent whole.
"""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tidegate.runtime.object_storage.place import open_place, require_library
from tidegate.runtime.object_storage.urls import is_url, parent_of_object, scheme_of

T = TypeVar("T")


def check_target(target: str, *, setting: str) -> None:
    """Refuse an address that cannot be one, before anything is computed; nothing is asked of the network.

    Raises:
        ConfigError: it is no address of object storage.
        NotFoundError: the library for object storage is not installed.
    """
    if is_url(target):
        scheme_of(target, setting=setting)
        require_library()


def write_file_to(target: str, write: Callable[[Path], T], *, setting: str) -> T:
    """Let ``write`` make a file at a path or an address; returns what it returns. ``setting``: the option's name.

    Raises:
        TidegateError: as ``write``, or the store refused or did not answer in time.
    """
    if not is_url(target):
        return write(Path(target))
    url, name = parent_of_object(target)
    place = open_place(url, setting=setting, makes_folder=True)
    with tempfile.TemporaryDirectory(prefix="tidegate-") as folder:
        path = Path(folder) / name
        written = write(path)
        asyncio.run(place.put_file(name, path))
    return written
