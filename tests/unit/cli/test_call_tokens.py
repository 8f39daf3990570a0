"""The Secret of call tokens: filled once, rotated without refusing a call, whichever pods have seen it."""

import itertools

import msgspec
import pytest

from tidegate.cli.call_tokens import ROTATION_KEY, missing_call_tokens, next_file
from tidegate.core.errors import ConfigError
from tidegate.runtime.call_credentials import DIGESTS_FILE, DigestTable, token_file
from tidegate.runtime.task_secret import TASKS_FILE
from tidegate.wire.call_permissions import ROLES


def accepted_by(secret: dict[str, str]) -> DigestTable:
    return DigestTable(msgspec.json.decode(secret[DIGESTS_FILE], type=dict[str, list[str]]))


def rotated(secret: dict[str, str], rotation: str) -> dict[str, str]:
    return secret | missing_call_tokens(secret, rotation=rotation)


def test_empty_secret_gets_a_token_of_its_own_for_each_role_and_its_digests() -> None:
    secret = missing_call_tokens({}, rotation="")
    assert secret.keys() == {
        ROTATION_KEY,
        TASKS_FILE,
        DIGESTS_FILE,
        *map(token_file, ROLES),
        *map(next_file, ROLES),
    }
    tokens = [secret[name(role)] for role in ROLES for name in (token_file, next_file)]
    assert len(set(tokens)) == 2 * len(ROLES)
    assert {accepted_by(secret).role_of(secret[token_file(role)]) for role in ROLES} == set(ROLES)


def test_upgrade_changes_nothing_and_a_new_role_gets_its_token() -> None:
    secret = missing_call_tokens({}, rotation="1")
    assert missing_call_tokens(secret, rotation="1") == {}
    without = {key: value for key, value in secret.items() if not key.startswith("inference.")}
    again = without | missing_call_tokens(without, rotation="1")
    assert {key for key in secret if again[key] != secret[key]} == {
        token_file("inference"),
        next_file("inference"),
        DIGESTS_FILE,
    }
    assert all(accepted_by(again).role_of(again[token_file(role)]) == role for role in ROLES)


def test_pods_that_are_one_rotation_apart_understand_each_other_and_no_others_do() -> None:
    secrets = [missing_call_tokens({}, rotation="")]
    for number in range(4):
        secrets.append(rotated(secrets[-1], str(number)))
    for (caller, sent), (server, accepting) in itertools.product(enumerate(secrets), enumerate(secrets)):
        for role in ROLES:
            found = accepted_by(accepting).role_of(sent[token_file(role)])
            assert found == (role if abs(caller - server) <= 1 else None), (caller, server)


def test_same_rotation_happens_once() -> None:
    secret = rotated(missing_call_tokens({}, rotation=""), "2026-11")
    assert missing_call_tokens(secret, rotation="2026-11") == {}


def test_unreadable_digests_are_named() -> None:
    with pytest.raises(ConfigError, match=r"digests\.json.*remove that key"):
        missing_call_tokens({DIGESTS_FILE: "{"}, rotation="")


def test_secret_of_tasks_is_made_once_and_no_rotation_changes_it() -> None:
    secret = missing_call_tokens({}, rotation="")
    assert len(secret[TASKS_FILE]) == 64
    assert rotated(secret, "2026-11")[TASKS_FILE] == secret[TASKS_FILE]
    assert missing_call_tokens({}, rotation="")[TASKS_FILE] != secret[TASKS_FILE]
