"""Who may read the page: decisions on a request's host and token, and the headers of every answer."""

import ipaddress
from collections.abc import Mapping

from tidegate.runtime.bearer import bearer_token, same_secret

COOKIE = "tidegate_ui"
# Scripts and data come from this server alone. Plotly sets styles from its script, which only this form allows.
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:;"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_is_expected(header: str, *, listens_on: str) -> bool:
    """Whether the Host header names this server, where it listens on loopback.

    A page of another site can make a browser send requests here under its own name (DNS rebinding).
    """
    if not is_loopback(listens_on):
        return True
    name = header.rpartition(":")[0] if header.rpartition(":")[2].isdecimal() else header
    return is_loopback(name.strip("[]"))


def token_is_right(token: str, headers: Mapping[str, str], cookies: Mapping[str, str]) -> bool:
    """Whether a request carries the token, as a bearer token or as the cookie; always true without a token."""
    if not token:
        return True
    given = bearer_token(headers.get("Authorization", ""))
    return same_secret(cookies.get(COOKIE, "") if given is None else given, token)
