"""A place in object storage with bounded, repeated calls: put, create, get, list, delete.

The library (obstore) speaks to the stores and repeats nothing itself; each call here has a deadline and is repeated by
the one helper. Objects of bytes are at most ``OBJECT_BYTES_MAX``: what is larger is several objects, so that memory is
bounded, an interrupted upload goes on where it was, and no store keeps the parts of an unfinished one. A file for
others is one object (``put_file``), whose unfinished parts a rule of the bucket deletes.
"""

import asyncio
import html
import os
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from tidegate.core.errors import (
    ConfigError,
    ConflictError,
    CorruptionError,
    DeadlineError,
    NotFoundError,
    PermissionDeniedError,
    TidegateError,
    UnavailableError,
)
from tidegate.runtime.object_storage.urls import scheme_of
from tidegate.runtime.retrying import Backoff, retry

if TYPE_CHECKING:
    from obstore.store import ObjectStore

T = TypeVar("T")

# One object of a file: memory holds a few of them, and the slowest link that is useful moves one within its deadline.
OBJECT_BYTES_MAX = 8 << 20
# A listing beyond this is refused: the place holds something else.
OBJECTS_MAX = 200_000
# A file that is sent as one object has so much more time.
SLOWEST_BYTES_PER_S = 1 << 20
# Answers of 4xx that the same call may not get again: a timeout, a conflict of writers, too many calls.
REPEATABLE = (408, 409, 412, 425, 429)
MESSAGE_CHARACTERS = 500
_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_MESSAGE = re.compile(r"<Message>(.*?)</Message>", re.DOTALL)
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


class CallLimits(msgspec.Struct, frozen=True):
    """Seconds until one try of a call, and until a call with its repetitions, is given up."""

    try_deadline_s: float = 120.0
    deadline_s: float = 300.0
    backoff: Backoff = Backoff(start_s=0.5, max_s=15.0)


class StoredObject(msgspec.Struct, frozen=True):
    """One object of a listing: its name below the place, its bytes, and when it was written."""

    name: str
    size: int
    written_at_s: float


class ObjectPlace:
    """See ``open_place``; ``url`` is for messages."""

    def __init__(self, store: "ObjectStore", *, url: str, limits: CallLimits | None = None) -> None:
        """``store``: one of obstore's, whose own repetitions are off."""
        self.url = url
        self._store = store
        self._limits = limits or CallLimits()

    async def put(self, name: str, data: bytes) -> None:
        """Write an object, in place of one of this name.

        Raises:
            TidegateError: the store refused, or did not answer in time.
        """
        obstore = _library()
        await self._call(
            lambda: obstore.put_async(self._store, name, data, use_multipart=False), what=f"write {name}"
        )

    async def put_file(self, name: str, path: Path) -> None:
        """Write a file as one object, in parts where it is large; the object is there once all of them are.

        Raises:
            TidegateError: the store refused, or did not answer in time.
        """
        obstore = _library()
        longer_s = os.stat(path).st_size / SLOWEST_BYTES_PER_S

        async def write() -> None:
            await obstore.put_async(self._store, name, path, chunk_size=OBJECT_BYTES_MAX, max_concurrency=4)

        await self._call(write, what=f"write {name}", longer_s=longer_s)

    async def create(self, name: str, data: bytes) -> None:
        """Write an object of which there is none.

        Raises:
            ConflictError: there is one, with other bytes.
            TidegateError: the store refused, or did not answer in time.
        """
        obstore = _library()
        try:
            await self._call(
                lambda: obstore.put_async(self._store, name, data, use_multipart=False, mode="create"),
                what=f"write {name}",
            )
        except ConflictError:
            # A try that seemed to fail may have written it.
            if await self.size_of(name) != len(data) or await self.get(name) != data:
                raise

    async def get(self, name: str, *, size_max: int = OBJECT_BYTES_MAX) -> bytes:
        """A whole object.

        Raises:
            NotFoundError: there is none.
            CorruptionError: it has more than ``size_max`` bytes, which are not read.
            TidegateError: the store refused, or did not answer in time.
        """
        obstore = _library()

        async def read() -> bytes:
            found = await obstore.get_async(self._store, name)
            if found.meta["size"] > size_max:
                raise CorruptionError(
                    f"{self.url}/{name} has {found.meta['size']:,} bytes",
                    why=f"at most {size_max:,} were written",
                )
            return bytes(await found.bytes_async())

        return await self._call(read, what=f"read {name}")

    async def size_of(self, name: str) -> int:
        """The bytes of an object.

        Raises:
            NotFoundError: there is none.
            TidegateError: the store refused, or did not answer in time.
        """
        obstore = _library()
        found = await self._call(lambda: obstore.head_async(self._store, name), what=f"find {name}")
        return int(found["size"])

    async def part(self, name: str, *, start: int, stop: int) -> bytes:
        """The bytes from ``start`` to before ``stop`` of an object that has so many.

        Raises:
            CorruptionError: it became shorter.
            TidegateError: the store refused, or did not answer in time.
        """
        obstore = _library()

        async def read() -> bytes:
            return bytes(await obstore.get_range_async(self._store, name, start=start, end=stop))

        data = await self._call(read, what=f"read {name}")
        if len(data) != stop - start:
            raise CorruptionError(f"{self.url}/{name} became shorter while it was read")
        return data

    async def objects(self, folder: str) -> list[StoredObject]:
        """The objects below a folder of the place, in the order of their names; none where there is no such folder.

        Raises:
            TidegateError: there are too many, the store refused, or it did not answer in time.
        """
        obstore = _library()

        async def read() -> list[StoredObject]:
            found: list[StoredObject] = []
            async for page in obstore.list(self._store, folder):
                found += [
                    StoredObject(each["path"], each["size"], each["last_modified"].timestamp())
                    for each in page
                ]
                if len(found) > OBJECTS_MAX:
                    raise ConfigError(
                        f"{self.url}/{folder} holds more than {OBJECTS_MAX:,} objects",
                        fix="name a place of its own",
                    )
            return sorted(found, key=lambda each: each.name)

        try:
            return await self._call(read, what=f"list {folder or 'everything'}")
        except NotFoundError:
            return []

    async def folders(self) -> list[str]:
        """The names of the folders directly below the place.

        Raises:
            TidegateError: the store refused, or did not answer in time.
        """
        obstore = _library()

        async def read() -> list[str]:
            found = await obstore.list_with_delimiter_async(self._store)
            return sorted(cast("list[str]", found["common_prefixes"]))

        try:
            return await self._call(read, what="list folders")
        except NotFoundError:
            return []

    async def delete(self, name: str) -> None:
        """Remove an object; one that is not there is no error.

        Raises:
            TidegateError: the store refused, or did not answer in time.
        """
        obstore = _library()
        try:
            await self._call(lambda: obstore.delete_async(self._store, name), what=f"delete {name}")
        except NotFoundError:
            return

    async def _call(self, ask: Callable[[], Awaitable[T]], *, what: str, longer_s: float = 0.0) -> T:
        """``longer_s``: seconds that one try may take besides its deadline."""
        limits = self._limits
        try_deadline_s = limits.try_deadline_s + longer_s

        async def once() -> T:
            try:
                async with asyncio.timeout(try_deadline_s):
                    return await ask()
            except TidegateError:
                raise
            except TimeoutError as error:
                raise DeadlineError(
                    f"{self.url} did not {what}", why=f"no answer in {try_deadline_s:g} s"
                ) from error
            except Exception as error:
                raise self._translated(error, what) from error

        return await retry(once, limits.backoff, deadline_s=limits.deadline_s + longer_s)

    def _translated(self, error: Exception, what: str) -> TidegateError:
        """The library's error in the one tree; a refusal that the same call would get again is not repeated."""
        kind = type(error).__name__
        why = _reason(error)
        status = int(found[1]) if (found := _STATUS.search(str(error))) else 0
        said = f"{self.url} did not {what}"
        match error:
            case FileNotFoundError():
                return NotFoundError(f"{self.url} could not {what}", why="there is no such object or bucket")
            case OSError():
                return UnavailableError(said, why=why)
            case ValueError():
                return ConfigError(said, why=why)
            case _:
                pass
        if kind in ("AlreadyExistsError", "PreconditionError"):
            return ConflictError(said, why="an object of that name is there")
        if kind in ("PermissionDeniedError", "UnauthenticatedError") or status in (401, 403):
            return PermissionDeniedError(
                said,
                why=why,
                fix="check the variables with the credentials, and what they may do in the bucket",
            )
        if kind in ("InvalidPathError", "NotSupportedError", "UnknownConfigurationKeyError"):
            return ConfigError(said, why=why)
        if status == 404:  # a listing of a bucket that is not there
            return NotFoundError(f"{self.url} could not {what}", why="there is no such bucket")
        if 400 <= status < 500 and status not in REPEATABLE:
            return ConfigError(
                said, why=why, fix="check region, endpoint and the other variables of its client"
            )
        return UnavailableError(said, why=why)


def _reason(error: Exception) -> str:
    """The first line of the library's text, and what the server said; the rest says how the error was made."""
    text = str(error)
    first = (text.splitlines() or [type(error).__name__])[0].removesuffix(
        ': <?xml version="1.0" encoding="UTF-8"?>'
    )
    message = _MESSAGE.search(text)
    return f"{first}: {html.unescape(message[1])[:MESSAGE_CHARACTERS]}" if message else first


def _library() -> Any:
    """An extra, whose types are partial; loaded by the processes that ask a store."""
    return import_module("obstore")


def open_place(
    url: str, *, setting: str, makes_folder: bool = False, limits: CallLimits | None = None
) -> ObjectPlace:
    """A place by its address; credentials, endpoint and region come from the environment. Nothing is asked yet.

    ``setting``: what an error begins with. ``makes_folder``: of ``file://``, where there is none.

    Raises:
        ConfigError: it is no address, or the environment says too little.
        NotFoundError: obstore is not installed.
    """
    scheme = scheme_of(url, setting=setting)
    require_library()
    from obstore.exceptions import BaseError
    from obstore.store import LocalStore, from_url

    limits = limits or CallLimits()
    try:
        if scheme == "file":
            return ObjectPlace(LocalStore.from_url(url, mkdir=makes_folder), url=url, limits=limits)
        store = cast("Any", from_url)(
            url,
            client_options={
                "timeout": timedelta(seconds=limits.try_deadline_s),
                "connect_timeout": timedelta(seconds=min(10.0, limits.try_deadline_s)),
                # An endpoint without TLS is the user's own choice, such as a server on this machine.
                "allow_http": any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS),
            },
            retry_config={"max_retries": 0},
        )
    except (BaseError, ValueError, OSError) as error:
        raise ConfigError(
            f"{setting}: {url} cannot be opened",
            why=(str(error).splitlines() or [type(error).__name__])[0],
            fix="set the variables that its client reads (docs/backups.md)",
        ) from error
    return ObjectPlace(store, url=url, limits=limits)


def require_library() -> None:
    """Refuse where obstore is not installed; it is not loaded.

    Raises:
        NotFoundError: it is not.
    """
    if find_spec("obstore") is None:
        raise NotFoundError(
            "Object storage needs obstore",
            why="it is not installed",
            fix="install it: pip install 'tidegate[object-storage]'",
        )
