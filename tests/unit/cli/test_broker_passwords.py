"""The Secret of the broker's passwords: filled once, rotated so that any two pods find a common password."""

import itertools

from tidegate.cli.broker_passwords import (
    PASSWORDS_CONF,
    ROTATION_KEY,
    missing_passwords,
    passwords_file,
    variable_of,
)
from tidegate.runtime.broker_password import parse_passwords

USERS = ("actor", "task-queue")
KEYS = ("routes",)


def filled(secret: dict[str, str], rotation: str = "") -> dict[str, str]:
    return secret | missing_passwords(secret, users=USERS, keys=KEYS, rotation=rotation)


def known_to(secret: dict[str, str], user: str) -> tuple[str, ...]:
    return parse_passwords(secret[passwords_file(user)].encode())


def test_empty_secret_gets_passwords_their_files_and_the_brokers_configuration() -> None:
    secret = filled({})
    assert secret.keys() == {*USERS, *KEYS, *map(passwords_file, USERS), PASSWORDS_CONF, ROTATION_KEY}
    assert secret[PASSWORDS_CONF].splitlines() == [
        f'TG_ACTOR: "{secret["actor"]}"',
        f'TG_TASK_QUEUE: "{secret["task-queue"]}"',
    ]
    assert variable_of("task-queue") == "TG_TASK_QUEUE"
    assert all(known_to(secret, user)[0] == secret[user] for user in USERS)
    assert len({*known_to(secret, "actor"), *known_to(secret, "task-queue"), secret["routes"]}) == 5


def test_upgrade_changes_nothing() -> None:
    secret = filled({}, "1")
    assert missing_passwords(secret, users=USERS, keys=KEYS, rotation="1") == {}


def test_broker_and_pod_that_are_one_rotation_apart_have_a_common_password() -> None:
    secrets = [filled({})]
    for number in range(4):
        secrets.append(filled(secrets[-1], str(number)))
    for broker, pod in itertools.product(range(5), range(5)):
        is_known = secrets[broker]["actor"] in known_to(secrets[pod], "actor")
        assert is_known == (abs(broker - pod) <= 1), (broker, pod)
    assert len({secret["actor"] for secret in secrets}) == 5
    assert len({secret["routes"] for secret in secrets}) == 1


def test_passwords_of_an_earlier_version_are_kept_and_rotated_once_pods_have_their_files() -> None:
    old = {"actor": "p-old", "task-queue": "p-other", "routes": "p-routes"}
    upgraded = filled(old, "now")
    assert {key: upgraded[key] for key in old} == old
    assert known_to(upgraded, "actor")[0] == "p-old"
    assert filled(upgraded, "later")["actor"] == known_to(upgraded, "actor")[1]
