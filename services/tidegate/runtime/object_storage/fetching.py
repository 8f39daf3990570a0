"""Files of object storage on this machine: ``python -m tidegate.runtime.object_storage.fetching``.

A process of its own, because the library has threads, and the process that asks forks others.
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

import msgspec

from tidegate.core.errors import ConfigError, UnavailableError
from tidegate.runtime.child_question import ChildEndedError, ChildTimeoutError, answer_question, ask
from tidegate.runtime.object_storage.place import (
    OBJECT_BYTES_MAX,
    ObjectPlace,
    StoredObject,
    open_place,
    require_library,
)
from tidegate.runtime.object_storage.urls import parent_of_object, scheme_of

CHILD = "tidegate.runtime.object_storage.fetching"
# Of a whole dataset. Each call of the store has its own deadline, so this ends a fetch that is slow for other reasons.
DEADLINE_S = 24 * 3600.0


class FetchQuestion(msgspec.Struct, frozen=True):
    """What to write, and where."""

    url: str
    folder: str


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
        try:
            name = ask(CHILD, FetchQuestion(url, folder), str, deadline_s=DEADLINE_S)
        except (ConfigError, ChildTimeoutError, ChildEndedError) as error:
            raise ConfigError(
                f"{setting}: {url} cannot be fetched",
                why=_why(error),
                fix="see docs/backups.md for credentials",
            ) from error
        yield Path(folder) / name


def _why(error: Exception) -> str:
    return str(error) or f"it took more than {DEADLINE_S / 3600:g} hours"


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


def fetched_name(question: FetchQuestion) -> str:
    """Answer: the path in the folder.

    Raises:
        TidegateError: there is nothing, the store refused or did not answer in time, or the disk failed.
    """
    try:
        return asyncio.run(fetch(question.url, Path(question.folder)))
    except OSError as error:
        raise UnavailableError(str(error)) from error


if __name__ == "__main__":
    answer_question(FetchQuestion, fetched_name)
