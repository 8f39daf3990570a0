"""Passwords for the broker's users: made once, never changed, safe wherever they are written."""

import re
from collections.abc import Mapping

import pytest

from tidegate.cli.credentials import ATTEMPTS, fill, missing_passwords
from tidegate.core.errors import ConflictError, UnavailableError


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
        """Add, if nobody wrote since ``version``."""
        if version != str(self.version):
            raise ConflictError("The Secret was changed meanwhile")
        self.data |= made
        self.version += 1
        self.writes += 1


def test_only_missing_and_empty_keys_get_a_password() -> None:
    made = missing_passwords({"actor": "kept", "learner": ""}, ["actor", "learner", "nats"])
    assert set(made) == {"learner", "nats"}


def test_passwords_are_different_and_safe_in_a_configuration() -> None:
    made = missing_passwords({}, [str(number) for number in range(100)])
    assert len(set(made.values())) == 100
    # The broker reads what begins with a digit as a number.
    assert all(re.fullmatch(r"p[0-9a-f]{48}", password) for password in made.values())


async def test_second_job_changes_nothing() -> None:
    secret = Secret({})
    assert await fill(secret.read, secret.write, keys=["a", "b"], retry_s=0.0) == ["a", "b"]
    before = dict(secret.data)
    assert await fill(secret.read, secret.write, keys=["a", "b"], retry_s=0.0) == []
    assert (secret.data, secret.writes) == (before, 1)


async def test_who_writes_first_wins_and_the_other_fills_the_rest() -> None:
    secret = Secret({})

    async def read_and_be_overtaken() -> tuple[Mapping[str, str], str]:
        seen = await secret.read()
        if secret.version == 1:
            await secret.write({"a": "theirs"}, "1")
        return seen

    assert await fill(read_and_be_overtaken, secret.write, keys=["a", "b"], retry_s=0.0) == ["b"]
    assert secret.data["a"] == "theirs"


async def test_role_that_is_not_in_force_yet_is_waited_for() -> None:
    secret = Secret({}, [UnavailableError("not allowed (yet)") for _ in range(3)])
    assert await fill(secret.read, secret.write, keys=["a"], retry_s=0.0) == ["a"]


async def test_server_that_never_answers_ends_the_job_with_its_reason() -> None:
    secret = Secret({}, [UnavailableError("nobody there") for _ in range(ATTEMPTS)])
    with pytest.raises(UnavailableError, match="could not be filled") as raised:
        await fill(secret.read, secret.write, keys=["a"], retry_s=0.0)
    assert "nobody there" in raised.value.why
    assert secret.writes == 0
