"""The Secret of call tokens: filled once, rotated without refusing a call, whichever pods have seen it."""

import itertools

import msgspec
import pytest

from tidegate.cli.call_tokens import ROTATION_KEY, missing_call_tokens, next_file
from tidegate.core.errors import ConfigError
from tidegate.runtime.call_credentials import DIGESTS_FILE, DigestTable, token_file
from tidegate.runtime.task_secret import (
    OVERLAP_S,
    PREVIOUS_MAX,
    TASKS_FILE,
    TaskSecrets,
    parse_task_secrets,
    task_secrets_of,
)
from tidegate.wire.call_permissions import ROLES

NOW_S = 1_800_000_000.0


def accepted_by(secret: dict[str, str]) -> DigestTable:
    return DigestTable(msgspec.json.decode(secret[DIGESTS_FILE], type=dict[str, list[str]]))


def rotated(secret: dict[str, str], rotation: str) -> dict[str, str]:
    return secret | missing_call_tokens(secret, rotation=rotation, now_s=NOW_S)


def test_empty_secret_gets_a_token_of_its_own_for_each_role_and_its_digests() -> None:
    secret = missing_call_tokens({}, rotation="", now_s=NOW_S)
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
    secret = missing_call_tokens({}, rotation="1", now_s=NOW_S)
    assert missing_call_tokens(secret, rotation="1", now_s=NOW_S) == {}
    without = {key: value for key, value in secret.items() if not key.startswith("inference.")}
    again = without | missing_call_tokens(without, rotation="1", now_s=NOW_S)
    assert {key for key in secret if again[key] != secret[key]} == {
        token_file("inference"),
        next_file("inference"),
        DIGESTS_FILE,
    }
    assert all(accepted_by(again).role_of(again[token_file(role)]) == role for role in ROLES)


def test_pods_that_are_one_rotation_apart_understand_each_other_and_no_others_do() -> None:
    secrets = [missing_call_tokens({}, rotation="", now_s=NOW_S)]
    for number in range(4):
        secrets.append(rotated(secrets[-1], str(number)))
    for (caller, sent), (server, accepting) in itertools.product(enumerate(secrets), enumerate(secrets)):
        for role in ROLES:
            found = accepted_by(accepting).role_of(sent[token_file(role)])
            assert found == (role if abs(caller - server) <= 1 else None), (caller, server)


def test_same_rotation_happens_once() -> None:
    secret = rotated(missing_call_tokens({}, rotation="", now_s=NOW_S), "2026-11")
    assert missing_call_tokens(secret, rotation="2026-11", now_s=NOW_S) == {}


def test_unreadable_digests_are_named() -> None:
    with pytest.raises(ConfigError, match=r"digests\.json.*remove that key"):
        missing_call_tokens({DIGESTS_FILE: "{"}, rotation="", now_s=NOW_S)


def test_secret_of_tasks_changes_with_a_rotation_and_with_nothing_else() -> None:
    secret = missing_call_tokens({}, rotation="", now_s=NOW_S)
    before = task_secrets_of(secret[TASKS_FILE])
    assert (len(before.current), len(before.following)) == (64, 64)
    assert missing_call_tokens(secret, rotation="", now_s=NOW_S + 1.0) == {}
    after = task_secrets_of(rotated(secret, "2026-11")[TASKS_FILE])
    assert after.current == before.following
    other = missing_call_tokens({}, rotation="", now_s=NOW_S)
    assert task_secrets_of(other[TASKS_FILE]).current != before.current


def test_queue_and_store_that_are_one_rotation_apart_accept_each_other() -> None:
    known = [task_secrets_of(missing_call_tokens({}, rotation="", now_s=NOW_S)[TASKS_FILE])]
    for _ in range(3):
        known.append(known[-1].rotated(now_s=NOW_S))
    for queue, store in itertools.pairwise(known):
        assert queue.current.encode() in store.accepted(now_s=NOW_S)
        # The pod of the queue has seen the rotation, that of the store has not.
        assert store.current.encode() in queue.accepted(now_s=NOW_S)


def test_secret_of_before_a_rotation_is_accepted_for_a_bounded_time() -> None:
    before = TaskSecrets("a" * 64, following="b" * 64)
    after = parse_task_secrets(before.rotated(now_s=NOW_S).to_text().encode())
    assert b"a" * 64 in after.accepted(now_s=NOW_S + OVERLAP_S - 1.0)
    assert b"a" * 64 not in after.accepted(now_s=NOW_S + OVERLAP_S)
    kept = after.rotated(now_s=NOW_S + OVERLAP_S)
    assert [each.secret for each in kept.previous] == ["b" * 64], "what has expired is forgotten"


def test_secret_of_an_earlier_version_gets_a_next_one_before_it_is_rotated() -> None:
    old = {TASKS_FILE: "c" * 64 + "\n", **{token_file(role): "t" * 64 for role in ROLES}}
    upgraded = old | missing_call_tokens(old, rotation="now", now_s=NOW_S)
    known = task_secrets_of(upgraded[TASKS_FILE])
    assert (known.current, bool(known.following)) == ("c" * 64, True)
    assert task_secrets_of(rotated(upgraded, "later")[TASKS_FILE]).current == known.following


def test_many_rotations_in_a_short_time_keep_a_bounded_number_of_secrets() -> None:
    secrets = TaskSecrets("a" * 64).with_next()
    for _ in range(20):
        secrets = secrets.rotated(now_s=NOW_S)
    assert len(secrets.previous) == PREVIOUS_MAX


@pytest.mark.parametrize(
    "text", ["", "short", "a" * 64 + "\nother b", "a" * 64 + "\nnext b", "a" * 64 + "\nprevious " + "b" * 64]
)
def test_unreadable_secret_of_tasks_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=r"tasks\.secret.*remove that key"):
        task_secrets_of(text)
