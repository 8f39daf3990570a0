"""Passwords for the broker's users: made once, never changed, safe wherever they are written."""

import base64
import re
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec
import pytest

from tidegate.cli.broker_passwords import missing_passwords
from tidegate.cli.credentials import ATTEMPTS, Missing, fill, fill_secret
from tidegate.core.errors import ConflictError, UnavailableError
from tidegate.runtime.kubernetes_api import MERGE_PATCH, Api, error_of


def passwords(keys: Sequence[str]) -> Missing:
    """A Secret that needs a password under each key."""
    return partial(missing_passwords, users=(), keys=keys, rotation="")


class Secret:
    """A Secret as the API server keeps it; each of ``failures`` is raised once, by whatever is called next."""

    def __init__(self, data: Mapping[str, str], failures: list[Exception] | None = None) -> None:
        """``data``: what is there already."""
        self.data = dict(data)
        self.version: int = 1
        self.writes: int = 0
        self._failures = failures or []

    async def read(self) -> tuple[Mapping[str, str], str]:
        """What is there, and of which version."""
        if self._failures:
            raise self._failures.pop(0)
        return dict(self.data), str(self.version)

    async def write(self, made: Mapping[str, str], version: str) -> None:
        """Add, if no other writer came since ``version``."""
        if version != str(self.version):
            raise ConflictError("The Secret was changed meanwhile")
        self.data |= made
        self.version += 1
        self.writes += 1


class Server:
    """An API server's Secret over HTTP; each status of ``refusals`` is answered once, to the next request."""

    def __init__(self, data: Mapping[str, str] | None, refusals: Sequence[int] = ()) -> None:
        """``data``: base64 by key, or null."""
        self.data = data
        self.requests: list[tuple[str, str, dict[str, str], str]] = []
        self._refusals = list(refusals)

    async def send(
        self, method: str, path: str, query: Mapping[str, str], body: object, content_type: str
    ) -> bytes:
        """Answer one request."""
        self.requests.append((method, path, dict(query), content_type))
        if self._refusals:
            raise error_of(self._refusals.pop(0), "refused", f"{method} {path}")
        if method == "PATCH":
            patch = msgspec.convert(body, dict[str, dict[str, str]])
            assert patch["metadata"] == {"resourceVersion": "7"}
            self.data = {**(self.data or {}), **patch["data"]}
        return msgspec.json.encode({"metadata": {"resourceVersion": "7"}, "data": self.data})

    async def close(self) -> None:
        """Nothing is open."""


def test_only_missing_and_empty_keys_get_a_password() -> None:
    made = missing_passwords(
        {"actor": "kept", "learner": ""}, users=(), keys=["actor", "learner", "nats"], rotation=""
    )
    assert set(made) == {"learner", "nats"}


def test_passwords_are_different_and_safe_in_a_configuration() -> None:
    made = missing_passwords({}, users=(), keys=[str(number) for number in range(100)], rotation="")
    assert len(set(made.values())) == 100
    # The broker reads what begins with a digit as a number.
    assert all(re.fullmatch(r"p[0-9a-f]{48}", password) for password in made.values())


async def test_second_job_changes_nothing() -> None:
    secret = Secret({})
    assert await fill(secret.read, secret.write, missing=passwords(["a", "b"]), retry_s=0.0) == ["a", "b"]
    before = dict(secret.data)
    assert await fill(secret.read, secret.write, missing=passwords(["a", "b"]), retry_s=0.0) == []
    assert (secret.data, secret.writes) == (before, 1)


async def test_who_writes_first_wins_and_the_other_fills_the_rest() -> None:
    secret = Secret({})

    async def read_and_be_overtaken() -> tuple[Mapping[str, str], str]:
        seen = await secret.read()
        if secret.version == 1:
            await secret.write({"a": "theirs"}, "1")
        return seen

    assert await fill(read_and_be_overtaken, secret.write, missing=passwords(["a", "b"]), retry_s=0.0) == [
        "b"
    ]
    assert secret.data["a"] == "theirs"


async def test_role_that_is_not_in_force_yet_is_waited_for() -> None:
    secret = Secret({}, [UnavailableError("not allowed (yet)") for _ in range(3)])
    assert await fill(secret.read, secret.write, missing=passwords(["a"]), retry_s=0.0) == ["a"]


async def test_server_that_never_answers_ends_the_job_with_its_reason() -> None:
    secret = Secret({}, [UnavailableError("nobody there") for _ in range(ATTEMPTS)])
    with pytest.raises(UnavailableError, match="could not be filled") as raised:
        await fill(secret.read, secret.write, missing=passwords(["a"]), retry_s=0.0)
    assert "nobody there" in raised.value.why
    assert secret.writes == 0


@pytest.mark.parametrize("refusals", [(), (403, 404, 409, 503)])
async def test_secret_is_read_and_patched_where_it_lacks_a_key(refusals: tuple[int, ...]) -> None:
    server = Server({"a": base64.b64encode(b"kept").decode()}, refusals)
    made = await fill_secret(
        Api(server, field_manager="me"), "users", namespace="rl", missing=passwords(["a", "b"]), retry_s=0.0
    )
    assert made == ["b"]
    assert server.data is not None
    assert base64.b64decode(server.data["a"]) == b"kept"
    assert re.fullmatch(rb"p[0-9a-f]{48}", base64.b64decode(server.data["b"]))
    path = "/api/v1/namespaces/rl/secrets/users"
    assert server.requests[-2:] == [
        ("GET", path, {}, "application/json"),
        ("PATCH", path, {"fieldManager": "me"}, MERGE_PATCH),
    ]


async def test_secret_without_data_gets_every_key() -> None:
    server = Server(None)
    assert await fill_secret(Api(server), "users", namespace="rl", missing=passwords(["a", "b"])) == [
        "a",
        "b",
    ]
    assert server.data is not None
    assert set(server.data) == {"a", "b"}


async def test_reason_of_the_last_refusal_is_reported() -> None:
    server = Server({}, [403] * ATTEMPTS)
    with pytest.raises(UnavailableError, match="could not be filled") as raised:
        await fill_secret(Api(server), "users", namespace="rl", missing=passwords(["a"]), retry_s=0.0)
    assert "denies GET" in raised.value.why
