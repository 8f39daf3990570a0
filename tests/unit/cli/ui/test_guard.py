import pytest

from tidegate.cli.ui.command import check_can_serve
from tidegate.cli.ui.guard import COOKIE, host_is_expected, is_loopback, token_is_right
from tidegate.core.errors import ConfigError


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    assert is_loopback(host)
    check_can_serve(host=host, token="")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "box.example"])
def test_other_address_is_refused_without_a_token(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(ConfigError, match="open to everybody"):
        check_can_serve(host=host, token="")
    check_can_serve(host=host, token="secret")


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("127.0.0.1:8471", True),
        ("localhost:8471", True),
        ("localhost", True),
        ("[::1]:8471", True),
        ("evil.example:8471", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
    ],
)
def test_server_on_loopback_answers_to_its_own_names_only(header: str, expected: bool) -> None:
    assert host_is_expected(header, listens_on="127.0.0.1") is expected
    assert host_is_expected(header, listens_on="0.0.0.0"), "there the token decides"


def test_token_is_taken_from_header_or_cookie() -> None:
    assert token_is_right("", {}, {})
    assert token_is_right("s", {"Authorization": "Bearer s"}, {})
    assert token_is_right("s", {}, {COOKIE: "s"})
    assert not token_is_right("s", {}, {})
    assert not token_is_right("s", {"Authorization": "Bearer t"}, {COOKIE: "s"}), "what is sent first decides"
    assert not token_is_right("s", {"Authorization": "Basic s"}, {})
