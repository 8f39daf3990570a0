"""The folder of a policy where a command's option names it: on this machine, or in object storage.

For object storage it is written to a temporary folder first, and sent. The model card is sent last: where it is, the
folder is whole.
"""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

from tidegate.cli.policy.transformers_folder import README
from tidegate.core.errors import ConfigError
from tidegate.runtime.object_storage.place import ObjectPlace, open_place
from tidegate.runtime.object_storage.urls import is_url


def write_folder_to(target: str, write: Callable[[Path], None]) -> None:
    """Let ``write`` make a folder at a path or an address, where there is nothing yet.

    Raises:
        ConfigError: there is something.
        TidegateError: as ``write``, or the store refused or did not answer in time.
    """
    if not is_url(target):
        write(Path(target))
        return
    place = open_place(target, setting="--to", makes_folder=True)
    with tempfile.TemporaryDirectory(prefix="tidegate-") as parent:
        folder = Path(parent) / "policy"
        asyncio.run(_require_empty(place))
        write(folder)
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        names = [path.relative_to(folder).as_posix() for path in paths]
        asyncio.run(_send(place, folder, sorted(names, key=lambda name: name == README)))


async def _require_empty(place: ObjectPlace) -> None:
    if await place.objects(""):
        raise ConfigError(f"{place.url} holds something", fix="name another place with --to")


async def _send(place: ObjectPlace, folder: Path, names: list[str]) -> None:
    for name in names:
        await place.put_file(name, folder / name)
