"""Tokens of roles, the files that hold them, and their rotation while services run."""

import itertools
import stat
from pathlib import Path

import pytest

from tidegate.core.errors import ConfigError, NotFoundError
from tidegate.runtime import changing_file
from tidegate.runtime.call_credentials import (
    DIGESTS_FILE,
    DigestsFile,
    TokenFile,
    accepting,
    derive_token,
    derived_tokens,
    encode_digests,
    find_token,
    token_file,
    write_credentials,
)
from tidegate.wire.call_permissions import ROLES


@pytest.fixture(autouse=True)
def _always_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at a file before each use of it, not once a second."""
    monkeypatch.setattr(changing_file, "LOOK_PERIOD_S", 0.0)


def replace(path: Path, data: bytes) -> None:
    """As a kubelet does: another file under the same name."""
    fresh = path.with_name("fresh")
    fresh.write_bytes(data)
    fresh.replace(path)


def test_every_role_of_every_run_has_a_token_of_its_own() -> None:
    tokens = [derive_token(secret, role) for secret in ("a", "b") for role in ROLES]
    assert len(set(tokens)) == 2 * len(ROLES)
    assert all(len(token) == 64 for token in tokens)
    assert derived_tokens("a") == {role: derive_token("a", role) for role in ROLES}


def test_token_is_recognised_as_its_role_and_no_other_text_is() -> None:
    tokens = derived_tokens("a")
    table = accepting(tokens)
    assert {role: table.role_of(token) for role, token in tokens.items()} == {role: role for role in ROLES}
    strangers = [
        *derived_tokens("b").values(),
        "",
        tokens["learner"][:-1],
        tokens["learner"].upper(),
        "ä" * 64,
    ]
    assert [table.role_of(token) for token in strangers] == [None] * len(strangers)


def test_only_the_owner_reads_the_files_and_no_server_needs_a_token_to_recognise_one(tmp_path: Path) -> None:
    folder = tmp_path / "credentials"
    tokens = derived_tokens("a")
    write_credentials(folder, tokens)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name for path in folder.iterdir()} == {DIGESTS_FILE, *map(token_file, ROLES)}
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    for role, token in tokens.items():
        assert find_token(folder, role).current() == token
        assert DigestsFile(folder / DIGESTS_FILE).role_of(token) == role
        assert token not in (folder / DIGESTS_FILE).read_text()


def test_role_without_a_file_may_not_be_acted_as(tmp_path: Path) -> None:
    write_credentials(tmp_path, {"actor": "t"})
    with pytest.raises(NotFoundError, match=r"as operator here.*operator\.token does not exist"):
        find_token(tmp_path, "operator")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"learner": "no list"}', b"{}", b'{"learner": ["\xc3\xa4"]}']
)
def test_file_without_digests_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / DIGESTS_FILE
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"digests\.json"):
        DigestsFile(path)


@pytest.mark.parametrize("content", [b"", b"\n", "ä".encode()])
def test_file_without_a_token_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / token_file("actor")
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"actor\.token"):
        TokenFile(path)
    with pytest.raises(ConfigError, match="missing"):
        TokenFile(tmp_path / "missing")


def test_changed_file_is_read_again_and_a_lost_one_keeps_its_last_content(tmp_path: Path) -> None:
    path = tmp_path / token_file("actor")
    path.write_text("first")
    token = TokenFile(path)
    replace(path, b"second")
    assert token.current() == "second"
    replace(path, b"")
    assert token.current() == "second"
    path.unlink()
    assert token.current() == "second"
    path.write_text("third")
    assert token.current() == "third"


def test_no_call_is_refused_in_whatever_order_two_pods_see_a_rotation(tmp_path: Path) -> None:
    """The caller's and the server's files change at different times; each may be one rotation behind the other."""
    order = ["first", "second", "third", "fourth"]
    digests, token_path = tmp_path / DIGESTS_FILE, tmp_path / token_file("learner")

    def contents(rotation: int) -> tuple[bytes, bytes]:
        accepted = [order[rotation], order[rotation + 1], *order[max(0, rotation - 1) : rotation]]
        return order[rotation].encode(), encode_digests({"learner": accepted})

    for caller, server in itertools.product(range(3), range(3)):
        token_path.write_bytes(contents(caller)[0])
        digests.write_bytes(contents(server)[1])
        role = DigestsFile(digests).role_of(TokenFile(token_path).current())
        assert (role == "learner") == (abs(caller - server) <= 1), (caller, server)
