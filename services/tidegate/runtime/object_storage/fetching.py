"""Files of object storage on this machine: ``python -m tidegate.runtime.object_storage.fetching URL FOLDER``.

A process of its own, because the library has threads, and the process that asks forks others.
"""

import asyncio
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from tidegate.core.errors import ConfigError, TidegateError
from tidegate.runtime.object_storage.place import (
    OBJECT_BYTES_MAX,
    ObjectPlace,
    StoredObject,
    open_place,
    require_library,
)
from tidegate.runtime.object_storage.urls import parent_of_object, scheme_of
from tidegate.runtime.parent_death import dies_with_this_process
from tidegate.runtime.process_end import end_process


@contextmanager
def fetched(url: str, *, beside: Path, setting: str) -> Generator[Path]:
    """The object at an address, or the folder of all objects below it, on the disk of ``beside`` while in the block.

    Raises:
        ConfigError: there is none, or it cannot be read; the message begins with ``setting``.
        NotFoundError: obstore is not installed.
    """
    scheme_of(url, setting=setting)
    require_library()
    with TemporaryDirectory(prefix=".fetched-", dir=beside) as folder:
        done = subprocess.run(
            [sys.executable, "-m", "tidegate.runtime.object_storage.fetching", url, folder],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=dies_with_this_process(),
        )
        if done.returncode:
            ended = f"its process ended with {done.returncode} and said nothing"
            said = (done.stderr.strip().splitlines() or [ended])[-1]
            raise ConfigError(
                f"{setting}: {url} cannot be fetched", why=said, fix="see docs/backups.md for credentials"
            )
        yield Path(folder) / done.stdout.strip()


async def fetch(url: str, folder: Path) -> str:
    """Write what is at an address into a folder; returns its path there.

    Raises:
        TidegateError: there is nothing, or the store refused or did not answer in time.
    """
    place, name = parent_of_object(url.rstrip("/"))
    above = open_place(place, setting="URL")
    found = [each for each in await above.objects(name) if _is_inside(each.name)]
    if not found:
        # A listing of a prefix has what is below it, and not the object of that name itself.
        size = await above.size_of(name)
        found = [StoredObject(name, size, 0.0)]
    for each in found:
        await _write(above, each, folder / each.name)
    return name


async def _write(place: ObjectPlace, each: StoredObject, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for start in range(0, each.size, OBJECT_BYTES_MAX):
            file.write(
                await place.part(each.name, start=start, stop=min(each.size, start + OBJECT_BYTES_MAX))
            )


def _is_inside(name: str) -> bool:
    return ".." not in PurePosixPath(name).parts


def main() -> int:
    """Fetch what the command line names."""
    try:
        sys.stdout.write(asyncio.run(fetch(sys.argv[1], Path(sys.argv[2]))))
    except (TidegateError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    end_process(main())
