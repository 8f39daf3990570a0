"""A place in object storage: whole objects, bounded calls, and errors that say what to do."""

import asyncio
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore

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
from tidegate.runtime.object_storage import place as module
from tidegate.runtime.object_storage.place import OBJECT_BYTES_MAX, CallLimits, ObjectPlace, open_place
from tidegate.runtime.object_storage.urls import scheme_of
from tidegate.runtime.retrying import Backoff

AT_ONCE = Backoff(start_s=0.01, max_s=0.01)
LIMITS = CallLimits(backoff=AT_ONCE)


@pytest.fixture
def place() -> ObjectPlace:
    return ObjectPlace(MemoryStore(), url="memory://", limits=LIMITS)


async def test_object_is_read_listed_and_deleted_by_its_name(place: ObjectPlace) -> None:
    await place.put("objects/ab/one", b"1")
    await place.put("objects/two", b"22")
    await place.put("objects/two", b"222")
    assert await place.get("objects/two") == b"222"
    assert [(each.name, each.size) for each in await place.objects("objects")] == [
        ("objects/ab/one", 1),
        ("objects/two", 3),
    ]
    assert await place.folders() == ["objects"]
    await place.delete("objects/two")
    await place.delete("objects/two")
    with pytest.raises(NotFoundError):
        await place.get("objects/two")


async def test_object_is_created_once_and_the_same_bytes_are_no_conflict(place: ObjectPlace) -> None:
    await place.create("manifests/1", b"mine")
    await place.create("manifests/1", b"mine")
    for other in (b"them", b"theirs", b"the"):
        with pytest.raises(ConflictError):
            await place.create("manifests/1", other)
    assert await place.get("manifests/1") == b"mine"


async def test_object_that_is_larger_than_any_that_was_written_is_not_read(place: ObjectPlace) -> None:
    await place.put("large", b"12345")
    with pytest.raises(CorruptionError, match="5 bytes"):
        await place.get("large", size_max=4)


async def test_store_that_hangs_costs_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(obstore, "put_async", never)
    limits = CallLimits(try_deadline_s=0.05, deadline_s=0.3, backoff=AT_ONCE)
    place = ObjectPlace(MemoryStore(), url="memory://", limits=limits)
    with pytest.raises(DeadlineError):
        await place.put("one", b"1")


async def test_call_that_fails_for_a_moment_is_repeated_and_a_refused_one_is_not(
    place: ObjectPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    put = obstore.put_async

    async def flaky(*arguments: Any, **options: Any) -> Any:
        calls.append("put")
        if len(calls) < 3:
            raise obstore.exceptions.GenericError("the connection was reset\n\nDebug source: secret")
        return await put(*arguments, **options)

    monkeypatch.setattr(obstore, "put_async", flaky)
    await place.put("one", b"1")
    assert len(calls) == 3

    async def refused(*_: object, **__: object) -> None:
        calls.append("get")
        raise obstore.exceptions.PermissionDeniedError("403")

    monkeypatch.setattr(obstore, "get_async", refused)
    with pytest.raises(Exception, match="credentials"):
        await place.get("one")
    assert calls.count("get") == 1


async def test_error_leaves_out_how_the_library_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object, **__: object) -> None:
        raise obstore.exceptions.GenericError("no route\n\nDebug source: token=secret")

    monkeypatch.setattr(obstore, "put_async", fails)
    limits = CallLimits(deadline_s=0.05, backoff=AT_ONCE)
    with pytest.raises(UnavailableError) as caught:
        await ObjectPlace(MemoryStore(), url="memory://", limits=limits).put("one", b"1")
    assert "no route" in str(caught.value)
    assert "secret" not in str(caught.value)


XML = '<?xml version="1.0" encoding="UTF-8"?>'
WRONG_REGION = (
    f"Error performing PUT http://host/runs/x in 1ms - Server returned non-2xx status code: 400 Bad Request: {XML}\n"
    "<Error><Code>AuthorizationHeaderMalformed</Code><Message>The region &#34;eu-1&#34; is wrong</Message></Error>"
)


@pytest.mark.parametrize(
    ("said", "kind", "told", "is_repeated"),
    [
        (WRONG_REGION, ConfigError, '400 Bad Request: The region "eu-1" is wrong', False),
        ("Server returned non-2xx status code: 403 Forbidden: ", PermissionDeniedError, "credentials", False),
        ("Server returned non-2xx status code: 404 Not Found: ", NotFoundError, "no such bucket", False),
        ("Server returned non-2xx status code: 429 Too Many Requests: ", UnavailableError, "429", True),
        ("Server returned non-2xx status code: 503 Slow Down: ", UnavailableError, "503", True),
    ],
)
async def test_refusal_of_a_server_is_told_in_its_words_and_repeated_only_where_that_can_help(
    monkeypatch: pytest.MonkeyPatch, said: str, kind: type[TidegateError], told: str, is_repeated: bool
) -> None:
    made: list[str] = []

    async def refused(*_: object, **__: object) -> None:
        made.append("call")
        raise obstore.exceptions.GenericError(said)

    monkeypatch.setattr(obstore, "put_async", refused)
    limits = CallLimits(deadline_s=0.5, backoff=AT_ONCE)
    with pytest.raises(kind) as caught:
        await ObjectPlace(MemoryStore(), url="memory://", limits=limits).put("x", b"1")
    assert told in str(caught.value)
    assert (len(made) > 1) == is_repeated


@pytest.mark.parametrize(
    "url",
    ["", "bucket/prefix", "ftp://host/x", "s3:///prefix", "file://relative/x", "s3://key:secret@bucket/x"],
)
def test_what_is_no_place_is_refused_with_the_setting(url: str) -> None:
    with pytest.raises(ConfigError, match=r"backup\.to") as caught:
        scheme_of(url, setting="backup.to")
    assert "secret" not in str(caught.value)


def test_place_whose_account_is_unknown_is_refused_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(ConfigError, match="Account"):
        open_place("az://container/prefix", setting="--to")


def test_folder_is_made_for_a_writer_and_not_for_a_reader(tmp_path: Path) -> None:
    open_place((tmp_path / "made").as_uri(), setting="--to", makes_folder=True)
    assert (tmp_path / "made").is_dir()
    with pytest.raises(ConfigError, match="cannot be opened"):
        open_place((tmp_path / "missing").as_uri(), setting="URL")
    assert not (tmp_path / "missing").exists()


def test_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_name: str) -> None:
        return None

    monkeypatch.setattr(module, "find_spec", none)
    with pytest.raises(NotFoundError, match=r"tidegate\[object-storage\]"):
        open_place("s3://bucket", setting="--to")


async def test_large_file_is_one_object(place: ObjectPlace, tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * (OBJECT_BYTES_MAX // 200))
    await place.put_file("model/weights", path)
    assert await place.get("model/weights", size_max=2 * OBJECT_BYTES_MAX) == path.read_bytes()
